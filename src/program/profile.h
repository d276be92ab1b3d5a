// The interface between a backend and a profile: the time of each step.
#pragma once
#include "program/program.h"

namespace haliax::program {

// Receives the begin and end of each step, on the thread that called Executable::run. The steps of
// a loop body are recorded between the begin and the end of the loop, in each iteration.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void begin(const Step&) = 0;
  // Ends the innermost step that has begun. `computed_fraction` is the part of its matmul that was
  // computed (Contract::BlockMask), from 0 to 1.
  virtual void end(const Step&, double computed_fraction) = 0;
  // Returns the recorder of one worker (0, 1, ...) of a loop with parallel slots. It is used on the
  // thread of the worker until the loop ends. Called on the thread of this recorder before the
  // workers start.
  virtual Recorder& for_worker(int worker) = 0;
};
// An Executable that supports recording derives from this class too. A run of any other Executable
// is timed as one unit.
class Recordable {
 public:
  virtual ~Recordable() = default;
  // The same as Executable::run, with a recorder. The steps are those of the compiled Program.
  // Recording must not slow down Executable::run.
  virtual void run(const std::vector<void*>& arguments, const std::vector<void*>& results,
                   void* arena, Communicator*, Recorder&) = 0;
};

const char* name_of(Kind);  // fused, contract, ...
const char* name_of(Code);  // constant, load, ...

}  // namespace haliax::program
