// Compiling and running graphs: which backend, with what memory.
#pragma once
#include <string>

#include "compile/pipeline.h"

namespace haliax {

program::Device& backend(const std::string& name);        // "cpu", "reference"; raises with the near name

struct Compiled {
  std::shared_ptr<const program::Program> program;
  std::unique_ptr<program::Executable> executable;
  Nodes captured;                                          // arrays of the graph, given after the inputs
};
// For one device, all stages.
Compiled compile(const Nodes& roots, const std::string& backend_name);
CompileOptions options_for(const std::string& backend_name);
// The last stages, and what runs it. `executable` off: the Program alone, planned for this backend.
Compiled finish(Compilation&, const std::string& backend_name, bool executable = true);

void evaluate(const Nodes& roots);                         // gives each of them a value
BufferPtr memory(std::int64_t bytes);                      // raises where there is not enough

}  // namespace haliax
