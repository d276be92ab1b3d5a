// The first positions of an ascending order, without a sort of the array.
#pragma once
#include "ops/prim.h"

namespace haliax::prim {

// Returns the first `count` positions of argsort(x, axis): the positions of the smallest elements,
// in ascending and stable order, with NaN last. The result has the axis with this size.
NodePtr first_positions(NodeRef x, Name axis, std::int64_t count);
extern const Op kFirstPositions;

}  // namespace haliax::prim
