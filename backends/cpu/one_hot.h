// Code that matters at one point of a row only.
#pragma once
#include "program/program.h"

namespace haliax::cpu {

// Rewrites, along dimension `dim` of the step,
//   sum(select(id == iota, x, 0))    to pick: reduce_sum of {x, id}, the x at that point;
//   y +- select(id == iota, c, 0)    to poke: add or sub of {y, c, id}, y but for that point.
// id and c do not vary along dim; Instr::dim says which instruction is the iota. The planner of
// this backend alone knows these two.
program::Fused with_element_ops(const program::Fused&, int dim);
inline std::int64_t stride_of(const program::Instr& i, std::size_t dim) {
  return dim < i.view.strides.size() ? i.view.strides[dim] : 0;
}
inline bool is_element_op(const program::Instr& i) {
  return i.code != program::Code::iota && i.dim >= 0;
}

}  // namespace haliax::cpu
