// Masks that make values 0.
#pragma once
#include <unordered_map>

#include "graph/node.h"

namespace haliax::analysis {

// For each node of a level: masks such that the node is 0 everywhere if one of them is false
// everywhere. For example, the masks of `m1 * (m2 * x)` are m1 and m2, and the mask of
// `m1 * x + m2 * y` is `m1 | m2`.
class ZeroMasks {
 public:
  explicit ZeroMasks(const Nodes& level);  // operands first
  const Nodes& of(const NodePtr&) const;

 private:
  Nodes find(const NodePtr&) const;
  Nodes by_operands(const Node&) const;
  std::unordered_map<const Node*, Nodes> of_;
};

// Returns the masks of a sum of two values that have these masks.
Nodes masks_of_sum(const Nodes&, const Nodes&);
// Returns the mask with the fewest elements.
const NodePtr& smallest(const Nodes& masks);

}  // namespace haliax::analysis
