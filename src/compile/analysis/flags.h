// Flags: bool values that a pass creates, and that decide at run time whether work is skipped.
#pragma once
#include "ops/prim.h"

namespace haliax::analysis {

// Returns a flag that is true if `flag` is, or if one of the conditions is false at any position.
NodePtr flag_or_not_all(const NodePtr& flag, const Nodes& conditions);
// Returns the conjunction of two flags. The first may be null.
NodePtr both_flags(const NodePtr& flag, const NodePtr& more);
// Returns a mask with the axes of both: true where `next`, which is computed from `before`, is
// certainly equal to it. Adding 0, multiplying by 1 and a maximum with a smaller value are found.
NodePtr unchanged_flag(const NodePtr& next, const NodePtr& before);

}  // namespace haliax::analysis
