// Communication between the ranks of a program.
#include "devices/ranks.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "graph/fail.h"
#include "devices/plugins.h"

namespace haliax {

using program::Ranks;
using Channel = Ranks::Channel;
using namespace std::chrono_literals;

// A thread that waits for messages polls, then yields, then sleeps between polls. Counts are of
// polls without progress.
constexpr int kPolls = 50, kPollsWithYield = 500;
constexpr auto kSleep = 30us;
constexpr int kPollsPerCheck = 5000;  // between two calls of check_suspects
// the same for strings outside of calls, without yields
constexpr int kTextPolls = 100;
constexpr auto kTextSleep = 50us;
// time for messages of a rank that has ended to arrive: within a call, and outside of calls
constexpr auto kLastMessages = 1s, kLastTexts = 2s;

// ---- calls ----
Peers::Peers(Ranks& transport, std::chrono::milliseconds patience)
    : transport_(transport), me_(transport.rank()), count_(transport.count()),
      call_tags_(transport.tags() >> 20 ? 512 : 4), monitor_(transport, patience) {}
Peers::JointCall::JointCall(Peers& p, std::string what) : peers_(p), call_lock_(p.joint_call_) {
  p.check();
  ++p.calls_;
  const auto call = fmt::format("{} (call {})", what, p.calls_);
  p.call_tag_ = int((std::hash<std::string>()(call) + p.calls_) % std::uint64_t(p.call_tags_));
  p.monitor_.begin_call(p.calls_, call);
}

constexpr int kDeviceBits = 5;  // bits of a device in a tag

// The fields of a tag, from low to high: receiving device, sending device, call (modulo
// call_tags_), key. A message of another call or with another key therefore shows in its tag
// (check_suspects).
int Peers::tag(int from, int to, std::uint64_t key) const {
  auto key_part = int(key % std::uint64_t((transport_.tags() >> (2 * kDeviceBits)) / call_tags_));
  return ((key_part * call_tags_ + call_tag_) << kDeviceBits | from) << kDeviceBits | to;
}
Peers::Transfer Peers::send(int device, Endpoint to, std::uint64_t key, const void* data,
                            std::int64_t bytes) {
  auto t = tag(device, to.device, key);
  if (to.rank != me_) sent_ += bytes;
  return {transport_.send(Channel::data, to.rank, t, data, bytes), to, t, false};
}
Peers::Transfer Peers::receive(Endpoint from, int device, std::uint64_t key, void* data,
                               std::int64_t bytes) {
  auto t = tag(from.device, device, key);
  return {transport_.receive(Channel::data, from.rank, t, data, bytes), from, t, true};
}
void Peers::wait(std::vector<Transfer>& all) {
  auto since = Clock::now();
  for (int idle = 0; !all.empty(); ++idle) {
    check();
    if (std::erase_if(all, [&](Transfer& p) { return transport_.done(p.message); })) {
      idle = 0;
      since = Clock::now();
    }

    if (idle < kPolls) continue;
    if (idle < kPollsWithYield)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(kSleep);
    if (idle % kPollsPerCheck == kPollsPerCheck - 1) check_suspects(all, since);
  }
  monitor_.end_wait();
}
// Raises if the sender of a missing message runs another call or has ended. After kWaitNotice
// without progress, notifies the sender that this rank waits for it. If the sender waits as well,
// at another call, all ranks raise. since: when the last transfer was done.
void Peers::check_suspects(const std::vector<Transfer>& all, Clock::time_point since) {
  constexpr int of_ends = 1 << (2 * kDeviceBits);  // values of the low part of a tag: both devices
  for (auto& p : all) {
    if (!p.receives) continue;
    auto here = transport_.probe(Channel::data, p.other.rank, -1);
    bool other_call = here && (here->tag / of_ends) % call_tags_ != call_tag_;
    bool other_key = here && here->tag % of_ends == p.tag % of_ends && here->tag != p.tag;
    if (other_call || other_key)
      throw Error(
          fmt::format("[ranks] rank {} makes a different call than rank {}, which is at {}; {}",
                      p.other.rank, me_, monitor_.current_call(), kSameCallsHint));
    if (monitor_.has_ended(p.other.rank) && Clock::now() - since > kLastMessages)
      throw Error(fmt::format("[ranks] rank {} has ended, but rank {} waits for it at {}; {}",
                              p.other.rank, me_, monitor_.current_call(), kSameCallsHint));
  }
  if (Clock::now() - since >= kWaitNotice && !all.empty())
    monitor_.announce_wait(all.front().other.rank);
}

// ---- strings ----
// Strings are sent as their length, then their characters, within a call or on a control channel.
void Peers::wait_for(Ranks::Message m, int rank) {
  auto since = Clock::now();
  for (int idle = 0; !transport_.done(m); ++idle) {
    check();
    if (idle > kTextPolls) std::this_thread::sleep_for(kTextSleep);
    if (monitor_.has_ended(rank) && Clock::now() - since > kLastTexts)
      throw Error(fmt::format(
          "[ranks] rank {} has ended, but rank {} waits for it; all ranks must make the same calls",
          rank, me_));
  }
}
void Peers::send_text(int control_channel, int to, const std::string& text) {
  auto part = [&](const void* data, std::int64_t bytes) {
    if (control_channel != kInCall)
      return wait_for(
          transport_.send(Channel::control, to, control_channel % transport_.tags(), data, bytes),
          to);
    std::vector<Transfer> one{send(kItself, {to}, 0, data, bytes)};
    wait(one);
  };
  auto bytes = std::int64_t(text.size());
  part(&bytes, 8);
  part(text.data(), bytes);
}
std::string Peers::receive_text(int control_channel, int from) {
  auto part = [&](std::int64_t bytes) {
    auto text = std::make_unique<std::string>(std::size_t(bytes), '\0');
    try {
      if (control_channel != kInCall) {
        wait_for(transport_.receive(Channel::control, from, control_channel % transport_.tags(),
                                    text->data(), bytes),
                 from);
      } else {
        std::vector<Transfer> one{receive({from}, kItself, 0, text->data(), bytes)};
        wait(one);
      }
    } catch (...) {
      (void)text.release();  // the message may still arrive
      throw;
    }
    return std::move(*text);
  };
  std::int64_t bytes = 0;
  std::memcpy(&bytes, part(8).data(), 8);
  return part(bytes);
}
std::vector<std::string> Peers::gather_from_all(int control_channel, const std::string& mine) {
  std::vector<std::string> all{mine};
  if (me_ > 0) {
    send_text(control_channel, 0, mine);
    return nlohmann::json::parse(receive_text(control_channel, 0)).get<std::vector<std::string>>();
  }
  for (int r = 1; r < count_; ++r) all.push_back(receive_text(control_channel, r));
  const auto text = nlohmann::json(all).dump();
  for (int r = 1; r < count_; ++r) send_text(control_channel, r, text);
  return all;
}
std::vector<std::string> Peers::all_gather_text_alone(const std::string& mine,
                                                      int control_channel) {
  if (control_channel == 0) {
    JointCall call(*this, "a checkpoint");
    return gather_from_all(kInCall, mine);
  }
  check();
  return gather_from_all(control_channel, mine);
}
void Peers::agree(const std::vector<AgreedValue>& mine) {
  std::vector<std::string> texts;
  for (auto& f : mine) texts.push_back(f.text);
  auto all = gather_from_all(kInCall, nlohmann::json(texts).dump());
  auto fields = [&](int r) {
    return nlohmann::json::parse(all[std::size_t(r)]).get<std::vector<std::string>>();
  };
  const auto first = fields(0);
  for (int r = 1; r < count_; ++r) {
    const auto theirs = fields(r);
    for (std::size_t k = 0; k < mine.size(); ++k) {
      if (k < theirs.size() && k < first.size() && theirs[k] == first[k]) continue;
      bool shown = mine[k].printed && k < theirs.size() && k < first.size();
      haliax::fail("ranks",
                   "rank {} differs in {} from rank 0{}; all ranks must run the same program, "
                   "with the same arguments and environment",
                   r, mine[k].name, shown ? fmt::format(": {}, not {}", theirs[k], first[k]) : "");
    }
  }
}
bool Peers::any(bool mine) {
  JointCall call(*this, "a reduction over all ranks");
  auto all = gather_from_all(kInCall, mine ? "1" : "0");
  return std::find(all.begin(), all.end(), "1") != all.end();
}

// ---- the ranks of this process ----
namespace {

// Returns the number in a string, or 0 if there is none.
int number_in(const char* text) {
  int n = 0;
  if (text) std::from_chars(text, text + std::strlen(text), n);
  return n;
}
// Returns the number of processes that the launcher started, or 0 for a process on its own.
int launched_processes() {
  if (int n = number_in(std::getenv("OMPI_COMM_WORLD_SIZE"))) return n;
  if (int n = number_in(std::getenv("PMI_SIZE"))) return n;
  return std::getenv("PMIX_RANK") ? number_in(std::getenv("SLURM_NTASKS")) : 0;
}
Peers* open_peers() {
  const char* text = std::getenv("HALIAX_RANKS");
  const std::string requested = text ? text : "";
  if (requested != "" && requested != "mpi" && requested != "none")
    fail_env("HALIAX_RANKS", requested, "mpi or none", context().origin.at);
  int n = launched_processes();
  if (requested == "none" || (requested.empty() && n < 2)) return nullptr;
  auto* found = plugin("ranks", "mpi");
  if (!found || !found->ranks) {
    auto why = n > 1 ? fmt::format("this process is one of {} that were started together", n)
                     : "HALIAX_RANKS is mpi";
    fail("ranks",
         "{}, but there is {}; it is built if MPI is installed; HALIAX_PLUGINS=FOLDER adds a "
         "folder of plugins; with HALIAX_RANKS=none each process runs alone",
         why, in_plugin_folders("mpi"));
  }
  const auto patience = std::chrono::seconds(
      env_integer("HALIAX_PATIENCE", 0, 86400, context().origin.at).value_or(20));
  static auto* const all = new Peers(*found->ranks(), patience);  // never destroyed: leaves at exit
  std::atexit([] { all->leave(); });
  return all;
}
thread_local int by_themselves = 0;

}  // namespace

Peers* peers() {
  if (by_themselves > 0) return nullptr;
  static const auto process = getpid();
  static Peers* const all = open_peers();
  if (all && getpid() != process)
    fail("ranks",
         "this process was forked from rank {} and is not a rank; "
         "it computes alone, and not on a mesh of ranks",
         all->rank());
  return all;
}
single_process_scope::single_process_scope() { ++by_themselves; }
single_process_scope::~single_process_scope() { --by_themselves; }

}  // namespace haliax
