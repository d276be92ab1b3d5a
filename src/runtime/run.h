// Compiling and running graphs: which backend, with what memory.
#pragma once
#include <string>

#include "base/idle.h"
#include "compile/pipeline.h"

namespace haliax {

program::Device& backend(const std::string& name);        // "cpu", "reference"; raises with the near name

struct Compiled {
  std::shared_ptr<const program::Program> program;
  std::unique_ptr<program::Executable> executable;
  Nodes captured;                                          // arrays of the graph, given after the inputs
  mutable Idle<Buffer> arenas = {};                        // one for each call at a time
};
// For one device, all stages. The graph below the roots is copied.
Compiled compile(const Nodes& roots, const std::string& backend_name);
CompileOptions options_for(const std::string& backend_name);
// The last stages, and what runs it. `executable` off: the Program alone, planned for this backend.
Compiled finish(Compilation&, const std::string& backend_name, bool executable = true);

// An argument: where it lies, and what keeps it there (null: somebody else).
struct Given {
  BufferPtr keeps;
  std::byte* data = nullptr;
};
// Runs it: the arguments, then what it captured; results get memory of their own, or that of the argument they take over. Several
// threads may run one at once.
std::vector<BufferPtr> call(const Compiled&, const std::vector<Given>&, program::Communicator*);
BufferPtr copied(const Buffer&);

// Gives each of them a value (evaluate.cpp). What other threads are computing is waited for.
void evaluate(const Nodes& roots);
BufferPtr memory(std::int64_t bytes);                      // raises where there is not enough
std::unique_ptr<Buffer> arena(std::int64_t bytes);         // likewise

}  // namespace haliax
