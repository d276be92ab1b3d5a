// Recognizes the shifted exponential of softmax and logsumexp in a graph. Used by passes that
// compute it in a cheaper way.
#pragma once
#include <optional>

#include "ops/prim.h"

namespace haliax::prim {

// exp(x - top), where top is the max of x over some of its axes. `guarded`: an infinite top is
// replaced by 0.
struct ShiftedExp {
  NodePtr x, top;
  bool guarded = false;
};
std::optional<ShiftedExp> shifted_exp(const Node&);
// Returns the operand below nodes that preserve the set of values, such as a broadcast or a region
// boundary.
const NodePtr& same_values(const NodePtr&);

}  // namespace haliax::prim
