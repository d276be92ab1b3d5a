// Op::block_scan of argmax, argmin, top_k and running sums.
#include "ops/block_scan.h"

#include "base/name.h"
#include "ops/attr.h"
#include "ops/blockwise.h"

namespace haliax::prim {
namespace {

Nodes tables_of(const Nodes& picked) {
  Nodes out;
  for (auto& p : picked) out.push_back(p->in[0]);
  return out;
}
Nodes joined(Nodes a, const Nodes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
NodePtr positions_in(const Block& b, Name axis, DType d) {
  return add(iota(Axis(axis, b.size), d), cast(b.start, d));
}

}  // namespace

// State: the extreme so far, its position, and the picked values there. Among equal values the
// first position wins, in either direction of the pass.
std::optional<BlockScan> extreme_block_scan(NodeRef n, const Nodes& picked) {
  auto& x = n->in[0];
  const auto over = ReduceAttr::of(*n).over;
  if (over.size() != 1) return {};
  const bool largest = n->op == &kArgmax;
  BlockScan t{.axis = over[0], .reads = joined({x}, tables_of(picked)), .value = 1};
  t.start = {fit(extreme(x->dtype, !largest), n->axes), filled(-1, n->dtype, n->axes)};
  for (auto& p : picked) t.start.push_back(filled(0, p->dtype, p->axes));
  t.next = [=, axis = t.axis](const Nodes& known, const Nodes& blocks, const Block& block,
                              bool reverse) {
    auto &best = known[0], &at = known[1];
    auto beats = [&](NodeRef a, NodeRef b) { return reverse ? less_equal(a, b) : less(a, b); };
    auto here = argreduce(largest, blocks[0], n->axes, {Axis(axis, block.size)});
    auto value = reduce(largest ? Monoid::max : Monoid::min, blocks[0], n->axes);
    auto better = largest ? beats(best, value) : beats(value, best);
    if (is_float(value->dtype))  // NaN beats every number
      better =
          either(better, reverse ? is_nan(value) : both(is_nan(value), logical_not(is_nan(best))));
    better = either(better, less(at, integer(0, at->dtype)));
    Nodes out{select(better, value, best),
              select(better, add(cast(here, at->dtype), cast(block.start, at->dtype)), at)};
    for (std::size_t k = 0; k < picked.size(); ++k) {
      auto found = gather(blocks[1 + k], {{axis, here}}, picked[k]->axes, program::Outside::clamp);
      out.push_back(select(better, found, known[2 + k], picked[k]->axes));
    }
    return out;
  };
  return t;
}

// State: keys, positions and picked values of the first k elements of the order. Each iteration
// selects k elements from the state and the block, one by one: each is the least (key, position)
// after the previous one.
std::optional<BlockScan> first_block_scan(NodeRef n, const Nodes& picked) {
  constexpr std::int64_t most = 64;
  if (!is_top_k(*n) || SliceAttr::of(*n).size > most) return {};
  auto [a, start, k, step, drop] = SliceAttr::of(*n);
  auto& keys = n->in[0]->in[0];
  auto d = keys->dtype;
  BlockScan t{.axis = a,
              .reads = joined({keys}, tables_of(picked)),
              .value = 1,
              .positions = fresh_hidden(a)};
  const Axis TopK(t.positions, k);
  // Returns the axes with the k positions in place of `a`.
  auto with_top_k = [&, a = a](const Axes& axes) {
    return haliax::joined(replaced(axes, a, {}), {TopK});
  };
  auto far = extreme(n->dtype, true), last_key = extreme(d, true);
  const Axes all = with_top_k(n->axes), rows(all.begin(), all.end() - 1);
  t.start = {fit(last_key, all), fit(far, all)};
  for (auto& p : picked) t.start.push_back(filled(0, p->dtype, with_top_k(p->axes)));
  t.next = [=, a = a, k = k](const Nodes& known, const Nodes& blocks, const Block& block, bool) {
    auto &old_keys = known[0], &old_at = known[1];
    auto chunk = is_float(d) ? select(is_nan(blocks[0]), last_key, blocks[0]) : blocks[0];
    auto at = positions_in(block, a, old_at->dtype);
    auto key = fit(extreme(d, false), rows), position = filled(-1, at->dtype, rows);
    Nodes out = {fit(last_key, all), fit(far, all)};
    for (std::size_t j = 2; j < known.size(); ++j) out.push_back(zeros_like(known[j]));
    for (std::int64_t i = 0; i < k; ++i) {
      auto after = [&](NodeRef x, NodeRef p) {
        return either(less(key, x), both(equal(x, key), less(position, p)));
      };
      auto least_of = [&](NodeRef which, NodeRef x, NodeRef none) {
        return reduce(Monoid::min, select(which, x, none), rows);
      };
      auto in_chunk = after(chunk, at), in_old = after(old_keys, old_at);
      auto least = min(least_of(in_chunk, chunk, last_key), least_of(in_old, old_keys, last_key));
      auto where = min(least_of(both(in_chunk, equal(chunk, least)), at, far),
                       least_of(both(in_old, equal(old_keys, least)), old_at, far));
      auto mine = equal(iota(TopK, DType::i32), integer(i, DType::i32));
      auto put = [&](NodeRef value, NodePtr& to) { to = select(mine, value, to, to->axes); };
      put(least, out[0]);
      put(where, out[1]);
      for (std::size_t j = 2; j < known.size(); ++j) {
        auto& x = blocks[j - 1];
        const Axes row(known[j]->axes.begin(), known[j]->axes.end() - 1);
        auto zero = number(0, x->dtype);
        auto at_place = [&](NodeRef places, NodeRef v) {
          return reduce(Monoid::sum, map(kSelect, {equal(places, where), v, zero}, x->dtype), row);
        };
        put(add(at_place(at, x), at_place(old_at, known[j])), out[j]);
      }
      key = least;
      position = where;
    }
    return out;
  };
  return t;
}

// State: the running total at the last position of the previous block. 16-bit floats are added in
// f32, as in an unblocked running sum.
std::optional<BlockScan> cumulative_block_scan(NodeRef n, const Nodes&) {
  auto [axis, m, reverse] = CumulativeAttr::of(*n);
  auto d = is_float(n->dtype) && bytes_of(n->dtype) < 4 ? DType::f32 : n->dtype;
  auto rest = replaced(n->axes, axis, {});
  BlockScan t{.axis = axis,
              .reads = n->in,
              .start = {fit(identity(m, d), rest)},
              .running = true,
              .reverse = reverse};
  t.next = [n, axis = axis, m = m, d](const Nodes& known, const Nodes& blocks, const Block& block,
                                      bool reverse) {
    auto inside = cumulative(m, cast(blocks[0], d), axis, reverse);
    auto value = map(pairwise(m), {inside, known[0]}, d, &inside->axes);
    return Nodes{at_position(value, axis, reverse ? 0 : block.size - 1), cast(value, n->dtype)};
  };
  return t;
}

}  // namespace haliax::prim
