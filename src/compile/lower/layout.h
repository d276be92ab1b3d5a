// How values of our own lie in memory. Always: arguments, results, what carries start from and what
// steps read lie in the order of their axes.
#pragma once
#include <unordered_map>

#include "graph/loop.h"

namespace haliax {

// The order of axes in memory, outermost first, of those nodes for which it is not that of their
// axes. Users see the order of axes; where a value lies for nobody but us, matrix products decide:
// what only they and point-wise functions read lies matrix by matrix, the batch axes of the
// products first.
using Layouts = std::unordered_map<const Node*, Axes>;
Layouts layouts_of(const Nodes& roots);

// All nodes, those of bodies included, inputs first; what a value was computed from is no part of
// them.
Nodes all_computed(const Nodes& roots);

}  // namespace haliax
