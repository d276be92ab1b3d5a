// Heartbeats and notices between the ranks of a program.
#include "devices/rank_monitor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

namespace haliax {

using program::Ranks;
using Channel = Ranks::Channel;
using namespace std::chrono_literals;

// time between heartbeats, or less if fewer than kHeartbeatsOfPatience fit into the patience
constexpr std::chrono::milliseconds kHeartbeat = 1s;
constexpr int kHeartbeatsOfPatience = 4;
constexpr auto kMonitorInterval = 20ms;  // time between checks for notices
// time for notices to arrive before this rank exits: after a failure, and without one
constexpr auto kNoticeTimeAfterFailure = 2s, kNoticeTime = 10s;

RankMonitor::RankMonitor(Ranks& transport, std::chrono::milliseconds patience)
    : transport_(transport), me_(transport.rank()), count_(transport.count()), patience_(patience),
      ended_(std::size_t(count_)), last_heartbeat_(Clock::now()),
      monitor_thread_([this] { monitor(); }) {}
RankMonitor::~RankMonitor() {
  {
    std::lock_guard hold(lock_);
    stop_ = true;
    changed_.notify_all();
  }
  if (monitor_thread_.joinable()) monitor_thread_.join();
}
std::string RankMonitor::named() const {
  return fmt::format("rank {} ({}, process {})", me_, transport_.where(), getpid());
}

void RankMonitor::monitor() {
  std::unique_lock hold(lock_);
  auto beat = Clock::now();
  while (!stop_) {
    try {
      receive_notices();
      std::erase_if(notices_, [&](Notice& n) { return transport_.done(n.message); });
      if (notices_.empty()) changed_.notify_all();
      if (auto now = Clock::now(); count_ > 1 && now >= beat) {
        send_notice(next_rank(), heartbeat, {});
        beat = now + std::min(kHeartbeat,
                              patience_.count() ? patience_ / kHeartbeatsOfPatience : kHeartbeat);
      }
      auto silent = Clock::now() - last_heartbeat_;
      if (patience_.count() && count_ > 1 && !failed_ && silent > patience_) {
        fail_all(
            fmt::format("rank {} has not responded for {:.3g} s: it has died, "
                        "or hangs, or cannot be reached; {} waited for it",
                        previous_rank(), std::chrono::duration<double>(silent).count(), named()));
      }
    } catch (const std::exception& e) {
      note_failure(e.what());
    }
    changed_.wait_for(hold, kMonitorInterval, [&] { return stop_; });
  }
}
void RankMonitor::receive_notices() {
  while (auto m = transport_.probe(Channel::monitor, -1, -1)) {
    Notice notice;
    notice.text.resize(std::size_t(m->bytes));
    notice.message =
        transport_.receive(Channel::monitor, m->from, m->tag, notice.text.data(), m->bytes);
    // the message has arrived, so this ends
    while (!transport_.done(notice.message)) std::this_thread::yield();
    if (m->from == previous_rank()) last_heartbeat_ = Clock::now();
    if (m->tag == failures) note_failure(std::move(notice.text));
    if (m->tag == ends) {
      ended_[std::size_t(m->from)] = true;
      changed_.notify_all();
    }

    if (m->tag == calls) {
      std::uint64_t number = 0;
      const char* end = notice.text.data() + notice.text.size();
      const char* rest = std::from_chars(notice.text.data(), end, number).ptr;
      calls_of_previous_rank_[number] = std::string(std::min(rest + 1, end), end);
      compare_call(number);
    }
    if (m->tag == waits && waiting_ && notice.text != current_call_)
      fail_all(fmt::format("ranks {} and {} wait for each other: one at {}, one at {}; {}", m->from,
                           me_, notice.text, current_call_, kSameCallsHint));
  }
}
// Compares a call of this rank with the same call of the previous rank. Devices with their own
// communication cannot detect a mismatch: sends and receives of different calls would match, or
// wait forever.
void RankMonitor::compare_call(std::uint64_t number) {
  auto mine = calls_of_this_rank_.find(number), theirs = calls_of_previous_rank_.find(number);
  if (mine == calls_of_this_rank_.end() || theirs == calls_of_previous_rank_.end()) return;
  if (mine->second != theirs->second)
    fail_all(fmt::format("rank {} makes a different call than rank {}: one is at {}, one at {}; {}",
                         previous_rank(), me_, theirs->second, mine->second, kSameCallsHint));
  calls_of_this_rank_.erase(mine);
  calls_of_previous_rank_.erase(theirs);
}
void RankMonitor::send_notice(int rank, NoticeKind what, std::string text) {
  auto& n = notices_.emplace_back();
  n.text = std::move(text);
  n.message =
      transport_.send(Channel::monitor, rank, what, n.text.data(), std::int64_t(n.text.size()));
}
void RankMonitor::broadcast_notice(NoticeKind what, const std::string& text) {
  for (int r = 0; r < count_; ++r)
    if (r != me_) send_notice(r, what, text);
}
void RankMonitor::note_failure(std::string why) {
  if (failed_) return;
  failure_ = std::move(why);
  failed_ = true;
  changed_.notify_all();
}
void RankMonitor::fail_all(const std::string& why) {
  note_failure(why);
  broadcast_notice(failures, why);
}
void RankMonitor::fail(const std::string& why) noexcept {
  try {
    std::lock_guard hold(lock_);
    if (failed_) return;
    fail_all(fmt::format("{} has failed: {}", named(), why));
  } catch (...) {}  // the other ranks detect that this rank is gone
}
void RankMonitor::check() const {
  if (!failed_) return;
  std::lock_guard hold(lock_);
  throw RemoteError("[ranks] " + failure_);
}
void RankMonitor::check(std::chrono::nanoseconds waited) const {
  check();
  if (patience_.count() == 0 || waited < patience_) return;
  std::lock_guard hold(lock_);
  for (int r = 0; r < count_; ++r)
    if (r != me_ && ended_[std::size_t(r)])
      throw RemoteError(fmt::format("[ranks] rank {} has ended, but rank {} waits for it at {}; {}",
                                    r, me_, current_call_, kSameCallsHint));
}
void RankMonitor::leave() {
  {
    std::unique_lock hold(lock_);
    ended_[std::size_t(me_)] = true;
    if (!failed_) broadcast_notice(ends, {});
    changed_.wait(hold,
                  [&] { return failed_ || std::count(ended_.begin(), ended_.end(), 0) == 0; });
    // Notices take a while to arrive. The first rank that exits may end all others (mpirun ends the
    // job), so the others get time to report the reason.
    changed_.wait_for(hold, failed_ ? kNoticeTimeAfterFailure : kNoticeTime,
                      [&] { return notices_.empty() && !failed_; });
    stop_ = true;
    changed_.notify_all();
  }
  if (monitor_thread_.joinable()) monitor_thread_.join();
  transport_.leave(!failed_);
}

void RankMonitor::begin_call(std::uint64_t number, const std::string& description) {
  std::lock_guard hold(lock_);
  current_call_ = description;
  if (count_ == 1) return;
  send_notice(next_rank(), calls, fmt::format("{} {}", number, description));
  calls_of_this_rank_[number] = description;
  compare_call(number);
}
std::string RankMonitor::current_call() const {
  std::lock_guard hold(lock_);
  return current_call_;
}
void RankMonitor::announce_wait(int rank) {
  std::lock_guard hold(lock_);
  if (waiting_.exchange(true) && Clock::now() - last_wait_notice_ <= kWaitNotice) return;
  send_notice(rank, waits, current_call_);
  last_wait_notice_ = Clock::now();
}
bool RankMonitor::has_ended(int rank) const {
  std::lock_guard hold(lock_);
  return ended_[std::size_t(rank)];
}

}  // namespace haliax
