// Profilers: they record the time of each step, for `profile(...)` on one thread or for
// HALIAX_PROFILE in the full process.
//
// In      each run of an Executable.
// Out     one row per step and source line (Profile), and the first runs as timed events.
//
// Rows outlive Programs: each array that is read may create and free a Program.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "haliax/profile.h"
#include "program/profile.h"
#include "runtime/compiled.h"

namespace haliax {

class Profiler {
 public:
  Profiler() : start_(seconds_now()) {}
  // Runs `c.executable` and records its steps.
  void run(const Compiled& c, const std::vector<void*>& arguments,
           const std::vector<void*>& results, void* arena, program::Communicator*);
  void forget_times();  // ends the warm-up
  // Excludes time from the calls that is only spent because of the profile.
  void exclude_time(double seconds);
  double excluded_time() const { return excluded_time_; }
  Profile summary(int runs, double wall_s) const;
  bool keep_events = false;
  std::string trace(const std::string& process) const;  // JSON for Chrome and Perfetto

 private:
  struct Totals {
    double calls = 0, seconds = 0;
    double computed = 0;  // sum over calls of the fraction of the flops that masks do not skip
  };
  struct KnownProgram {  // a Program whose rows exist
    std::shared_ptr<const program::Program> program;
    std::unordered_map<const program::Step*, int> row_of;
    int call = 0;  // row of the entire call
    bool was_called = false;
    // Totals of the first call by row, until there is a second call.
    std::vector<std::pair<int, Totals>> first;
  };
  struct Row : StepProfile {
    std::string products;  // dtype of a contraction
    double computed = 0;   // see `Totals::computed`
    bool is_call = false;
  };
  struct Event {
    int row = 0, device = 0, thread = 0;
    double began = 0, seconds = 0;
    double computed = 1;         // fraction of the flops that masks do not skip
    int concurrent_threads = 1;  // threads that ran loop iterations concurrently
  };
  class Recording;
  KnownProgram& known(const Compiled&);
  struct LoopContext {                // position of a step among loops
    int loops = 0, side_by_side = 1;  // see StepProfile
  };
  void describe(const program::Program&, const std::vector<program::Step>&, LoopContext,
                KnownProgram&);
  int row(Row);

  double start_, excluded_time_ = 0;
  std::unordered_map<const program::Program*, std::unique_ptr<KnownProgram>> programs_;
  std::vector<Row> rows_;
  std::map<std::string, int> row_of_;  // key: all fields of a row
  std::vector<Event> events_;
  std::int64_t events_dropped_ = 0;
  MachineRates rates_;
};

// Returns the profiler that records this thread. Null: none. Raises if HALIAX_PROFILE names a file
// that cannot be written.
Profiler* profiler();
Profiler* profiler_of_process();  // the profiler of HALIAX_PROFILE
// Sets the profiler of this thread for the lifetime of the object.
class Profiling {
 public:
  explicit Profiling(Profiler*);
  ~Profiling();
  Profiling(const Profiling&) = delete;

 private:
  Profiler* before_;
};
// Returns the profiler that a `Profiling` object set on this thread, for threads that work for this
// one. Donated arguments are copied while there is one.
Profiler* scoped_profiler();

// Bytes of memory that a step reads and writes, each element counted once. 0 for a loop.
struct Traffic {
  double read = 0, written = 0;
};
Traffic traffic_of(const program::Step&, const program::Program&);
// Adds the rates that `MachineRates` lacks. Each rate is measured once in a process. dtype: of
// matmuls; empty: memory rates only.
void measure(MachineRates&, program::Device&, const std::string& dtype);
double bound_of(const ProfileCost&, const std::string& dtype, const MachineRates&);

}  // namespace haliax
