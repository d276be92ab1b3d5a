// Compiling and running graphs: which backend, with what memory.
#pragma once
#include <string>

#include "program/program.h"
#include "transforms/lower.h"
#include "transforms/optimise.h"

namespace haliax {

program::Device& backend(const std::string& name);        // "cpu", "reference"; raises with the near name

struct Compiled {
  std::shared_ptr<const program::Program> program;
  std::unique_ptr<program::Executable> executable;
  Nodes captured;                                          // arrays of the graph, given after the inputs
};
// `executable` off: the program alone, planned for this backend.
Compiled compile(const Nodes& roots, const Nodes& inputs, const std::string& backend_name, const std::vector<bool>& donated, bool executable = true);

void evaluate(const Nodes& roots);                         // gives each of them a value
BufferPtr memory(std::int64_t bytes);                      // raises where there is not enough

}  // namespace haliax
