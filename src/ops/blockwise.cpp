// Blockwise forms of ops that need a full axis: running sums, argmax, top_k, sorts, gathers and
// scatters. On a mesh, each block is the shard of a device.
#include "ops/blockwise.h"

#include <algorithm>
#include <optional>

#include "graph/loop.h"
#include "ops/attr.h"
#include "ops/distributed_order.h"

namespace haliax::prim {
namespace {

constexpr int kSearchDepth = 8;  // depth limit of searches in the graph

// Returns a running sum (or product, maximum, minimum): the running sums within each block, plus
// the sum of all blocks before. For example, blocks of 2 positions of (1, 2, 3, 4): (1, 3 | 3, 7)
// plus (0 | 3) is (1, 3, 6, 10).
NodePtr cumulative_in_blocks(NodeRef n, const SplitAxis& split) {
  const Name axis = split.axis;
  const auto [_, monoid, reverse] = CumulativeAttr::of(*n);
  auto nothing = identity(monoid, n->dtype);
  auto within_block = cumulative(monoid, split.blocked(n->in[0], nothing), axis, reverse);
  auto totals = at_position(within_block, axis, reverse ? 0 : split.step - 1);
  auto sums = cumulative(monoid, totals, split.blocks, reverse);
  // the sums without the last block, after the identity of the first one
  auto first = fit(nothing, replaced(sums->axes, split.blocks, {Axis(split.blocks, 1)}));
  auto others = slice(sums, split.blocks, reverse ? 1 : 0, split.count - 1);
  auto before = concat(reverse ? Nodes{others, first} : Nodes{first, others},
                       Axis(split.blocks, split.count));
  auto all =
      split.joined(map(pairwise(monoid), {within_block, before}, n->dtype, &within_block->axes));
  return fit(slice(all, axis, 0, split.size), n->axes);
}

// Returns the first position of the extreme: the least position that has the extreme value. NaN
// equals NaN here.
NodePtr extreme_position(NodeRef n) {
  auto& x = n->in[0];
  auto top = reduce(n->op == &kArgmax ? Monoid::max : Monoid::min, x, n->axes);
  auto hit = equal(x, top);
  if (is_float(x->dtype)) {
    auto nan = [](NodeRef v) { return map(kNotEqual, {v, v}, DType::boolean); };
    hit = either(hit, both(nan(x), nan(top)));
  }
  Axes over;
  for (auto name : ReduceAttr::of(*n).over) over.push_back(*find(*x, name));
  auto candidate = select(hit, flat_position(over, n->dtype), extreme(n->dtype, true));
  return reduce(Monoid::min, candidate, n->axes);
}

// Returns true elements where the ids are in [first, end).
NodePtr within(NodeRef ids, std::int64_t first, std::int64_t end) {
  auto number = [&](std::int64_t v) { return integer(v, ids->dtype); };
  auto from = less_equal(number(first), ids), before = less(ids, number(end));
  return both(from, before);
}

// ---- top_k: the first k of an order ----
// Recomputes n from another value of its base.
NodePtr recomputed_from(NodeRef n, NodeRef base, NodeRef value) {
  if (n == base) return value;
  if (is_generated(n)) return n;
  Nodes in;
  for (auto& x : n->in) in.push_back(recomputed_from(x, base, value));
  auto axes = n->axes;
  for (auto& a : axes) a = *find(*value, a.name);
  return rebuilt(*n, std::move(in), axes);
}

// top_k. Each block selects its own first k elements; the first k of these candidates are the first
// k of the full axis. The keys may be computed elementwise from another value, their base. Then the
// base is communicated in place of the keys, since the picked values are usually computed from it
// as well.
class BlockwiseTopK {
 public:
  // `top`: the first k positions of an argsort.
  BlockwiseTopK(const Node& top, const SplitAxis& split) : split_(split) {
    auto& keys = top.in[0]->in[0];
    const auto k = SliceAttr::of(top).size, step = split_.step;
    const auto last = last_of(keys->dtype);
    const auto each = std::min(k, step);  // candidates per block
    base_ = base_of(keys);
    order_ = slice(argsort(split_.blocked(keys, last), split_.axis), split_.axis, 0, each);
    base_of_candidates_ = candidates_of(base_);
    auto candidates = recomputed_from(keys, base_, base_of_candidates_);
    const auto present = split_.size / step * each + std::min(split_.size % step, each),
               all = split_.count * each;
    if (present < all)  // short last blocks lack some candidates
      candidates = select(less(iota(Axis(split_.axis, all)), integer(present, DType::i32)),
                          candidates, last);
    best_ = slice(argsort(candidates, split_.axis), split_.axis, 0, k);
  }
  // Returns the elements of x at the first k positions.
  NodePtr values_of(NodeRef x) const {
    return pick(
        base_of(x) == base_ ? recomputed_from(x, base_, base_of_candidates_) : candidates_of(x),
        best_);
  }
  // Returns the first k positions.
  NodePtr positions() const {
    auto start = mul(iota(Axis(split_.blocks, split_.count)), integer(split_.step, DType::i32));
    return pick(split_.joined(map(kAdd, {order_, start}, DType::i32, &order_->axes)), best_);
  }

 private:
  NodePtr pick(NodeRef table, NodeRef ids) const {
    return gather(table, {{split_.axis, ids}}, ids->axes, program::Outside::clamp);
  }
  // Returns the elements of x at the positions of the candidates: (..., axis = blocks * k).
  NodePtr candidates_of(NodeRef x) const {
    return split_.joined(pick(split_.blocked(x, number(0, x->dtype)), order_));
  }
  // Returns the value from which x is computed elementwise, without any use of positions on the
  // axis.
  NodePtr base_of(NodeRef x) const {
    auto uses_positions = [&](const Node& n) {
      return std::any_of(n.in.begin(), n.in.end(), [&](auto& operand) {
        return is_generated(operand) && has(operand->axes, split_.axis);
      });
    };
    return uses_positions(*x) ? x : pointwise_source(x, uses_positions);
  }

  SplitAxis split_;
  NodePtr base_;
  NodePtr order_;  // positions of the candidates in each block: (..., blocks, axis = k)
  NodePtr base_of_candidates_;  // (..., axis = blocks * k)
  NodePtr best_;                // positions of the first k among the candidates: (..., axis = k)
};

// ---- slices at dynamic positions ----
Name positions_name(Name axis) { return Name("(positions of " + std::string(axis.text()) + ")"); }
Axes with_name(Axes axes, Name from, Name to) {
  for (auto& a : axes)
    if (a.name == from) a.name = to;
  return axes;
}
// Returns the positions that a slice of this axis reads, moved so that the slice fits: an array
// along an axis named `called`, or a scalar if the slice drops its axis. Null for a slice at the
// index of a loop, whose iterations read the full axis.
NodePtr positions_of(const Node& n, const Axis& full, Name called) {
  auto c = SliceAttr::of(n);
  auto start = n.in.size() > 1 ? n.in[1] : nullptr;
  if (start && start->op == &kIndex) return nullptr;
  const auto d = position_dtype(full.size);
  auto ids = integer(c.start, d);
  if (!c.drop) ids = add(mul(iota(Axis(called, c.size), d), integer(c.step, d)), ids);
  if (!start) return ids;
  auto at = [&](std::int64_t i) { return integer(i, start->dtype); };
  return add(
      ids, cast(max(min(start, at(full.size - c.start - ((c.size - 1) * c.step + 1))), at(0)), d));
}
// Returns a slice of one position, or one with a dynamic start, as a gather: the devices that store
// the positions provide them.
NodePtr picked_slice(NodeRef n) {
  auto c = SliceAttr::of(*n);
  Name positions = positions_name(c.axis);
  auto ids = positions_of(*n, *find(*n->in[0], c.axis), positions);
  if (!ids) return nullptr;
  auto out = gather(n->in[0], {{c.axis, ids}}, with_name(n->axes, c.axis, positions),
                    program::Outside::zero);
  return c.drop ? out : rename(out, {positions}, {c.axis});
}

// ---- ids that have the axis that they index ----
// Constant ids in an arithmetic progression: start + step * position.
struct Progression {
  std::int64_t start = 0, step = 0;
};
// Returns the progression of ids that are computed from constants and positions. For example,
// 2 * iota + 3 is {3, 2}. None: the ids have another form.
std::optional<Progression> progression_of(NodeRef ids, int depth = 0) {
  if (is_number(ids) && is_integer(ids->dtype)) return Progression{integer_of(*stripped(ids)), 0};
  if (ids->op == &kIota) return Progression{0, 1};
  if (depth == kSearchDepth || ids->axes.size() > 1) return {};
  if (ids->op == &kFit || (ids->op == &kCast && is_integer(ids->dtype)))
    return progression_of(ids->in[0], depth + 1);
  const bool adds = ids->op == &kAdd, scales = ids->op == &kMul, maximum = ids->op == &kMaximum;
  if (!adds && !scales && !maximum && ids->op != &kMinimum) return {};
  auto a = progression_of(ids->in[0], depth + 1), b = progression_of(ids->in[1], depth + 1);
  if (!a || !b) return {};
  if (adds) return Progression{a->start + b->start, a->step + b->step};
  if (a->step && b->step) return {};
  if (scales) return Progression{a->start * b->start, a->step * b->start + b->step * a->start};
  if (a->step || b->step) return {};
  return Progression{maximum ? std::max(a->start, b->start) : std::min(a->start, b->start), 0};
}
// Returns the slice of the axis `full` that the ids select; none if the ids are not constant or
// are out of range.
std::optional<SliceAttr> selected_slice(NodeRef ids, const Axis& full) {
  auto* a = find(*ids, full.name);
  if (!a || ids->axes.size() != 1 || a->size == 0) return {};
  auto ids_of = progression_of(ids);
  if (!ids_of || ids_of->step < 1 || ids_of->start < 0 ||
      ids_of->start + (a->size - 1) * ids_of->step >= full.size)
    return {};
  return SliceAttr{full.name, ids_of->start, a->size, ids_of->step};
}
std::size_t index_among(const Names& axes, Name axis) {
  return std::size_t(std::find(axes.begin(), axes.end(), axis) - axes.begin());
}

// Returns true if x may be sharded along this axis. Values that are computed from positions alone
// are not sharded.
bool may_be_sharded(NodeRef x, Name axis, int depth = 0) {
  if (!has(x->axes, axis) || is_generated(x)) return false;
  if (depth == kSearchDepth || x->op->kind == Kind::leaf || x->op->kind == Kind::result)
    return true;
  for (std::size_t k = 0; k < x->in.size(); ++k)
    if (x->in[k] && may_be_sharded(x->in[k], name_in_operand(*x, k, axis), depth + 1)) return true;
  return false;
}
// Renames the axis of the ids. The table then keeps the name of its axis, and the ids pick from
// blocks of it. Null if the result is not smaller than the table and the ids are not sharded: then
// it is cheaper to reshard the table to another axis.
NodePtr with_renamed_ids(NodeRef n, Name axis) {
  bool sharded = std::any_of(n->in.begin() + 1, n->in.end(),
                             [&](auto& ids) { return may_be_sharded(ids, axis); });
  if (!sharded && n->bytes() >= n->in[0]->bytes()) return nullptr;
  auto attr = GatherAttr::of(*n);
  auto full = *find(*n->in[0], axis);
  const auto& axis_ids = n->in[1 + index_among(indexed_axes(*n), axis)];
  if (auto c = selected_slice(axis_ids, full); c && n->in.size() == 2) return slice(n->in[0], *c);
  Name positions = positions_name(axis);
  auto picks = picks_of(*n, 1);
  for (auto& [a, ids] : picks) ids = rename(ids, {axis}, {positions});
  return rename(gather(n->in[0], picks, with_name(n->axes, axis, positions), attr.outside),
                {positions}, {axis});
}

// Places the updates of a scatter among zeros, at the slices that its ids select. `set` then
// selects the updates within these slices; other scatters add.
NodePtr scatter_to_slices(NodeRef n, const std::vector<SliceAttr>& slices) {
  auto& base = n->in[0];
  auto updates = n->in[1];
  NodePtr updated;  // true within all slices
  for (auto& s : slices) {
    auto full = *find(*base, s.axis);
    auto in_slice = within(iota(full), s.start, s.start + s.size);
    updated = updated ? both(updated, in_slice) : in_slice;
    updates = place(updates, replaced(updates->axes, s.axis, {full}), s.axis, s.start);
  }
  const bool sets = ScatterAttr::of(*n).update == program::Update::set;
  return sets ? select(updated, updates, base, n->axes) : add(base, updates);
}

}  // namespace

// If the ids are constant and consecutive, they select slices. Otherwise, renames the axis of the
// ids, so that they index blocks of the base.
NodePtr scatter_blockwise(NodeRef n, Name axis, int) {
  auto attr = ScatterAttr::of(*n);
  std::vector<SliceAttr> slices;
  auto picks = picks_of(*n, 2);
  for (auto& [a, ids] : picks)
    if (auto c = selected_slice(ids, *find(*n, a)); c && c->step == 1) slices.push_back(*c);
  const bool sets_or_adds =
      attr.update == program::Update::set || attr.update == program::Update::add;
  if (sets_or_adds && slices.size() == picks.size()) return scatter_to_slices(n, slices);
  Name positions = positions_name(axis);
  for (auto& [a, ids] : picks) ids = rename(ids, {axis}, {positions});
  auto updates = rename(n->in[1], {axis}, {positions});
  return scatter(n->in[0], updates, picks, attr.update, attr.clamp);
}

NodePtr pointwise_source(NodeRef n, const std::function<bool(const Node&)>& ends) {
  auto base_of = [&](auto& self, NodeRef x, int depth) -> NodePtr {
    if (x->op->kind != Kind::map || depth == kSearchDepth || (depth && ends(*x))) return x;
    NodePtr one;
    for (auto& i : x->in) {
      if (is_generated(i)) continue;
      auto base = self(self, i, depth + 1);
      if ((one && one != base) || base->axes.size() != x->axes.size()) return x;
      one = base;
    }
    return one ? one : x;
  };
  auto base = base_of(base_of, n, 0);
  return bytes_of(base->dtype) > bytes_of(n->dtype) ? n : base;
}
bool sends_least_blockwise(const Node& n) { return n.op == &kCumulative; }
bool is_top_k(const Node& n) {
  auto c = slice_of(n);
  return c && along(n, 0, c->axis).way == Along::Way::shift && n.in[0]->op == &kArgsort &&
         c->axis == AlongAttr::of(*n.in[0]).axis && c->start == 0 && c->step == 1;
}
bool picks_top_k(const Node& n) {
  return n.op == &kGather && n.in.size() == 2 && is_top_k(*n.in[1]) &&
         indexed_axes(n)[0] == AlongAttr::of(*n.in[1]).axis;
}

const char* user_name(const Node& n) {
  if (is_top_k(n) || picks_top_k(n)) return "top_k";
  if (n.op == &kGather && n.in.size() == 2) {
    auto axis = indexed_axes(n)[0];
    if (rolled_by(n, axis)) return "roll";
    if (is_drawn_order(*n.in[1], axis)) return "permutation";
  }
  if (n.op != &kCumulative) return n.op->name;
  auto m = CumulativeAttr::of(n).monoid;
  return m == Monoid::sum ? "cumsum" : m == Monoid::prod ? "cumprod" : n.op->name;
}
bool picks_in_order(const Node& n) {
  return picks_top_k(n) || (n.op == &kGather && n.in[1]->op == &kArgsort);
}

NodePtr cumulative_blockwise(NodeRef n, Name axis, int blocks) {
  return cumulative_in_blocks(n, SplitAxis(*find(*n, axis), blocks));
}
NodePtr extreme_blockwise(NodeRef n, Name, int) { return extreme_position(n); }
NodePtr slice_blockwise(NodeRef n, Name axis, int blocks) {
  return is_top_k(*n) ? BlockwiseTopK(*n, SplitAxis(*find(*n->in[0], axis), blocks)).positions()
                      : picked_slice(n);
}
// Places one position among zeros.
NodePtr place_blockwise(NodeRef n, Name axis, int) {
  auto full = *find(*n, axis);
  auto at = SliceAttr::of(*n).drop ? positions_of(*n, full, axis) : nullptr;
  return at ? map(kSelect, {equal(iota(full, at->dtype), at), n->in[0], number(0, n->dtype)},
                  n->dtype, &n->axes)
            : nullptr;
}
NodePtr gather_blockwise(NodeRef n, Name axis, int blocks) {
  if (picks_top_k(*n))
    return BlockwiseTopK(*n->in[1], SplitAxis(*find(*n->in[0], axis), blocks)).values_of(n->in[0]);
  bool all = n->in.size() == 2 && is_order(*n->in[1], axis) &&
             find(*n->in[1], axis)->size == find(*n->in[0], axis)->size;
  if (all) return permute_in_blocks(n, axis, blocks);
  return rolled_by(*n, axis) ? roll_in_blocks(n, axis, blocks) : with_renamed_ids(n, axis);
}
NodePtr sort_blockwise(NodeRef n, Name axis, int blocks) { return sort_in_blocks(n, axis, blocks); }

NodePtr blockwise(NodeRef n, Name axis, int blocks) {
  // Positions are counted in i32 here. A longer axis is processed unblocked.
  auto* a = find(*n->in[0], axis);
  bool counts = is_top_k(*n) || picks_in_order(*n) || n->op == &kArgsort;
  if (a && position_dtype(a->size) != DType::i32 &&
      (counts || (n->op == &kGather && rolled_by(*n, axis))))
    return nullptr;
  OriginScope due(n->origin);
  context().origin.mapping = {};  // the mapping constrains the result, not its intermediates
  auto out = n->op->blockwise(n, axis, blocks);
  return out ? fit(out, n->axes) : out;
}

namespace {

// Returns ids that count from the start of an axis of this size, including ids that counted from
// its end. `clamps`: clamped to the axis.
NodePtr counted(NodeRef ids, std::int64_t size, bool clamps) {
  auto all = signed_ids(ids, size);
  auto number = [&](std::int64_t v) { return integer(v, all->dtype); };
  return clamps && size > 0 ? min(max(all, number(0)), number(size - 1)) : all;
}
// Returns the operands with ids, from `first` on, that count from the start of the block. Ids of
// other blocks become out of range.
Nodes on_blocks(const Node& n, Nodes in, std::size_t first, bool clamps,
                const std::vector<Block>& blocks) {
  auto& axes = indexed_axes(n);
  for (std::size_t k = 0; k < axes.size(); ++k) {
    auto size = find(*n.in[0], axes[k])->size;
    auto ids = counted(in[first + k], size, clamps);
    auto number = [&](std::int64_t v) { return integer(v, ids->dtype); };
    auto block =
        std::find_if(blocks.begin(), blocks.end(), [&](auto& b) { return b.axis == axes[k]; });
    if (block != blocks.end()) {
      auto shifted = sub(ids, cast(block->start, ids->dtype));
      in[first + k] = select(within(shifted, 0, block->size), shifted, number(block->size));
    } else {
      // Marks ids that are out of range, so that a negative id does not count from the end a second
      // time.
      in[first + k] = clamps && size > 0 ? ids : select(within(ids, 0, size), ids, number(size));
    }
  }
  return in;
}

}  // namespace

NodePtr gather_on_block(const Node& n, Nodes in, const Axes& axes,
                        const std::vector<Block>& blocks) {
  auto [names, outside] = GatherAttr::of(n);
  in = on_blocks(n, std::move(in), 1, outside == program::Outside::clamp, blocks);
  return make(*n.op, in, axes, n.dtype, GatherAttr{names, program::Outside::zero}.attr());
}
NodePtr scatter_on_block(const Node& n, Nodes in, const Axes& axes,
                         const std::vector<Block>& blocks) {
  auto [names, update, clamps] = ScatterAttr::of(n);
  return make(*n.op, on_blocks(n, std::move(in), 2, clamps, blocks), axes, n.dtype,
              ScatterAttr{names, update, false}.attr());
}
NodePtr gather_in_range(const Node& n, const Nodes& in) {
  auto [names, outside] = GatherAttr::of(n);
  bool clamps = outside == program::Outside::clamp, fills = outside == program::Outside::fill;
  NodePtr all;
  for (std::size_t k = 0; k < names.size(); ++k) {
    auto size = find(*n.in[0], names[k])->size;
    fills |= clamps && size == 0;  // there is no position to clamp to
    auto there = within(counted(in[1 + k], size, clamps), 0, size);
    all = all ? both(all, there) : there;
  }
  return fills ? all : nullptr;
}

}  // namespace haliax::prim
