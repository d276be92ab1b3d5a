// Memory layout of intermediates.
//
// Always  arguments, results, start values of carries and operands of steps are stored in the order
//         of their axes.
#pragma once
#include <unordered_map>

#include "graph/loop.h"

namespace haliax {

// The order of axes in memory, outermost first, of the nodes whose order differs from the order of
// their axes. Users see the order of `axes()`. The layout of an intermediate follows from the
// matmuls that read it: a value that only matmuls and elementwise functions read is stored matrix
// by matrix, with the batch axes of the matmuls first. A mask has the order of its first operand
// that has all of its axes.
using Layouts = std::unordered_map<const Node*, Axes>;
Layouts layouts_of(const Nodes& roots);

// Returns all nodes that are computed, including the nodes of loop bodies, inputs first. Operands
// of a node that has a value already are not included.
Nodes all_computed(const Nodes& roots);

}  // namespace haliax
