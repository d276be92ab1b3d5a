// Ops that need a full axis, computed in one pass over its blocks: a state is carried from block to
// block. Op::block_scan returns this form for chunked regions. Op::blockwise (blockwise.h) reduces
// over the results of all blocks instead, which suits a mesh, where all blocks exist at once; in
// chunks, each of its reductions would need a pass of its own.
#pragma once
#include <functional>
#include <optional>

#include "ops/prim.h"

namespace haliax {

struct BlockScan {
  Name axis = {};  // the axis of `reads` that the blocks split
  // Arrays of which each iteration receives a block. They need not be the operands of the op.
  Nodes reads = {};
  Nodes start = {};  // state before the first iteration
  // Index in the final state of the value of the op. The picked values follow it.
  std::size_t value = 0;
  // true: the value consists of blocks, one per iteration: the last node that `next` returns.
  bool running = false;
  // Axis name of the positions found so far in `start` and `next`. The op calls this axis `axis`.
  Name positions = {};
  std::optional<bool> reverse = {};  // last block first; none: any order
  std::function<Nodes(const Nodes& known, const Nodes& blocks, const Block&, bool reverse)> next =
      {};
};

namespace prim {

// Implementations of Op::block_scan, for argmax and argmin, for top_k (the first positions of an
// argsort), and for running sums. `picked`: gathers that read tables at the positions that the op
// finds.
std::optional<BlockScan> extreme_block_scan(NodeRef, const Nodes& picked);
std::optional<BlockScan> first_block_scan(NodeRef, const Nodes& picked);
std::optional<BlockScan> cumulative_block_scan(NodeRef, const Nodes& picked);

}  // namespace prim
}  // namespace haliax
