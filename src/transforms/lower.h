// From the graph to a Program: units to steps, values to slots, loops to steps that hold steps.
#pragma once
#include <optional>

#include "graph/loop.h"
#include "program/program.h"

namespace haliax {

struct LowerOptions {
  bool fuse = true;                          // off: every node is a step of its own, in the order in which they were made
  std::vector<bool> donated = {};            // by argument
  int workers = 0;                           // scratch is planned for so many threads; 0: as many as there are
};
struct Lowered {
  std::shared_ptr<program::Program> program;
  Nodes arguments;                           // the inputs given, then the arrays that the graph captured
  double spared = 0;                         // of the multiplications that the graph asks for, the share that `stashed` spares
};
// `inputs`: placeholders, in the order in which values will be given.
Lowered lower(const Nodes& roots, const Nodes& inputs, const LowerOptions& = {}, program::Device* device = nullptr);

// Where everything lies: in-place updates, donated arguments, and offsets in one arena.
void plan(program::Program&, const std::vector<bool>& donated, bool reuse);
// The program with products kept from loop to loop in memory that lies idle, where there are any; before `plan`.
std::optional<program::Program> stashed(const program::Program&);
// Raises if a value that other devices sent (Slot::gathered) is kept: as a result, as the carry of a loop, or by a loop for later.
void check_scratch(const program::Program&);

double identity(program::Monoid, DType);    // what a fold starts from
double multiplications(const std::vector<program::Step>&);   // of contractions, turn by turn
int count_contractions(const std::vector<program::Step>&, bool in_loops_once = true);   // for tests and reports

}  // namespace haliax
