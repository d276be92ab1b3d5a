// The instructions of fused steps as kernel source.
#pragma once
#include <string>

#include "kernel_source.h"
#include "program/fused.h"

namespace haliax::cuda {

// Returns true for expensive instructions, whose results are saved rather than recomputed.
bool is_long(program::Code);
// Returns the functor of kernel.h for a reduction, or for a store that combines with memory.
std::string fold_of(program::Code);
// Returns the expression of an instruction. Its operands are the variables x[0], x[1], ...; first:
// the dtype of x[0]. Not for leaves, reductions and stores.
std::string value_source(const program::Instr&, const std::string* x, DType first);

}  // namespace haliax::cuda
