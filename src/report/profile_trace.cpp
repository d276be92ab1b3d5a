// HALIAX_PROFILE=FILE: writes the events of the process in the format of Chrome and Perfetto when
// the process ends, and prints a table to stderr.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/environment.h"
#include "graph/fail.h"
#include "haliax/ranks.h"
#include "runtime/profile.h"

namespace haliax {

using TraceJson = nlohmann::ordered_json;

// Returns the trace. The arguments of an event are the costs of one run of its row. Times are in
// microseconds.
std::string Profiler::trace(const std::string& process) const {
  std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  auto line = [&](const TraceJson& e) {
    out += e.dump(-1, ' ', false, TraceJson::error_handler_t::replace) + ",\n";
  };
  std::set<std::pair<int, int>> rows;
  for (auto& e : events_) rows.insert({e.device, e.thread});
  int last = -1;
  for (auto [device, thread] : rows) {
    if (device != std::exchange(last, device))
      line({{"ph", "M"},
            {"name", "process_name"},
            {"pid", device},
            {"tid", 0},
            {"args", {{"name", fmt::format("device {}{}", device, process)}}}});
    line({{"ph", "M"},
          {"name", "thread_name"},
          {"pid", device},
          {"tid", thread},
          {"args", {{"name", fmt::format("thread {}", thread)}}}});
  }
  for (auto& e : events_) {
    auto& r = rows_[std::size_t(e.row)];
    ProfileCost cost = r;  // cost of this event
    cost.seconds = e.seconds;
    cost.flops *= e.computed;
    cost.bound_s = bound_of(cost, r.products, rates_) * e.concurrent_threads;
    TraceJson args = TraceJson::object();
    if (!r.where.empty()) args["where"] = r.where;
    if (!r.module.empty()) args["module"] = r.module;
    if (!r.holds.empty()) args["holds"] = r.holds;
    if (!r.shape.empty()) args["shape"] = r.shape;
    if (auto bytes = cost.read + cost.written; bytes > 0) {
      args["bytes"] = bytes;
      args["GB/s"] = cost.bytes_per_s() * 1e-9;
    }

    if (r.flops > 0) args["GFLOP/s"] = cost.flops_per_s() * 1e-9;
    if (cost.bound_s > 0) args["of peak"] = cost.share();
    auto name = r.is_call                        ? r.called
                : r.kind == r.op || r.op.empty() ? r.kind
                                                 : r.kind + " " + r.op;
    line({{"ph", "X"},
          {"name", name},
          {"cat", r.is_call ? "call" : r.kind},
          {"pid", e.device},
          {"tid", e.thread},
          {"ts", (e.began - start_) * 1e6},
          {"dur", e.seconds * 1e6},
          {"args", args}});
  }
  if (events_dropped_ > 0)
    line({{"ph", "I"},
          {"s", "g"},
          {"name", fmt::format("truncated: {} events are omitted", events_dropped_)},
          {"pid", 0},
          {"tid", 0},
          {"ts",
           events_.empty() ? 0 : (events_.back().began + events_.back().seconds - start_) * 1e6}});
  if (out.ends_with(",\n")) out.erase(out.size() - 2);
  return out + fmt::format("\n], \"otherData\": {{\"events\": {}, \"left_out\": {}}}}}\n",
                           events_.size(), events_dropped_);
}

namespace {

class ProcessProfile {
 public:
  explicit ProcessProfile(std::string path) : path_(std::move(path)), process_(::getpid()) {
    if (rank_count() > 1) {  // one file per rank
      auto name = path_.rfind('/') + 1, dot = path_.rfind('.');
      auto end = dot == path_.npos || dot <= name ? path_.size() : dot;
      of_rank_ = fmt::format(", rank {}", this_rank());
      path_.insert(end, fmt::format(".rank{}", this_rank()));
    }
    file_.open(path_);
    if (!file_)
      fail_env("HALIAX_PROFILE", path_,
               fmt::format("a file that can be written ({})", std::strerror(errno)),
               context().origin.at);
    profiler_.keep_events = true;
  }
  // Returns null in forked child processes, which do not write.
  Profiler* active() { return ::getpid() == process_ ? &profiler_ : nullptr; }
  void write() {
    if (::getpid() != process_) return;
    file_ << profiler_.trace(of_rank_) << std::flush;
    if (!file_)
      fmt::print(stderr, "haliax: warning: [profile] {} could not be written: {}\n", path_,
                 std::strerror(errno));
    fmt::print(stderr, "{}the trace is in {}\n", to_string(profiler_.summary(0, 0)), path_);
  }

 private:
  std::string path_, of_rank_;
  ::pid_t process_;
  std::ofstream file_;
  Profiler profiler_;
};
// Returns null if HALIAX_PROFILE is not set. Never destroyed, because threads may run after main.
ProcessProfile* process_profile() {
  static ProcessProfile* const all = []() -> ProcessProfile* {
    const char* path = std::getenv("HALIAX_PROFILE");
    if (!path || !*path) return nullptr;
    auto* created = new ProcessProfile(path);
    std::atexit([] { process_profile()->write(); });
    return created;
  }();
  return all;
}

}  // namespace

Profiler* profiler_of_process() {
  auto* all = process_profile();
  return all ? all->active() : nullptr;
}

}  // namespace haliax
