// The results of a loop over tiles for a running max, and for the sums that it rescales.
#include "compile/chunk/running_max.h"

#include <cmath>

#include "compile/analysis/softmax.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// Returns the shift s of exp(x - s): the max, or 0 where the max is not finite.
NodePtr shift_of(const NodePtr& top) {
  return prim::select(prim::map(prim::kIsFinite, {top}, DType::boolean), top,
                      prim::number(0, top->dtype));
}

}  // namespace

// Returns n, which is linear in exp(x - top), on a tile, with the shift of the running max in
// place of the final shift.
NodePtr RunningMax::with_running_shift(const NodePtr& n, const Iteration& now, bool drops_nan,
                                       Memo& memo) {
  const auto b = now.body;
  const bool is_rescaled = holds(passes_.order_of(*top_).rescaled, n);
  auto& s = passes_.order_of(*n).streamed;
  auto a = members_.name_in(*n);
  if (!is_rescaled && s.top != top_.get()) return tiles_.tile_of(n, a, b);
  if (auto known = memo.find(n.get()); known != memo.end()) return known->second;
  auto axes_of_tile = [&](const Node& x) { return tiles_.axes_on_tile(x.axes, a, b); };
  NodePtr out;
  if (analysis::shifted_exp(*n)) {
    auto& sub = n->in[0];
    auto shifted =
        prim::rebuilt(*sub, {tiles_.tile_of(sub->in[0], a, b), now.shift}, axes_of_tile(*sub));
    out = prim::rebuilt(*n, {shifted}, axes_of_tile(*n));
    if (drops_nan) out = prim::select(now.hidden, prim::number(std::nan(""), n->dtype), out);
  } else {
    Nodes in;
    for (auto& x : n->in)
      in.push_back(passes_.order_of(*x).streamed.top ? with_running_shift(x, now, drops_nan, memo)
                                                     : tiles_.tile_of(x, a, b));
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
// sum becomes NaN if the max is still not finite (see RegionLoops::final_value). If a select may
// drop the NaN (`drops_nan`), the exponential is NaN during the loop as well, and the sum restarts
// at 0 in the iteration in which the max first exceeds -inf.
void RunningMax::add_to(Loop& l, Nodes& nodes) {
  auto& rescaled = passes_.order_of(*top_).rescaled;
  auto d = top_->dtype;
  auto least = prim::extreme(d, false);
  auto max = carried_result(Monoid::max, prim::fit(least, top_->axes), tiles_.index()[0]);
  auto& previous = max.carry;
  std::vector<LoopResult> sums;
  for (auto& n : rescaled)
    sums.push_back(carried_result(Monoid::sum, prim::filled(0, widened(n)->dtype, n->axes),
                                  tiles_.index()[0]));
  for (std::size_t b = 0; b < tiles_.index().size(); ++b) {
    auto now = prim::max(previous, tiles_.node_on_tile(top_, members_.name_in(*top_), b));
    auto shift = shift_of(now);
    const Iteration iteration{b, shift, prim::equal(now, least)};
    auto is_initial = prim::equal(previous, least);
    // The max exceeds -inf for the first time.
    auto first_finite = prim::both(is_initial, prim::logical_not(iteration.hidden));
    // The scale is 1 as long as the max before this tile is -inf.
    auto scale = prim::exp(prim::sub(prim::select(is_initial, shift, shift_of(previous)), shift));
    max.value.push_back(now);
    Memo memo[2];  // by `drops_nan`
    for (std::size_t k = 0; k < rescaled.size(); ++k) {
      auto& n = rescaled[k];
      const bool drops_nan = passes_.streamed(n).drops_nan;
      auto more = widened(with_running_shift(n, iteration, drops_nan, memo[drops_nan]));
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
  nodes.push_back(top_);
  for (std::size_t k = 0; k < rescaled.size(); ++k) {
    l.results.push_back(std::move(sums[k]));
    nodes.push_back(rescaled[k]);
  }
}

}  // namespace haliax
