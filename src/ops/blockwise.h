// Ops that need a whole axis, said in terms of ops that need only a block of it: each block is
// ordered or summed by itself, and what is left to do is small.
#pragma once
#include <functional>

#include "ops/prim.h"

namespace haliax::prim {

// bytes that are sent about as fast as nothing: not worth another way or call
constexpr std::int64_t kNegligibleBytes = 64 * 1024;

// What Op::by_blocks of these ops is.
NodePtr cumulative_blockwise(const NodePtr&, Name axis, int blocks);
NodePtr extreme_blockwise(const NodePtr&, Name axis, int blocks);  // argmax, argmin
NodePtr sort_blockwise(const NodePtr&, Name axis, int blocks);     // sort, argsort
// the first of an argsort; one position; from an unknown start
NodePtr slice_blockwise(const NodePtr&, Name axis, int blocks);
NodePtr place_blockwise(const NodePtr&, Name axis, int blocks);  // of one position
// what stands there; ids that have the axis
NodePtr gather_blockwise(const NodePtr&, Name axis, int blocks);
NodePtr scatter_blockwise(const NodePtr&, Name axis, int blocks);  // likewise

// The op's own way, due to the op: its axes are the op's.
NodePtr blockwise(const NodePtr&, Name axis, int blocks);
bool sends_least_blockwise(
    const Node&);               // do its blocks send less to each other than any other way does?
bool is_top_k(const Node&);     // the first of an argsort
bool picks_top_k(const Node&);  // what stands there
const char* user_name(const Node&);  // cumsum, top_k, roll: what users call it
bool picks_in_order(const Node&);    // likewise, or at all of an argsort
// The one value of which this is made point by point, if it is no larger; or itself. Nothing is
// looked for below where it `ends`.
NodePtr pointwise_source(
    const NodePtr&,
    const std::function<bool(const Node&)>& ends = [](const Node&) { return false; });

// What Op::on_block and Op::found of gather and scatter are: ids count from a block's start, and
// what lies in other blocks is nothing here.
NodePtr gather_on_block(const Node&, Nodes in, const Axes&, const std::vector<Block>&);
NodePtr scatter_on_block(const Node&, Nodes in, const Axes&, const std::vector<Block>&);
NodePtr gather_in_range(const Node&, const Nodes& in);

}  // namespace haliax::prim
