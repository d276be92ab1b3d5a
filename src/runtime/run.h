// Compiles and runs graphs on a backend.
#pragma once
#include <optional>
#include <string>

#include "compile/pipeline.h"
#include "devices/backends.h"
#include "runtime/compiled.h"

namespace haliax {

// Compiles for one device, in all stages. Copies the graph below the roots.
Compiled compile(const Nodes& roots, const std::string& backend_name);
// Returns the options for a backend. called: a description of the caller, for errors that are
// raised while the Program runs.
CompileOptions options_for(const std::string& backend_name, std::string called);
// Runs the last stages and compiles the executable. `executable` false: only plans the Program for
// this backend.
Compiled finish(Compilation&, const std::string& backend_name, bool executable = true);

// The address of an argument in device memory, and the buffer that owns it. Null owner: the memory
// is owned elsewhere.
struct ArgumentValue {
  BufferPtr owner;
  void* data = nullptr;
};
// Runs a Program with the arguments, followed by its captured arrays. Results get memory of their
// own, or the memory of the donated argument that they replace. Thread-safe. `began`: set to true
// after all memory is allocated, just before the first step.
std::vector<BufferPtr> call(const Compiled&, const std::vector<ArgumentValue>&,
                            program::Communicator*, bool* began = nullptr);

// Computes the values of the nodes (evaluate.cpp). Waits for nodes that other threads are
// computing.
void evaluate(const Nodes& roots);

// The function or the loop in which an array without a value has one: a traced function, or a
// `vmap` whose hidden axis the array has.
struct Tracer {
  std::string inside;           // "jit (train.cpp:12)", "vmap over batch (train.cpp:12)"
  bool has_ended = false;       // the trace of that function has ended
  bool has_shape_only = false;  // created by `eval_shape`, so that no function has a value for it
  std::uint64_t last = 0;       // id of the newest node that was created in it; 0: not known
};
std::optional<Tracer> tracer_below(const NodePtr&);  // the tracer that the array depends on, if any
// Raises if a root depends on tracers. `nodes`: all nodes that the roots depend on, down to nodes
// with values. Requires a GraphReader.
void require_values(const Nodes& roots, const std::vector<const Node*>& nodes);
// Raises if a root depends on a tracer of another trace than the inputs.
void refuse_tracers(const Nodes& roots, const Nodes& inputs);

}  // namespace haliax
