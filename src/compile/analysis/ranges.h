// Ranges of values on blocks of axes, as nodes that compute them at run time.
#pragma once
#include <optional>

#include "ops/prim.h"

namespace haliax::analysis {

// An axis in blocks of `block` positions. The last block may be shorter.
struct AxisBlocks {
  Axis axis;
  std::int64_t block = 1;
  Axis blocks() const;  // the axis of the blocks, such as "(blocks of 32 k)"
};

// Returns a flag per block of these axes: false only if the mask is false in the entire block. The
// flags lack all other axes. They are computed from comparisons of positions and of ids along one
// axis, without the mask. Null: there are no cheap flags.
NodePtr may_be_true(const NodePtr& mask, const std::vector<AxisBlocks>&);

// The least and the largest value in each block, in i64. The only axes are those of blocks.
struct IntegerRange {
  NodePtr low, high;
};
// Nothing: the range is not known.
std::optional<IntegerRange> integer_range(const NodePtr&, const std::vector<AxisBlocks>&);

}  // namespace haliax::analysis
