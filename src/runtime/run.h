// Compiles and runs graphs on a backend.
//
// The main files of this folder: run (one device), mesh_run (one Program per device), jit,
// jit_cache and jit_run (calls of a function), and evaluate (reads outside of `jit`), with
// eval_cache (its Programs) and eager_cache_policy (the intermediates whose values are cached).
#pragma once
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

}  // namespace haliax
