// Sorts, permutations and rolls of an axis that is split into blocks: all elements move, and each
// block receives as many as it sends. On a mesh, a block is the shard of a device.
#pragma once
#include "ops/prim.h"

namespace haliax::prim {

// An axis split into `count` blocks of `step` positions.
struct SplitAxis {
  Name axis, blocks;
  std::int64_t size, count, step;  // size of the axis; number of blocks; positions per block
  SplitAxis(const Axis& a, int n)
      : axis(a.name), blocks("(blocks of " + std::string(a.name.text()) + ")"), size(a.size),
        count(n), step((a.size + n - 1) / n) {}
  // (..., axis) -> (..., blocks, axis). The end of the last block is filled with `fill`.
  NodePtr blocked(NodeRef x, NodeRef fill) const {
    auto padded = count * step == size ? x : pad(x, axis, 0, count * step - size, fill);
    return unflatten(padded, axis, {Axis(blocks, count), Axis(axis, step)});
  }
  NodePtr joined(NodeRef x) const {
    auto inner = find(*x, axis)->size;
    return flatten(x, {blocks, axis}, Axis(axis, count * inner));
  }
};

NodePtr last_of(DType);  // returns the value that a sort places last

// Returns a sort or argsort of the full axis. Null: another axis has enough positions to be sharded
// instead, or the blocks are too small.
NodePtr sort_in_blocks(NodeRef, Name axis, int blocks);

// Returns true if the ids are a permutation of all positions of the axis.
bool is_order(const Node& ids, Name axis);
// Returns true if the ids have the form that `random::permutation` creates.
bool is_drawn_order(const Node& ids, Name axis);
// Returns a gather along a permutation (`is_order`). Null: the blocks are too small.
NodePtr permute_in_blocks(NodeRef, Name axis, int blocks);

// Returns the ids of a roll: (position - by) mod size. by: from 0 to the size of the axis.
NodePtr rolled_ids(const Axis&, NodeRef by);
// Returns `by` if the ids of the gather are `rolled_ids`. Null: another form.
NodePtr rolled_by(const Node&, Name axis);
// Returns a roll (`rolled_by`). Null: the blocks are too small.
NodePtr roll_in_blocks(NodeRef, Name axis, int blocks);

}  // namespace haliax::prim
