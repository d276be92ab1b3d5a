// Who is told how long steps take: what profile(...) asks for on its thread, or HALIAX_PROFILE for
// the whole process.
//
// In: each run of an Executable. Out: a row for each step at each line (Profile), and the first
// runs as events in time. Rows outlive Programs, which come and go with every array that is read.
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
  // As c.executable->run.
  void run(const Compiled& c, const std::vector<void*>& arguments,
           const std::vector<void*>& results, void* arena, program::Communicator*);
  void forget_times();  // what follows is warm
  // of the time of calls: what would not be done but for the profile
  void exclude_time(double seconds);
  double excluded_time() const { return excluded_time_; }
  Profile summary(int runs, double wall_s) const;
  bool keep_events = false;
  std::string trace(const std::string& process) const;  // JSON that Chrome and Perfetto open

 private:
  struct Totals {
    double calls = 0, seconds = 0;
    double computed = 0;  // of calls: the shares of their products that are worth making
  };
  struct KnownProgram {  // a Program whose rows are there
    std::shared_ptr<const program::Program> program;
    std::unordered_map<const program::Step*, int> row_of;
    int call = 0;  // the row of whole calls
    bool was_called = false;
    // of the first call, while it is the only one: by row
    std::vector<std::pair<int, Totals>> first;
  };
  struct Row : StepProfile {
    std::string products;  // dtype of a contraction
    double computed = 0;   // as Spent::made
    bool is_call = false;
  };
  struct Event {
    int row = 0, device = 0, thread = 0;
    double began = 0, seconds = 0;
    double computed = 1;         // of its products, the share that was worth making
    int concurrent_threads = 1;  // threads that ran turns side by side then
  };
  class Recording;
  KnownProgram& known(const Compiled&);
  struct LoopContext {                // a step
    int loops = 0, side_by_side = 1;  // see StepProfile
  };
  void describe(const program::Program&, const std::vector<program::Step>&, LoopContext,
                KnownProgram&);
  int row(Row);

  double start_, excluded_time_ = 0;
  std::unordered_map<const program::Program*, std::unique_ptr<KnownProgram>> programs_;
  std::vector<Row> rows_;
  std::map<std::string, int> row_of_;  // by all that a row says
  std::vector<Event> events_;
  std::int64_t events_dropped_ = 0;
  MachineRates rates_;
};

// Whom this thread tells; null: nobody. Raises if HALIAX_PROFILE names a file that cannot be
// written.
Profiler* profiler();
Profiler* profiler_of_process();  // that of HALIAX_PROFILE
// While one lives, this thread tells that one.
class Profiling {
 public:
  explicit Profiling(Profiler*);
  ~Profiling();
  Profiling(const Profiling&) = delete;

 private:
  Profiler* before_;
};
// That of the scope, which a thread that works for this one is given. While there is one donated
// arguments stay.
Profiler* scoped_profiler();

// What a step reads and writes of memory, in bytes, each element once; of a loop: nothing.
struct Traffic {
  double read = 0, written = 0;
};
Traffic traffic_of(const program::Step&, const program::Program&);
// Adds what is not known yet, measured once in a process. dtype: of products; empty: memory alone.
void measure(MachineRates&, program::Device&, const std::string& dtype);
double bound_of(const ProfileCost&, const std::string& dtype, const MachineRates&);

}  // namespace haliax
