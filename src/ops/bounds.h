// Bounds of integer values that follow from the graph alone, such as those of positions.
#pragma once
#include <optional>

#include "graph/node.h"

namespace haliax::ops {

struct Bounds {
  std::int64_t low = 0, high = 0;  // inclusive
};
// Returns bounds of all elements of an integer array: of constants, positions, indices of loops,
// and sums, multiples and extremes of them. Nothing: no bounds are known.
std::optional<Bounds> bounds_of(NodeRef);

}  // namespace haliax::ops
