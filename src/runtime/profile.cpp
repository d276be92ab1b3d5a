// The profiler: records steps while a Program runs, and sums them up in rows.
#include "runtime/profile.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/fork.h"
#include "base/thread_pool.h"
#include "graph/fail.h"
#include "haliax/jit.h"

namespace haliax {
namespace {

using program::Code;
using program::Dims;
using program::Step;

// Limits of the events of a trace, and of the events in loops per run. They keep a trace small
// enough to view.
constexpr std::size_t kMostEvents = 100'000, kMostInLoops = 5'000;

constinit std::mutex recording;  // shared by all profilers; locked once before and once after a run
const bool recording_forks =
    at_fork({kForkRest, [] { recording.lock(); }, [] { recording.unlock(); }});
constinit thread_local Profiler* scoped = nullptr;

std::string dims_text(const Dims& d) {
  return d.empty() ? "1" : fmt::format("{}", fmt::join(d, " "));
}
std::string step_shape(const Step& s) {
  if (s.kind == program::Kind::contract) {
    auto& c = s.contract;
    auto batch = c.batch.empty() ? std::string() : "[" + dims_text(c.batch) + "] ";
    return batch + dims_text(c.m) + " x " + dims_text(c.n) + " x " + dims_text(c.k);
  }
  if (s.kind == program::Kind::collective) {
    std::vector<std::string> all;
    for (auto& x : s.collective.x) all.push_back(dims_text(x.dims));
    if (all.size() > 1) return fmt::format("{} arrays", all.size());
    return all.empty() ? "" : all[0];
  }
  if (s.kind == program::Kind::loop) return fmt::format("{} iterations", s.loop.trips);
  return s.kind == program::Kind::conditional || s.kind == program::Kind::host
             ? ""
             : dims_text(program::dims_of(s));
}
// Returns the ops that a fused step computes, in order and without duplicates. Excludes loads,
// stores and casts.
std::string computed_by(const program::Fused& f) {
  std::vector<std::string> names;
  for (auto& i : f.code) {
    std::string name = program::name_of(i.code);
    bool moves = program::is_leaf(i.code) || i.code == Code::cast || i.code == Code::store;
    if (!moves && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  constexpr std::size_t most = 12;
  bool more = names.size() > most;
  names.resize(std::min(names.size(), most));
  return fmt::format("{}{}", fmt::join(names, " "), more ? " ..." : "");
}

}  // namespace

// ---- recording ----
class Profiler::Recording final : public program::Recorder {
 public:
  Recording(const KnownProgram& known, std::size_t capacity) : known_(known), capacity_(capacity) {}
  void begin(const Step& s) override { open_.push_back({known_.row_of.at(&s), seconds_now(), 0}); }
  void end(const Step&, double computed) override {
    auto now = seconds_now();
    if (!worker_recordings_.empty()) gather();
    auto o = open_.back();
    open_.pop_back();
    note(o.row, o.began, now, now - o.began - o.inside, computed);
    if (!open_.empty()) open_.back().inside += now - o.began;
  }
  Recorder& for_worker(int worker) override {
    while (int(worker_recordings_.size()) <= worker)
      worker_recordings_.push_back(std::make_unique<Recording>(known_, capacity_));
    return *worker_recordings_[std::size_t(worker)];
  }
  void note(int row, double began, double ended, double own, double computed = 1) {
    auto& all = spent[row];
    all.calls += 1;
    all.seconds += own;
    all.computed += computed;
    bool fits = events.size() < capacity_ && (open_.empty() || in_loops_ < kMostInLoops);
    if (!fits) {
      ++dropped;
      return;
    }
    in_loops_ += !open_.empty();
    static std::atomic<int> came = 0;  // threads are numbered in the order of their first event
    thread_local const int thread = came++;
    events.push_back({row, known_.program->device, thread, began, ended - began, computed});
  }
  std::unordered_map<int, Totals> spent;  // by row
  std::vector<Event> events;
  std::int64_t dropped = 0;

 private:
  struct OpenStep {  // a step that is running
    int row;
    double began, inside;  // seconds of the steps of its body
  };
  // The time of concurrent threads is the sum over the threads, divided by their number.
  void gather() {
    const auto threads = std::count_if(worker_recordings_.begin(), worker_recordings_.end(),
                                       [](auto& b) { return !b->spent.empty(); });
    for (auto& b : worker_recordings_) {
      for (auto& [row, s] : b->spent) {
        auto& all = spent[row];
        const double seconds = s.seconds / double(threads);
        all.calls += s.calls;
        all.seconds += seconds;
        all.computed += s.computed;
        open_.back().inside += seconds;
      }
      dropped += b->dropped;
      for (auto& e : b->events) {
        if (events.size() >= capacity_ || in_loops_ >= kMostInLoops) {
          ++dropped;
          continue;
        }
        ++in_loops_;
        events.push_back(e);
        events.back().concurrent_threads *= int(threads);
      }
    }
    worker_recordings_.clear();
  }

  const KnownProgram& known_;
  std::size_t capacity_, in_loops_ = 0;
  std::vector<OpenStep> open_;
  std::vector<std::unique_ptr<Recording>> worker_recordings_;
};

void Profiler::run(const Compiled& c, const std::vector<void*>& arguments,
                   const std::vector<void*>& results, void* arena,
                   program::Communicator* communicator) {
  KnownProgram* mine;
  std::size_t capacity;
  {
    std::lock_guard hold(recording);
    mine = &known(c);
    capacity = keep_events ? kMostEvents - std::min(kMostEvents, events_.size()) : 0;
  }
  Recording record(*mine, capacity);
  auto began = seconds_now();
  if (auto* recordable = dynamic_cast<program::Recordable*>(c.executable.get()))
    recordable->run(arguments, results, arena, communicator, record);
  else
    c.executable->run(arguments, results, arena, communicator);
  auto ended = seconds_now();
  record.note(mine->call, began, ended, ended - began);
  std::lock_guard hold(recording);
  auto count = [&](const auto& spent, int sign) {
    for (auto& [row, s] : spent) {
      auto& r = rows_[std::size_t(row)];
      r.calls += sign * s.calls;
      r.seconds += sign * s.seconds;
      r.computed += sign * s.computed;
    }
  };
  count(record.spent, 1);
  // The first call touches fresh memory, so it is excluded as soon as there are other calls.
  count(std::exchange(mine->first, {}), -1);
  if (!std::exchange(mine->was_called, true))
    mine->first.assign(record.spent.begin(), record.spent.end());
  if (!keep_events) return;
  events_.insert(events_.end(), record.events.begin(), record.events.end());
  events_dropped_ += record.dropped;
}

// ---- rows ----
Profiler::KnownProgram& Profiler::known(const Compiled& c) {
  auto& at = programs_[c.program.get()];
  if (at) return *at;
  auto mine = std::make_unique<KnownProgram>();
  mine->program = c.program;  // the reference reserves the address
  Row call_row;
  call_row.called = c.program->called;
  call_row.is_call = true;
  mine->call = row(call_row);
  measure(rates_, c.memory.device(), "");
  describe(*c.program, c.program->steps, {}, *mine);
  for (auto& r : rows_)
    if (!r.products.empty()) measure(rates_, c.memory.device(), r.products);
  at = std::move(mine);
  auto& out = *at;
  if (programs_.size() % 256 == 0)  // erases Programs that cannot run again
    std::erase_if(programs_, [&](auto& p) {
      return p.second.get() != &out && p.second->program.use_count() == 1;
    });
  return out;
}
void Profiler::describe(const program::Program& p, const std::vector<Step>& steps,
                        LoopContext around, KnownProgram& known) {
  for (auto& s : steps) {
    Row r;
    r.kind = program::name_of(s.kind);
    r.op = s.op;
    r.shape = step_shape(s);
    r.called = p.called;
    r.loops = around.loops;
    r.side_by_side = around.side_by_side;
    if (s.kind == program::Kind::fused) r.holds = computed_by(s.fused);
    auto in = s.where.find("in ");
    bool has = in != s.where.npos && (in == 0 || s.where.compare(in - 2, 2, ", ") == 0);
    r.where = has ? s.where.substr(0, in < 2 ? 0 : in - 2) : s.where;
    if (has) r.module = s.where.substr(in + 3);
    auto moved = traffic_of(s, p);
    r.read = moved.read;
    r.written = moved.written;
    if (s.kind == program::Kind::contract) {
      auto &a = s.contract.a, &b = s.contract.b;
      r.flops = 2 * program::multiplications({s});
      r.products = name_of(bytes_of(a.dtype) >= bytes_of(b.dtype) ? a.dtype : b.dtype);
    }
    known.row_of[&s] = row(std::move(r));
    describe(p, s.body,
             {around.loops + (s.kind == program::Kind::loop),
              std::max(around.side_by_side, std::min(s.loop.parallel_slots, threads()))},
             known);
  }
}
// Returns the index of an equal row, or adds the row.
int Profiler::row(Row r) {
  auto key = fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{} {} {} {} {} {} {}", r.called, r.kind, r.op,
                         r.holds, r.shape, r.where, r.module, r.loops, r.side_by_side, r.read,
                         r.written, r.flops, r.products, r.is_call);
  auto [at, is_new] = row_of_.emplace(std::move(key), int(rows_.size()));
  if (is_new) rows_.push_back(std::move(r));
  return at->second;
}
void Profiler::forget_times() {
  std::lock_guard hold(recording);
  for (auto& r : rows_) r.calls = r.seconds = r.computed = 0;
  for (auto& p : programs_) p.second->first.clear();
  excluded_time_ = 0;
}
void Profiler::exclude_time(double seconds) {
  std::lock_guard hold(recording);
  excluded_time_ += seconds;
}

// ---- sums ----
static void add_cost(ProfileCost& sum, const ProfileCost& c) {
  sum.calls += c.calls;
  sum.seconds += c.seconds;
  sum.read += c.read;
  sum.written += c.written;
  sum.flops += c.flops;
  sum.bound_s += c.bound_s;
}
static std::vector<ProfileSum> slowest_first(std::map<std::string, ProfileSum> sums) {
  std::vector<ProfileSum> out;
  for (auto& [name, sum] : sums) {
    out.push_back(std::move(sum));
    out.back().name = name;
  }

  std::stable_sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.seconds > b.seconds; });
  return out;
}
Profile Profiler::summary(int runs, double wall_s) const {
  std::lock_guard hold(recording);
  Profile p;
  p.runs = runs;
  p.machine = rates_;
  std::map<std::string, ProfileSum> kinds, modules;
  for (auto& r : rows_) {
    if (r.calls == 0) continue;
    if (r.is_call) {
      if (runs == 0) p.wall_s += r.seconds;
      continue;
    }
    StepProfile s = r;
    s.flops *= r.computed / r.calls;
    s.bound_s = bound_of(s, r.products, rates_);
    const double calls_per_run = r.calls / std::max(1, runs);
    s.calls = calls_per_run;
    s.seconds /= std::max(1, runs);
    for (double* each : {&s.read, &s.written, &s.flops, &s.bound_s}) *each *= calls_per_run;
    p.steps_s += s.seconds;
    add_cost(kinds[s.kind], s);
    add_cost(modules[s.module], s);
    for (auto dot = s.module.rfind('.'); dot != s.module.npos && dot > 0;
         dot = s.module.rfind('.', dot - 1))
      add_cost(modules[s.module.substr(0, dot)], s);
    p.steps.push_back(std::move(s));
  }
  if (runs > 0) p.wall_s = wall_s / runs;
  p.by_kind = slowest_first(std::move(kinds));
  p.by_module = slowest_first(std::move(modules));
  return p;
}

// ---- profilers of threads ----
Profiler* profiler() { return scoped ? scoped : profiler_of_process(); }
Profiler* scoped_profiler() { return scoped; }
Profiling::Profiling(Profiler* p) : before_(std::exchange(scoped, p)) {}
Profiling::~Profiling() { scoped = before_; }

namespace detail {
Profile profiled(void (*call)(const void*), const void* f) {
  if (is_tracing())
    fail("profile",
         "programs do not run inside jit, grad, vmap or scan; "
         "profile the function that jit returned");
  constexpr int runs = 3;
  Profiler mine;
  Profiling recording(&mine);
  call(f);
  mine.forget_times();
  auto began = seconds_now();
  for (int k = 0; k < runs; ++k) call(f);
  return mine.summary(runs, seconds_now() - began - mine.excluded_time());
}
}  // namespace detail

}  // namespace haliax
