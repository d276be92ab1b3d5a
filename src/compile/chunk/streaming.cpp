// Loop results that are carried from chunk to chunk: a running max with the sums that it scales,
// the state of a loop along the axis, and the state of a block scan.
#include <algorithm>
#include <cmath>

#include "compile/analysis/softmax.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/chunk/region.h"

namespace haliax {
namespace {

// Returns the shift s of exp(x - s): the max, or 0 where the max is not finite.
NodePtr shift_of(const NodePtr& top) {
  return prim::select(prim::map(prim::kIsFinite, {top}, DType::boolean), top,
                      prim::number(0, top->dtype));
}
// Returns a loop result that is carried between iterations, with this initial value and no values.
LoopResult carried(Monoid m, const NodePtr& start, const NodePtr& index) {
  return {Fold::carry, m, {}, start, prim::carry(index, start->axes, start->dtype)};
}

}  // namespace

// Returns a loop along the axis on one chunk. It starts from the final state of the previous chunk.
// For example, a scan over 10 positions in chunks of 4 becomes an outer loop over the chunks at 0
// and 4, which scans 4 positions per iteration, and a remainder at 8, which scans 2 positions.
NodePtr Region::steps_on_chunk(const NodePtr& n, std::size_t b) {
  Loop l = loop_of(*n);
  auto& old = l.index[0];
  l.axis.size = prim::index_chunk(*index_[b]);
  auto index = prim::index(l.axis, 0, 1, IndexAttr::of(*old).depth, IndexAttr::of(*old).origin);
  Rewrite to{{old.get(), prim::add(index_[b], index)}};
  for (auto& x : inputs_of(l).slices)
    to[prim::slice_at(x, old, true).get()] = prim::slice_at(part(x, l.axis.name, b), index, true);
  auto& states = member(*n).carried;
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
void Region::stream_steps(Loop& out, Nodes& of, const NodePtr& n) {
  auto& l = loop_of(*n);
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    if (!r.carry) continue;
    LoopResult state{Fold::carry, r.monoid, {}, r.start, known_of(*n).carried[k]};
    for (auto& created : known_of(*n).parts) state.value.push_back(loop_result(created, k));
    auto last = loop_result(n, k);
    out.results.push_back(std::move(state));
    of.push_back(contains(last) ? last : nullptr);
  }
}

struct Region::RunningMax {
  std::size_t body;
  NodePtr shift, hidden;  // the shift by the running max; a flag: the running max is -inf
};

// Returns n, which is linear in exp(x - top), on a chunk, with the shift of the running max in
// place of the final shift.
NodePtr Region::streamed_part(const NodePtr& n, const Node* top, const RunningMax& running,
                              bool hides, Parts& memo) {
  const auto b = running.body;
  auto& fold = known_of(*top).order.streams;
  bool mine = std::find(fold.begin(), fold.end(), n) != fold.end();
  auto& s = known_of(*n).order.streamed;
  auto a = name_in(*n);
  if (!mine && s.top != top) return part(n, a, b);
  if (auto known = memo.find(n.get()); known != memo.end()) return known->second;
  auto on_chunk_axes = [&](const Node& x) { return axes_on_chunk(x.axes, a, b); };
  NodePtr out;
  if (analysis::shifted_exp(*n)) {
    auto& sub = n->in[0];
    auto shifted =
        prim::rebuilt(*sub, {part(sub->in[0], a, b), running.shift}, on_chunk_axes(*sub));
    out = prim::rebuilt(*n, {shifted}, on_chunk_axes(*n));
    if (hides) out = prim::select(running.hidden, prim::number(std::nan(""), n->dtype), out);
  } else {
    Nodes in;
    for (auto& x : n->in)
      in.push_back(known_of(*x).order.streamed.top ? streamed_part(x, top, running, hides, memo)
                                                   : part(x, a, b));
    out = prim::rebuilt(*n, std::move(in), on_chunk_axes(*n));
  }
  return memo[n.get()] = out;
}

// Adds the running max, and the sums that are linear in exp(x - max), to the results of a loop.
// Each iteration computes, with m the max so far and m' the max including this chunk:
//
//     sum' = sum * exp(m - m') + sum over the chunk of exp(x - m')
//
// While m' is -inf, exp(x - m') is NaN without a guard. It is computed as 0 instead, and the final
// sum becomes NaN if the max is still not finite (see finished). If a select may drop the NaN
// (`hides`), the exponential is NaN during the loop as well, and the sum restarts at 0 in the
// iteration in which the max first exceeds -inf.
void Region::stream(Loop& l, Nodes& of, const NodePtr& top) {
  auto& folds = known_of(*top).order.streams;
  auto d = top->dtype;
  auto least = prim::extreme(d, false);
  auto max = carried(Monoid::max, prim::fit(least, top->axes), index_[0]);
  auto& best = max.carry;
  std::vector<LoopResult> sums;
  for (auto& n : folds)
    sums.push_back(carried(Monoid::sum, prim::filled(0, widened(n)->dtype, n->axes), index_[0]));
  for (std::size_t b = 0; b < index_.size(); ++b) {
    auto now = prim::max(best, made_on_chunk(top, name_in(*top), b));
    auto shift = shift_of(now);
    const RunningMax running{b, shift, prim::equal(now, least)};
    auto first = prim::equal(best, least);
    // The max exceeds -inf for the first time.
    auto grows =
        prim::map(prim::kBitAnd, {first, prim::logical_not(running.hidden)}, DType::boolean);
    // The scale is 1 as long as the max before this chunk is -inf.
    auto scale = prim::exp(prim::sub(prim::select(first, shift, shift_of(best)), shift));
    max.value.push_back(now);
    Parts memo[2];  // by `hides`
    for (std::size_t k = 0; k < folds.size(); ++k) {
      auto& n = folds[k];
      const bool hides = streamed(n).hides;
      auto more = widened(streamed_part(n, top.get(), running, hides, memo[hides]));
      auto start = sums[k].carry;
      if (hides)
        start = prim::map(prim::kSelect, {grows, prim::number(0, more->dtype), start}, more->dtype,
                          &n->axes);
      auto old =
          prim::map(prim::kMul, {start, prim::cast(scale, more->dtype)}, more->dtype, &n->axes);
      sums[k].value.push_back(prim::map(prim::kAdd, {old, more}, more->dtype, &n->axes));
    }
  }
  l.results.push_back(std::move(max));
  of.push_back(top);
  for (std::size_t k = 0; k < folds.size(); ++k) {
    l.results.push_back(std::move(sums[k]));
    of.push_back(folds[k]);
  }
}

// Returns the state of a block scan as loop results that are carried from chunk to chunk.
std::vector<LoopResult> Region::known_by(const BlockScan& t) const {
  std::vector<LoopResult> out;
  for (auto& x : t.start) out.push_back(carried(Monoid::sum, x, index_[0]));
  return out;
}
// Appends the state after an iteration of body b to `known`. Returns the last node of
// BlockScan::next: for a running scan, the block of the value.
NodePtr Region::turn_of(const BlockScan& t, std::vector<LoopResult>& known, std::size_t b,
                        bool reverse) {
  Nodes before, blocks;
  for (auto& r : known) before.push_back(r.carry);
  for (auto& x : t.reads) blocks.push_back(part(x, t.axis, b));
  auto now = t.next(before, blocks, {t.axis, index_[b], prim::index_chunk(*index_[b])}, reverse);
  for (std::size_t k = 0; k < known.size(); ++k) known[k].value.push_back(now[k]);
  return now.back();
}
NodePtr Region::running_on_chunk(const NodePtr& n, std::size_t b) {
  auto& t = *turns(*n);
  auto& known = member(*n).known;
  if (known.empty()) known = known_by(t);
  return turn_of(t, known, b, *t.reverse);
}
void Region::stream_turns(Loop& l, Nodes& of, const NodePtr& n) {
  auto& picked = known_of(*n).order.picked;
  auto& t = member(*n).role.turns.emplace(*n->op->block_scan(n, picked));
  auto known = known_by(t);
  for (std::size_t b = 0; b < index_.size(); ++b) turn_of(t, known, b, l.reverse);
  for (std::size_t k = 0; k < known.size(); ++k) {
    l.results.push_back(std::move(known[k]));
    of.push_back(k < t.value ? nullptr : k == t.value ? n : picked[k - t.value - 1]);
  }
}

}  // namespace haliax
