// Ops that need a full axis, rewritten as ops that need only blocks of it: each block is sorted or
// summed separately, and a small computation combines the blocks. On a mesh, a block is the shard
// of a device.
#pragma once
#include <functional>

#include "ops/prim.h"

namespace haliax::prim {

// Bytes below which the latency of a collective dominates: a different algorithm or a further
// collective does not pay.
constexpr std::int64_t kNegligibleBytes = 64 * 1024;

// Implementations of Op::blockwise. `blocks`: the number of blocks of the axis. Null: the op has no
// blockwise form here.
NodePtr cumulative_blockwise(NodeRef, Name axis, int blocks);
NodePtr extreme_blockwise(NodeRef, Name axis, int blocks);  // for argmax and argmin
NodePtr sort_blockwise(NodeRef, Name axis, int blocks);     // for sort and argsort
// For slices: the first positions of an argsort, a single position, or a dynamic start.
NodePtr slice_blockwise(NodeRef, Name axis, int blocks);
NodePtr place_blockwise(NodeRef, Name axis, int blocks);  // for a single position
// For gathers: at the positions of a top_k, in an order of the full axis, or with ids that have the
// axis.
NodePtr gather_blockwise(NodeRef, Name axis, int blocks);
// For scatters with ids that have the axis.
NodePtr scatter_blockwise(NodeRef, Name axis, int blocks);

// Returns Op::blockwise of the node, with its axes and its origin. Null: there is no blockwise
// form.
NodePtr blockwise(NodeRef, Name axis, int blocks);
// Returns true if the blockwise form communicates less than any other way to compute the op.
bool sends_least_blockwise(const Node&);
bool is_top_k(const Node&);          // true for the first positions of an argsort
bool picks_top_k(const Node&);       // true for a gather at the positions of a top_k
const char* user_name(const Node&);  // the public name of the op: cumsum, top_k, roll
bool picks_in_order(const Node&);  // true for a gather at the positions of a top_k or of an argsort
// Returns the one node from which `n` is computed elementwise, if its dtype is no larger; otherwise
// `n`. The search does not pass nodes for which `ends` is true.
NodePtr pointwise_source(
    NodeRef, const std::function<bool(const Node&)>& ends = [](const Node&) { return false; });

// Implementations of Op::on_block and Op::in_range for gather and scatter. Ids count from the start
// of a block, and ids of other blocks have no effect.
NodePtr gather_on_block(const Node&, Nodes in, const Axes&, const std::vector<Block>&);
NodePtr scatter_on_block(const Node&, Nodes in, const Axes&, const std::vector<Block>&);
NodePtr gather_in_range(const Node&, const Nodes& in);

}  // namespace haliax::prim
