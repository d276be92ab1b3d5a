// Helpers of transformations, which work on the leaves of trees.
#pragma once
#include "haliax/optim.h"

namespace haliax::optim::detail {

// Raises unless the trees have the same structure, and corresponding arrays the same axes.
void check_same(const Leaves& a, const char* what, const Leaves& b, const char* other);
// The same for states; also raises if an array has a gradient but no state.
void check_states(const Leaves& state, const char* what, const Leaves& grads);
// Returns the dtype to compute in. 16-bit results are then rounded once rather than at each op.
DType wide(DType d);
// Returns 1 / (1 - b^count), without a loss of precision for b close to 1.
NamedArray correction(double b, const NamedArray& count, DType d);

}  // namespace haliax::optim::detail
