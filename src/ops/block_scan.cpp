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

struct KeyAndPosition {
  NodePtr key, position;
};
// A scan for the first k elements of an order. State: keys, positions and picked values of the
// first k elements so far. Each iteration selects k elements from the state and the block, one by
// one: each is the least (key, position) after the previous one.
struct TopKScan {
  Name axis;            // axis of the elements
  Axis top;             // axis of the k elements: the last axis of each part of the state
  Axes all, rows;       // axes of the keys in the state; the same without `top`
  KeyAndPosition last;  // follows all others

  Nodes start(const Nodes& picked) const {
    Nodes out = {fit(last.key, all), fit(last.position, all)};
    for (auto& p : picked) out.push_back(filled(0, p->dtype, with_top(p->axes)));
    return out;
  }
  // Returns the axes with the k elements in place of `axis`.
  Axes with_top(const Axes& axes) const { return haliax::joined(replaced(axes, axis, {}), {top}); }
  Nodes next(const Nodes& state, const Nodes& blocks, const Block& block) const {
    const DType d = last.key->dtype;
    const KeyAndPosition known{state[0], state[1]};
    const KeyAndPosition added{
        is_float(d) ? select(is_nan(blocks[0]), last.key, blocks[0]) : blocks[0],
        positions_in(block, axis, known.position->dtype)};
    KeyAndPosition found{fit(extreme(d, false), rows), filled(-1, added.position->dtype, rows)};
    Nodes out = {fit(last.key, all), fit(last.position, all)};
    for (std::size_t j = 2; j < state.size(); ++j) out.push_back(zeros_like(state[j]));
    for (std::int64_t i = 0; i < top.size; ++i) {
      found = least_after(found, added, known);
      auto mine = equal(iota(top, DType::i32), integer(i, DType::i32));
      auto put = [&](NodeRef value, NodePtr& to) { to = select(mine, value, to, to->axes); };
      put(found.key, out[0]);
      put(found.position, out[1]);
      for (std::size_t j = 2; j < state.size(); ++j) {
        const Axes row(state[j]->axes.begin(), state[j]->axes.end() - 1);
        put(add(value_at(found.position, added.position, blocks[j - 1], row),
                value_at(found.position, known.position, state[j], row)),
            out[j]);
      }
    }
    return out;
  }

 private:
  KeyAndPosition least_after(const KeyAndPosition& previous, const KeyAndPosition& added,
                             const KeyAndPosition& known) const {
    auto follows = [&](const KeyAndPosition& x) {
      return either(less(previous.key, x.key),
                    both(equal(x.key, previous.key), less(previous.position, x.position)));
    };
    auto least_of = [&](NodeRef which, NodeRef x, NodeRef none) {
      return reduce(Monoid::min, select(which, x, none), rows);
    };
    auto in_added = follows(added), in_known = follows(known);
    auto key =
        min(least_of(in_added, added.key, last.key), least_of(in_known, known.key, last.key));
    auto position =
        min(least_of(both(in_added, equal(added.key, key)), added.position, last.position),
            least_of(both(in_known, equal(known.key, key)), known.position, last.position));
    return {key, position};
  }
  // Returns the value at a position; 0 if it is not among the positions of the values.
  static NodePtr value_at(NodeRef position, NodeRef positions, NodeRef values, const Axes& row) {
    auto zero = number(0, values->dtype);
    auto there = map(kSelect, {equal(positions, position), values, zero}, values->dtype);
    return reduce(Monoid::sum, there, row);
  }
};

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

std::optional<BlockScan> first_block_scan(NodeRef n, const Nodes& picked) {
  constexpr std::int64_t most = 64;
  if (!is_top_k(*n) || SliceAttr::of(*n).size > most) return {};
  const auto first = SliceAttr::of(*n);
  const auto& keys = n->in[0]->in[0];
  const Axis top(fresh_hidden(first.axis), first.size);
  TopKScan scan{first.axis, top, {}, {}, {extreme(keys->dtype, true), extreme(n->dtype, true)}};
  scan.all = scan.with_top(n->axes);
  scan.rows.assign(scan.all.begin(), scan.all.end() - 1);
  return BlockScan{.axis = first.axis,
                   .reads = joined({keys}, tables_of(picked)),
                   .start = scan.start(picked),
                   .value = 1,
                   .positions = top.name,
                   .next = [scan](const Nodes& state, const Nodes& blocks, const Block& block,
                                  bool) { return scan.next(state, blocks, block); }};
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
