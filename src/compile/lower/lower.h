// Lowering: translates the graph of one device into a Program. Units become steps, values become
// slots, and loops become steps that contain steps.
//
// The files, in order:
//
// - rewrites.h, masked_matmuls.h: passes that prepare the graph. level_graph.h is their helper.
// - layout.h: the memory layout of values.
// - fuse.h: the units of a scope (fuse.cpp) and their order (schedule.cpp).
// - lowering.h: units to steps. loop.cpp lowers loops.
// - kernel.h: one unit to one fused step.
//
// Two analyses are arguments of `lower`: `split_iterations` (early_exit.h) finds the parts of
// iterations that may be skipped, and `layouts_of` (layout.h) chooses the memory layout of values.
//
// In      a graph without region boundaries and tracers (other wraps, such as barriers, are lowered
//         as the value that they wrap); placeholders of the arguments.
// Out     a Program whose slots have no offsets yet.
// Always  a scope (the top, or a body of a loop) is fused into units, and the units are scheduled
//         so that little memory is live. Each unit is written as one step (single), one fused step
//         (kernel) or a copy. A step reads only values that an earlier step of its scope or of an
//         enclosing scope wrote. Results and stacks are written directly to their final location.
//         The Program contains no axes, names or ops.
#pragma once
#include "compile/loops/early_exit.h"
#include "compile/lower/layout.h"
#include "program/program.h"

namespace haliax {

struct LowerOptions {
  bool fuse = true;       // false: each node is a step of its own, in creation order
  int row_alignment = 1;  // in bytes
};
struct Lowered {
  std::shared_ptr<program::Program> program;  // without offsets, scratch and shared memory
  Nodes captured;  // arrays that the graph captured: arguments of the Program, after the inputs
};
// Lowers `roots`. `inputs`: the placeholders, in the order in which their values will be passed.
Lowered lower(const Nodes& roots, const Nodes& inputs, const LowerOptions&, const Layouts&,
              const IterationParts& = {});
// Sets the scratch size of each step and checks that the device supports each step. `workers`:
// number of threads; 0: all.
void query_scratch(program::Program&, program::Device&, int workers);

}  // namespace haliax
