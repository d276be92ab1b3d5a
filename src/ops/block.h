// An op on a block of its axes: a chunk or a tile, the shard of a device, one iteration of a loop.
#pragma once
#include <functional>
#include <unordered_map>

#include "ops/prim.h"

namespace haliax::prim {

// Returns the op on blocks of its operands. `axes` are those of the result. `blocks` are those of
// the axes that the op indexes (rule `pick`), or of the axes of a leaf; other axes need none.
NodePtr on_block(const Node&, Nodes in, const Axes& axes, const std::vector<Block>& blocks);
// Returns `picked` where the ids of a gather are in range of the full axis, otherwise `outside`.
// `in` are the operands of the gather, with blocks of the ids. Returns `picked` for other ops.
NodePtr where_in_range(const Node& gather, const Nodes& in, NodeRef picked, NodeRef outside);

// Returns a block of a value: a position counts from the start of its block, and any other value is
// sliced. Blocks of axes that the value lacks are ignored.
NodePtr block_of(NodeRef, std::vector<Block>);
// Returns the value of a slice of `joined` without the join, if it reads within one operand of a
// concatenation or within an array that is placed among zeros; else null.
NodePtr slice_of_segment(const Node& slice, NodeRef joined);

// As block_of, but a `recomputed` node becomes the op on blocks of its operands.
class Blocks {
 public:
  explicit Blocks(std::function<bool(NodeRef)> recomputed) : recomputed_(std::move(recomputed)) {}
  NodePtr operator()(NodeRef, std::vector<Block>);

 private:
  NodePtr recompute(NodeRef, const std::vector<Block>&);
  std::function<bool(NodeRef)> recomputed_;
  // A node may be read under several names of an axis.
  std::unordered_map<const Node*, std::vector<std::pair<std::vector<Block>, NodePtr>>> known_;
};

}  // namespace haliax::prim
