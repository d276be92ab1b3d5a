// Plan: one-hot sums and updates of a fused step, as accesses to one element of a row.
#pragma once
#include "program/program.h"

namespace haliax::cpu {

// Rewrites, along dimension `dim` of the step,
//   sum(select(id == iota, x, 0))    to pick: reduce_sum with args {x, id}, which returns x[id];
//   y +- select(id == iota, c, 0)    to poke: add or sub with args {y, c, id}, which returns y with
//                                    y[id] +- c at position id.
// id and c do not vary along dim. In a pick or a poke, Instr::dim is the index of the iota
// instruction. Only the planner of the CPU backend supports these two forms.
program::Fused with_element_ops(const program::Fused&, int dim);
// Returns the stride of a view along a dim, or 0 if the view lacks the dim.
inline std::int64_t stride_of(const program::Instr& i, std::size_t dim) {
  return dim < i.view.strides.size() ? i.view.strides[dim] : 0;
}
// Returns true if the instruction is a pick or a poke.
inline bool is_element_op(const program::Instr& i) {
  return i.code != program::Code::iota && i.dim >= 0;
}

}  // namespace haliax::cpu
