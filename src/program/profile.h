// What a backend says while it runs, to who asks how long each step takes.
#pragma once
#include "program/program.h"

namespace haliax::program {

// Told on the thread that called run. The steps of a loop's body begin and end between begin and
// end of the loop, in each turn.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void begin(const Step&) = 0;
  // Of the step that began last and has not ended. made: the share of its product that is worth
  // making (Contract::Shown).
  virtual void end(const Step&, double computed_fraction) = 0;
  // Of a loop whose turns run side by side: who is told what a worker (0, 1, ...) runs of it, on
  // the worker's thread, until the loop ends. Asked for on this one's thread, before they begin.
  virtual Recorder& for_worker(int worker) = 0;
};
// An Executable that can say so is this too. Of one that cannot a run is timed as a whole.
class Recordable {
 public:
  virtual ~Recordable() = default;
  // As Executable::run; the steps are those of the Program that was compiled. run itself must cost
  // no more for it.
  virtual void run(const std::vector<void*>& arguments, const std::vector<void*>& results,
                   void* arena, Communicator*, Recorder&) = 0;
};

const char* name_of(Kind);  // fused, contract, ...
const char* name_of(Code);  // constant, load, ...

}  // namespace haliax::program
