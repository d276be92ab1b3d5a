// Loop results that are carried from tile to tile: a running max with the sums that it scales,
// the state of a loop along the axis, and the state of a block scan.
#include <algorithm>
#include <cmath>

#include "compile/analysis/softmax.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/chunk/region_loops.h"

namespace haliax {
namespace {

// Returns the shift s of exp(x - s): the max, or 0 where the max is not finite.
NodePtr shift_of(const NodePtr& top) {
  return prim::select(prim::map(prim::kIsFinite, {top}, DType::boolean), top,
                      prim::number(0, top->dtype));
}
// Returns a loop result that is carried between iterations, with this initial value and no values.
LoopResult carried(Monoid m, const NodePtr& start, const NodePtr& index) {
  return {ResultKind::carry, m, {}, start, prim::carry(index, start->axes, start->dtype)};
}

}  // namespace

// Returns a loop along the axis on one tile. It starts from the final state of the previous tile.
// For example, a scan over 10 positions in tiles of 4 becomes an outer loop over the tiles at 0
// and 4, which scans 4 positions per iteration, and a remainder at 8, which scans 2 positions.
NodePtr RegionLoops::loop_along_axis_on_tile(const NodePtr& n, std::size_t b) {
  Loop l = loop_of(*n);
  auto& old = l.index[0];
  l.axis.size = prim::index_chunk(*index_[b]);
  auto index = prim::index(l.axis, 0, 1, IndexAttr::of(*old).depth, IndexAttr::of(*old).origin);
  Rewrite to{{old.get(), prim::add(index_[b], index)}};
  for (auto& x : inputs_of(l).slices)
    to[prim::slice_at(x, old, true).get()] =
        prim::slice_at(tile_of(x, l.axis.name, b), index, true);
  auto& states = tiles_[n.get()].carried;
  bool first = states.empty();
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    if (first)
      states.push_back(r.carry ? prim::carry(index_[0], r.carry->axes, r.carry->dtype) : nullptr);
    r.start = states[k];
    if (r.carry) r.carry = to[r.carry.get()] = prim::carry(index, r.carry->axes, r.carry->dtype);
  }
  for (auto& r : l.results) r.value = substitute(r.value, to, old.get());
  l.index = {index};
  return make_loop(std::move(l));
}
void RegionLoops::add_loop_state(Loop& out, Nodes& nodes, const NodePtr& n) {
  auto& l = loop_of(*n);
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    if (!r.carry) continue;
    LoopResult state{ResultKind::carry, r.monoid, {}, r.start, tiles_of(*n).carried[k]};
    for (auto& tile : tiles_of(*n).values) state.value.push_back(loop_result(tile, k));
    auto last = loop_result(n, k);
    out.results.push_back(std::move(state));
    nodes.push_back(members_.contains(last) ? last : nullptr);
  }
}

struct RegionLoops::RunningMax {
  std::size_t body;
  NodePtr shift, hidden;  // the shift by the running max; a flag: the running max is -inf
};

// Returns n, which is linear in exp(x - top), on a tile, with the shift of the running max in
// place of the final shift.
NodePtr RegionLoops::with_running_shift(const NodePtr& n, const Node* top,
                                        const RunningMax& running, bool drops_nan, Memo& memo) {
  const auto b = running.body;
  auto& sums = passes_.order_of(*top).rescaled;
  bool is_rescaled = std::find(sums.begin(), sums.end(), n) != sums.end();
  auto& s = passes_.order_of(*n).streamed;
  auto a = members_.name_in(*n);
  if (!is_rescaled && s.top != top) return tile_of(n, a, b);
  if (auto known = memo.find(n.get()); known != memo.end()) return known->second;
  auto axes_of_tile = [&](const Node& x) { return axes_on_tile(x.axes, a, b); };
  NodePtr out;
  if (analysis::shifted_exp(*n)) {
    auto& sub = n->in[0];
    auto shifted =
        prim::rebuilt(*sub, {tile_of(sub->in[0], a, b), running.shift}, axes_of_tile(*sub));
    out = prim::rebuilt(*n, {shifted}, axes_of_tile(*n));
    if (drops_nan) out = prim::select(running.hidden, prim::number(std::nan(""), n->dtype), out);
  } else {
    Nodes in;
    for (auto& x : n->in)
      in.push_back(passes_.order_of(*x).streamed.top
                       ? with_running_shift(x, top, running, drops_nan, memo)
                       : tile_of(x, a, b));
    out = prim::rebuilt(*n, std::move(in), axes_of_tile(*n));
  }
  return memo[n.get()] = out;
}

// Adds the running max, and the sums that are linear in exp(x - max), to the results of a loop.
// Each iteration computes, with m the max so far and m' the max including this tile:
//
//     sum' = sum * exp(m - m') + sum over the tile of exp(x - m')
//
// While m' is -inf, exp(x - m') is NaN without a guard. It is computed as 0 instead, and the final
// sum becomes NaN if the max is still not finite (see final_value). If a select may drop the NaN
// (`drops_nan`), the exponential is NaN during the loop as well, and the sum restarts at 0 in the
// iteration in which the max first exceeds -inf.
void RegionLoops::add_running_max(Loop& l, Nodes& nodes, const NodePtr& top) {
  auto& rescaled = passes_.order_of(*top).rescaled;
  auto d = top->dtype;
  auto least = prim::extreme(d, false);
  auto max = carried(Monoid::max, prim::fit(least, top->axes), index_[0]);
  auto& previous = max.carry;
  std::vector<LoopResult> sums;
  for (auto& n : rescaled)
    sums.push_back(carried(Monoid::sum, prim::filled(0, widened(n)->dtype, n->axes), index_[0]));
  for (std::size_t b = 0; b < index_.size(); ++b) {
    auto now = prim::max(previous, node_on_tile(top, members_.name_in(*top), b));
    auto shift = shift_of(now);
    const RunningMax running{b, shift, prim::equal(now, least)};
    auto is_initial = prim::equal(previous, least);
    // The max exceeds -inf for the first time.
    auto first_finite =
        prim::map(prim::kBitAnd, {is_initial, prim::logical_not(running.hidden)}, DType::boolean);
    // The scale is 1 as long as the max before this tile is -inf.
    auto scale = prim::exp(prim::sub(prim::select(is_initial, shift, shift_of(previous)), shift));
    max.value.push_back(now);
    Memo memo[2];  // by `drops_nan`
    for (std::size_t k = 0; k < rescaled.size(); ++k) {
      auto& n = rescaled[k];
      const bool drops_nan = passes_.streamed(n).drops_nan;
      auto more = widened(with_running_shift(n, top.get(), running, drops_nan, memo[drops_nan]));
      auto start = sums[k].carry;
      if (drops_nan)
        start = prim::map(prim::kSelect, {first_finite, prim::number(0, more->dtype), start},
                          more->dtype, &n->axes);
      auto old =
          prim::build(prim::kMul, {start, prim::cast(scale, more->dtype)}, n->axes, more->dtype);
      sums[k].value.push_back(prim::build(prim::kAdd, {old, more}, n->axes, more->dtype));
    }
  }
  l.results.push_back(std::move(max));
  nodes.push_back(top);
  for (std::size_t k = 0; k < rescaled.size(); ++k) {
    l.results.push_back(std::move(sums[k]));
    nodes.push_back(rescaled[k]);
  }
}

// Returns the state of a block scan as loop results that are carried from tile to tile.
std::vector<LoopResult> RegionLoops::initial_state(const BlockScan& t) const {
  std::vector<LoopResult> out;
  for (auto& x : t.start) out.push_back(carried(Monoid::sum, x, index_[0]));
  return out;
}
// Appends the state after an iteration of body b to `state`. Returns the last node of
// BlockScan::next: for a running scan, the block of the value.
NodePtr RegionLoops::scan_iteration(const BlockScan& t, std::vector<LoopResult>& state,
                                    std::size_t b, bool reverse) {
  Nodes before, blocks;
  for (auto& r : state) before.push_back(r.carry);
  for (auto& x : t.reads) blocks.push_back(tile_of(x, t.axis, b));
  auto now = t.next(before, blocks, {t.axis, index_[b], prim::index_chunk(*index_[b])}, reverse);
  for (std::size_t k = 0; k < state.size(); ++k) state[k].value.push_back(now[k]);
  return now.back();
}
NodePtr RegionLoops::running_scan_on_tile(const NodePtr& n, std::size_t b) {
  auto& t = *members_.scan_of(*n);
  auto& state = tiles_[n.get()].state;
  if (state.empty()) state = initial_state(t);
  return scan_iteration(t, state, b, *t.reverse);
}
void RegionLoops::add_scan_results(Loop& l, Nodes& nodes, const NodePtr& n) {
  auto& gathers = passes_.order_of(*n).gathers;
  auto& t = reduced_scans_.emplace_back(*n->op->block_scan(n, gathers));
  auto state = initial_state(t);
  for (std::size_t b = 0; b < index_.size(); ++b) scan_iteration(t, state, b, l.reverse);
  for (std::size_t k = 0; k < state.size(); ++k) {
    l.results.push_back(std::move(state[k]));
    nodes.push_back(k < t.value ? nullptr : k == t.value ? n : gathers[k - t.value - 1]);
  }
}

}  // namespace haliax
