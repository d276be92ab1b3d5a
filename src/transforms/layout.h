// How values of our own lie in memory.
#pragma once
#include <unordered_map>

#include "graph/node.h"

namespace haliax {

// The order of axes in memory, outermost first, of those nodes for which it is not that of their axes. Users see the order of axes; where
// a value lies for nobody but us, matrix products decide: what only they and point-wise functions read lies matrix by matrix, the batch
// axes of the products first.
std::unordered_map<const Node*, Axes> layouts_of(const Nodes& roots, const std::vector<Nodes>& bodies);

}  // namespace haliax
