// Compiling and running graphs: which backend, with what memory.
#pragma once
#include <optional>
#include <string>

#include "compile/pipeline.h"
#include "devices/backends.h"
#include "runtime/compiled.h"

namespace haliax {

// For one device, all stages. The graph below the roots is copied.
Compiled compile(const Nodes& roots, const std::string& backend_name);
// called: what will run it, as errors that are found late name it.
CompileOptions options_for(const std::string& backend_name, std::string called);
// The last stages, and what runs it. `executable` off: the Program alone, planned for this backend.
Compiled finish(Compilation&, const std::string& backend_name, bool executable = true);

// An argument: where it lies in the device's memory, and what keeps it there (null: somebody else).
struct ArgumentValue {
  BufferPtr owner;
  void* data = nullptr;
};
// Runs it: the arguments, then what it captured; results get memory of their own, or that of the
// argument they take over. Several threads may run one at once. `began`: becomes true when there is
// memory for all, and the first step is next.
std::vector<BufferPtr> call(const Compiled&, const std::vector<ArgumentValue>&,
                            program::Communicator*, bool* began = nullptr);

// Gives each of them a value (evaluate.cpp). What other threads are computing is waited for.
void evaluate(const Nodes& roots);

// An argument of a function that is traced, or was, or the axis that a vmap hides: what has a value
// inside of it alone.
struct Tracer {
  std::string inside;      // jit (train.cpp:12), vmap over batch (train.cpp:12)
  bool left = false;       // that function, which is traced no longer
  bool shape = false;      // made by eval_shape: no function has a value for it
  std::uint64_t last = 0;  // the newest node that was made in it; 0: not known
};
std::optional<Tracer> tracer_below(const NodePtr&);  // of which the array is made, if of any
// Raises for a root that is made of tracers. `nodes`: all that the roots are made of, down to
// values. In a GraphReader.
void require_values(const Nodes& roots, const std::vector<const Node*>& nodes);
// raises for those of another trace than the inputs'
void refuse_tracers(const Nodes& roots, const Nodes& inputs);

}  // namespace haliax
