// From the graph of one device to a Program: units to steps, values to slots, loops to steps that
// hold steps.
//
// Passes prepare it, on that graph: batch_loops, softmax_matmuls and row_dots, below,
// masked_matmuls (masked.h), and those whose findings `lower` is given: early_exit (loops.h) says
// which parts of turns may be left out, `layout` (layout.h) how values lie.
//
// In: a graph without borders and tracers (other wraps, such as barriers, are lowered as what they
// wrap); inputs that stand for arguments. Out: a Program whose slots have no place yet. Always: a
// scope (the top, or a body of a loop) is fused into units, the units are scheduled so that little
// is live, and each is written as a step (single), one fused step (kernel) or a copy; what is read
// from memory was written by an earlier step of its scope or of one around it; results and stacks
// are written where they will lie; no axis, name or op is left.
#pragma once
#include "compile/loops/loops.h"
#include "compile/lower/layout.h"
#include "program/program.h"

namespace haliax {

// products of a softmax, made of what it divides: the same values, up to rounding
Nodes softmax_matmuls(const Nodes& roots);
// products of row with row, as products point by point that are summed
Nodes row_dots(const Nodes& roots);
struct BatchLimits {
  double max_parallel_slot_bytes =
      0;  // bytes: a turn's product has half of it, or not more than twice as much
  std::int64_t min_iterations = 12;  // at least: with fewer, threads would wait
  // multiplications of a turn's product, at least: small ones are faster in one step
  double min_multiplications = 1 << 16;
};
// Batched products whose results others read matrix by matrix, as loops over the batch: the same
// values, up to rounding.
Nodes batch_loops(const Nodes& roots, const BatchLimits&);

struct LowerOptions {
  bool fuse = true;  // off: every node is a step of its own, in the order in which they were made
  int row = 1;       // program::Machine
};
struct Lowered {
  std::shared_ptr<program::Program> program;  // without offsets, scratch and shared memory
  Nodes captured;  // arrays of the graph: arguments of the Program, after the inputs
};
// `inputs`: placeholders, in the order in which values will be given.
Lowered lower(const Nodes& roots, const Nodes& inputs, const LowerOptions&, const Layouts&,
              const IterationParts& = {});
// what each step wants; workers 0: as many as there are
void query_scratch(program::Program&, program::Device&, int workers);

}  // namespace haliax
