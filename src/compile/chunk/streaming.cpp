// Results of a walk that are carried from turn to turn: the max so far with the sums that are scaled by it, the greatest so far
// with where it is, the first few of an order.
#include <algorithm>
#include <limits>

#include "base/name.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/chunk/region.h"

namespace haliax {
namespace {

NodePtr both(const NodePtr& a, const NodePtr& b) { return prim::map(prim::kBitAnd, {a, b}, DType::boolean); }
NodePtr either(const NodePtr& a, const NodePtr& b) { return prim::map(prim::kBitOr, {a, b}, DType::boolean); }
// What exp(x - top) subtracts: the max, or 0 where that is not finite.
NodePtr shift_of(const NodePtr& top) {
  return prim::select(prim::map(prim::kIsFinite, {top}, DType::boolean), top, prim::number(0, top->dtype));
}
// What a loop carries from turn to turn, from this start on.
LoopResult carried(Monoid m, const NodePtr& start, const NodePtr& index) {
  return {Fold::carry, m, {}, start, prim::carry(index, start->axes, start->dtype)};
}
NodePtr chosen(const NodePtr& which, const NodePtr& a, const NodePtr& b, const Axes& axes) {
  return prim::map(prim::kSelect, {which, a, b}, a->dtype, &axes);
}

}  // namespace

// A loop along the axis on one chunk: it starts from what the turn before has left.
NodePtr Region::steps_on_chunk(const NodePtr& n, std::size_t b) {
  Loop l = loop_of(*n);
  auto& old = l.index[0];
  l.axis.size = prim::index_chunk(*index_[b]);
  auto index = prim::index(l.axis, 0, 1, IndexAttr::of(*old).depth);
  Rewrite to{{old.get(), prim::add(index_[b], index)}};
  for (auto& x : inputs_of(l).slices)
    to[prim::slice_at(x, old, true).get()] = prim::slice_at(part(x, l.axis.name, b), index, true);
  auto& states = carried_[n.get()];
  bool first = states.empty();
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    if (first) states.push_back(r.carry ? prim::carry(index_[0], r.carry->axes, r.carry->dtype) : nullptr);
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
    LoopResult state{Fold::carry, r.monoid, {}, r.start, carried_.at(n.get())[k]};
    for (auto& made : parts_.at(n.get())) state.value.push_back(loop_result(made, k));
    auto last = loop_result(n, k);
    out.results.push_back(std::move(state)), of.push_back(contains(last) ? last : nullptr);
  }
}

// n, which is linear in exp(x - top), with the shift so far in place of the final one.
NodePtr Region::streamed_part(const NodePtr& n, const Node* top, std::size_t b, const NodePtr& shift, Parts& memo) {
  auto& fold = streams_.at(top);
  bool mine = std::find(fold.begin(), fold.end(), n) != fold.end();
  auto s = streamed_.find(n.get());
  auto a = name_in(*n);
  if (!mine && (s == streamed_.end() || s->second.top != top)) return part(n, a, b);
  if (auto known = memo.find(n.get()); known != memo.end()) return known->second;
  auto chunk = prim::index_chunk(*index_[b]);
  auto on_chunk_axes = [&](const Node& x) {
    Axes axes = x.axes;
    for (auto& v : axes) if (v.name == a && v.size == axis_.size) v.size = chunk;
    return axes;
  };
  NodePtr out;
  if (n->op == &prim::kExp) {
    auto& sub = n->in[0];
    auto shifted = make(*sub->op, {part(sub->in[0], a, b), shift}, on_chunk_axes(*sub), sub->dtype, sub->attr);
    out = make(*n->op, {shifted}, on_chunk_axes(*n), n->dtype, n->attr);
  } else {
    Nodes in;
    for (auto& x : n->in) in.push_back(streamed_.count(x.get()) ? streamed_part(x, top, b, shift, memo) : part(x, a, b));
    out = n->op == &prim::kFit ? prim::fit(in[0], on_chunk_axes(*n)) : make(*n->op, in, on_chunk_axes(*n), n->dtype, n->attr);
  }
  return memo[n.get()] = out;
}

// The running max, and the sums that are linear in exp(x - max): scaled whenever it grows.
void Region::stream(Loop& l, Nodes& of, const NodePtr& top) {
  auto& folds = streams_.at(top.get());
  auto d = top->dtype;
  auto least = prim::number(-std::numeric_limits<double>::infinity(), d);
  auto max = carried(Monoid::max, prim::fit(least, top->axes), index_[0]);
  auto& best = max.carry;
  std::vector<LoopResult> sums;
  for (auto& n : folds) sums.push_back(carried(Monoid::sum, prim::filled(0, widened(n)->dtype, n->axes), index_[0]));
  for (std::size_t b = 0; b < index_.size(); ++b) {
    auto now = prim::max(best, made_on_chunk(top, name_in(*top), b));
    auto shift = shift_of(now);
    auto scale = prim::select(prim::equal(best, least), prim::number(1, d), prim::exp(prim::sub(shift_of(best), shift)));
    max.value.push_back(now);
    Parts memo;
    for (std::size_t k = 0; k < folds.size(); ++k) {
      auto& n = folds[k];
      auto more = widened(streamed_part(n, top.get(), b, shift, memo));
      auto old = prim::map(prim::kMul, {sums[k].carry, prim::cast(scale, more->dtype)}, more->dtype, &n->axes);
      sums[k].value.push_back(prim::map(prim::kAdd, {old, more}, more->dtype, &n->axes));
    }
  }
  l.results.push_back(std::move(max)), of.push_back(top);
  for (std::size_t k = 0; k < folds.size(); ++k) l.results.push_back(std::move(sums[k])), of.push_back(folds[k]);
}

// The extreme so far, where it is, and what else lies there; the first of equals wins, from whichever end the walk comes.
void Region::stream_extreme(Loop& l, Nodes& of, const NodePtr& n) {
  bool largest = n->op == &prim::kArgmax;
  auto beats = [&](const NodePtr& a, const NodePtr& b) { return l.reverse ? prim::less_equal(a, b) : prim::less(a, b); };
  auto d = n->in[0]->dtype;
  auto a = name_in(*n);
  auto& picked = picked_[n.get()];
  auto values = carried(Monoid::max, prim::fit(prim::extreme(d, !largest), n->axes), index_[0]);
  auto places = carried(Monoid::max, prim::filled(-1, DType::i32, n->axes), index_[0]);
  auto &best = values.carry, &at = places.carry;
  std::vector<LoopResult> there;
  for (auto& p : picked) there.push_back(carried(Monoid::max, prim::filled(0, p->dtype, p->axes), index_[0]));
  for (std::size_t b = 0; b < index_.size(); ++b) {
    auto chunk = part(n->in[0], a, b);
    Axis piece(a, prim::index_chunk(*index_[b]));
    auto here = prim::argreduce(largest, chunk, n->axes, {piece});
    auto value = prim::reduce(largest ? Monoid::max : Monoid::min, chunk, n->axes);
    auto better = largest ? beats(best, value) : beats(value, best);
    if (is_float(d)) {   // NaN wins
      auto nan = [&](const NodePtr& x) { return prim::map(prim::kIsNan, {x}, DType::boolean); };
      better = either(better, l.reverse ? nan(value) : both(nan(value), prim::logical_not(nan(best))));
    }
    better = either(better, prim::less(at, prim::integer(0, DType::i32)));
    values.value.push_back(prim::select(better, value, best));
    places.value.push_back(prim::select(better, prim::add(here, index_[b]), at));
    for (std::size_t k = 0; k < picked.size(); ++k) {
      auto found = prim::gather(part(picked[k]->in[0], a, b), {{a, here}}, picked[k]->axes, program::Outside::clamp);
      there[k].value.push_back(chosen(better, found, there[k].carry, picked[k]->axes));
    }
  }
  l.results.push_back(std::move(values)), of.push_back(nullptr);
  l.results.push_back(std::move(places)), of.push_back(n);
  for (std::size_t k = 0; k < picked.size(); ++k) l.results.push_back(std::move(there[k])), of.push_back(picked[k]);
}

// The first k of an order: keys, positions and what lies there. Each turn takes them again, one after another, from those so far
// and the chunk: the least (key, position) after the one taken before.
void Region::stream_first(Loop& l, Nodes& of, const NodePtr& n) {
  auto& keys = n->in[0]->in[0];
  auto first = SliceAttr::of(*n);
  auto a = first.axis;
  auto k = first.size;
  auto d = keys->dtype;
  Axis Kept(fresh_hidden(a), k);
  auto far = prim::integer(std::numeric_limits<std::int32_t>::max(), DType::i32), last_key = prim::extreme(d, true);
  auto kept_axes = [&](const Axes& axes) {   // of what has the k positions along a
    Axes out;
    for (auto& v : axes) if (v.name != a) out.push_back(v);
    out.push_back(Kept);
    return out;
  };
  Axes all = kept_axes(n->axes), rows(all.begin(), all.end() - 1);
  auto& picked = picked_[n.get()];
  auto key_result = carried(Monoid::min, prim::fit(last_key, all), index_[0]);
  auto at_result = carried(Monoid::min, prim::fit(far, all), index_[0]);
  auto &old_keys = key_result.carry, &old_at = at_result.carry;
  std::vector<LoopResult> there;
  for (auto& p : picked) there.push_back(carried(Monoid::min, prim::filled(0, p->dtype, kept_axes(p->axes)), index_[0]));
  for (std::size_t b = 0; b < index_.size(); ++b) {
    auto chunk = part(keys, a, b);
    if (is_float(d)) chunk = prim::select(prim::map(prim::kIsNan, {chunk}, DType::boolean), last_key, chunk);
    auto at = prim::add(prim::iota(Axis(a, prim::index_chunk(*index_[b])), DType::i32), index_[b]);
    auto key = prim::fit(prim::extreme(d, false), rows), position = prim::filled(-1, DType::i32, rows);
    auto new_keys = prim::fit(last_key, all), new_at = prim::fit(far, all);
    Nodes new_there;
    for (auto& r : there) new_there.push_back(prim::zeros_like(r.carry));
    for (std::int64_t i = 0; i < k; ++i) {
      auto after = [&](const NodePtr& x, const NodePtr& p) {
        return either(prim::less(key, x), both(prim::equal(x, key), prim::less(position, p)));
      };
      auto least_of = [&](const NodePtr& which, const NodePtr& x, const NodePtr& none) {
        return prim::reduce(Monoid::min, prim::select(which, x, none), rows);
      };
      auto in_chunk = after(chunk, at), in_old = after(old_keys, old_at);
      auto least = prim::min(least_of(in_chunk, chunk, last_key), least_of(in_old, old_keys, last_key));
      auto where = prim::min(least_of(both(in_chunk, prim::equal(chunk, least)), at, far),
                             least_of(both(in_old, prim::equal(old_keys, least)), old_at, far));
      auto mine = prim::equal(prim::iota(Kept, DType::i32), prim::integer(i, DType::i32));
      auto put = [&](const NodePtr& value, const NodePtr& to) { return chosen(mine, value, to, to->axes); };
      new_keys = put(least, new_keys), new_at = put(where, new_at);
      for (std::size_t j = 0; j < picked.size(); ++j) {
        auto x = part(picked[j]->in[0], a, b);
        Axes row(new_there[j]->axes.begin(), new_there[j]->axes.end() - 1);
        auto zero = prim::number(0, x->dtype);
        auto at_place = [&](const NodePtr& places, const NodePtr& v) {
          return prim::reduce(Monoid::sum, prim::map(prim::kSelect, {prim::equal(places, where), v, zero}, x->dtype), row);
        };
        new_there[j] = put(prim::add(at_place(at, x), at_place(old_at, there[j].carry)), new_there[j]);
      }
      key = least, position = where;
    }
    key_result.value.push_back(new_keys), at_result.value.push_back(new_at);
    for (std::size_t j = 0; j < there.size(); ++j) there[j].value.push_back(new_there[j]);
  }
  l.results.push_back(std::move(key_result)), of.push_back(nullptr);
  l.results.push_back(std::move(at_result)), of.push_back(n);
  for (std::size_t j = 0; j < picked.size(); ++j) l.results.push_back(std::move(there[j])), of.push_back(picked[j]);
}

}  // namespace haliax
