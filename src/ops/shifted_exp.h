// What softmax and logsumexp are made of, found again in a graph by the passes that know a better
// way to make it.
#pragma once
#include <optional>

#include "ops/prim.h"

namespace haliax::prim {

// exp(x - top), where top is the max of x over some of its axes; `guarded`: 0 in its place where
// that is infinite.
struct ShiftedExp {
  NodePtr x, top;
  bool guarded = false;
};
std::optional<ShiftedExp> shifted_exp(const Node&);
// The same values, without what changes neither them nor the greatest of them: a broadcast, a
// border.
const NodePtr& same_values(const NodePtr&);

}  // namespace haliax::prim
