// Recognizes the shifted exponential exp(x - max x) of softmax and logsumexp. Used by passes that
// compute it in a cheaper way.
#pragma once
#include <optional>

#include "ops/prim.h"

namespace haliax::analysis {

// exp(x - top), where top is the max of x over some of its axes. `guarded`: an infinite top is
// replaced by 0.
struct ShiftedExp {
  NodePtr x, top;
  bool guarded = false;
};
std::optional<ShiftedExp> shifted_exp(const Node&);
// Returns the same for e if `sum` is a sum of e.
std::optional<ShiftedExp> summed_shifted_exp(const Node& sum, const NodePtr& e);
// Returns the operand below nodes that preserve the set of values, such as a broadcast or a region
// boundary.
const NodePtr& same_values(const NodePtr&);

}  // namespace haliax::analysis
