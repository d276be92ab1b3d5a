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

constexpr int far = 8;  // depth limit of searches in the graph

NodePtr running(NodeRef n, const Blocked& b) {
  auto [axis, m, reverse] = CumulativeAttr::of(*n);
  auto nothing = identity(m, n->dtype);
  auto y = cumulative(m, b.split(n->in[0], nothing), b.axis, reverse);
  auto last = at_position(y, b.axis, reverse ? 0 : b.step - 1);
  auto sums = cumulative(m, last, b.blocks, reverse);
  auto first = fit(nothing, replaced(sums->axes, b.blocks, {Axis(b.blocks, 1)}));
  auto others = slice(sums, b.blocks, reverse ? 1 : 0, b.count - 1);
  auto before =
      concat(reverse ? Nodes{others, first} : Nodes{first, others}, Axis(b.blocks, b.count));
  auto all = b.joined(map(pairwise(m), {y, before}, n->dtype, &y->axes));
  return fit(slice(all, b.axis, 0, b.size), n->axes);
}

// Returns the first position of the extreme: the least position that has the extreme value.
NodePtr extreme_position(NodeRef n) {
  auto& x = n->in[0];
  auto top = reduce(n->op == &kArgmax ? Monoid::max : Monoid::min, x, n->axes);
  auto nan = [](NodeRef v) { return map(kNotEqual, {v, v}, DType::boolean); };
  auto both = [](const Op& op, NodeRef a, NodeRef b) { return map(op, {a, b}, DType::boolean); };
  auto hit = equal(x, top);
  if (is_float(x->dtype)) hit = both(kBitOr, hit, both(kBitAnd, nan(x), nan(top)));
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
NodePtr replayed(NodeRef n, NodeRef base, NodeRef now) {
  if (n == base) return now;
  if (is_generated(n)) return n;
  Nodes in;
  for (auto& x : n->in) in.push_back(replayed(x, base, now));
  auto axes = n->axes;
  for (auto& a : axes) a = *find(*now, a.name);
  return rebuilt(*n, std::move(in), axes);
}

// top_k. Each block selects its own first k elements; the first k of these candidates are the first
// k of the full axis. The keys may be computed elementwise from another value, their base. Then the
// base is communicated in place of the keys, since the picked values are usually computed from it
// as well.
struct First {
  Blocked b;
  std::int64_t k;
  // order: selected positions in each block, (..., blocks, axis = k). sent: the candidates: the
  // base at these positions, (..., axis = blocks * k). best: positions of the first k among the
  // candidates.
  NodePtr base, order, sent, best;
  First(NodeRef top, const Blocked& blocked) : b(blocked), k(SliceAttr::of(*top).size) {
    auto& keys = top->in[0]->in[0];
    auto last = last_of(keys->dtype);
    const auto each = std::min(k, b.step),
               there = b.size / b.step * each + std::min(b.size % b.step, each);
    base = base_at(keys);
    order = slice(argsort(b.split(keys, last), b.axis), b.axis, 0, each);
    sent = picked(base);
    auto candidates = replayed(keys, base, sent);
    if (there < b.count * each)  // candidates that the short last blocks lack
      candidates = select(less(iota(Axis(b.axis, b.count * each)), integer(there, DType::i32)),
                          candidates, last);
    best = slice(argsort(candidates, b.axis), b.axis, 0, k);
  }
  NodePtr pick(NodeRef table, NodeRef ids) const {
    return gather(table, {{b.axis, ids}}, ids->axes, program::Outside::clamp);
  }
  NodePtr picked(NodeRef x) const { return b.joined(pick(b.split(x, number(0, x->dtype)), order)); }
  // Returns the value from which x is computed elementwise, without any use of positions on the
  // axis.
  NodePtr base_at(NodeRef x) const {
    auto regards = [&](const Node& n) {
      return std::any_of(n.in.begin(), n.in.end(),
                         [&](auto& i) { return is_generated(i) && has(i->axes, b.axis); });
    };
    return regards(*x) ? x : pointwise_source(x, regards);
  }
  NodePtr of(NodeRef x) const {
    return pick(base_at(x) == base ? replayed(x, base, sent) : picked(x), best);
  }
  NodePtr positions() const {
    auto start = mul(iota(Axis(b.blocks, b.count)), integer(b.step, DType::i32));
    return pick(b.joined(map(kAdd, {order, start}, DType::i32, &order->axes)), best);
  }
};

// ---- slices at dynamic positions ----
Name positions_of(Name axis) { return Name("(positions of " + std::string(axis.text()) + ")"); }
Axes with_name(Axes axes, Name from, Name to) {
  for (auto& a : axes)
    if (a.name == from) a.name = to;
  return axes;
}
// Returns the positions that a slice of this axis reads, moved so that the slice fits. Null for a
// slice at the index of a loop, whose iterations read the full axis.
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
  Name positions = positions_of(c.axis);
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
std::optional<Progression> run_of(NodeRef ids, int depth = 0) {
  if (is_number(ids) && is_integer(ids->dtype))
    return Progression{integer_of(ids->op == &kNumber ? *ids : *ids->in[0]), 0};
  if (ids->op == &kIota) return Progression{0, 1};
  if (depth == far || ids->axes.size() > 1) return {};
  if (ids->op == &kFit || (ids->op == &kCast && is_integer(ids->dtype)))
    return run_of(ids->in[0], depth + 1);
  bool adds = ids->op == &kAdd, scales = ids->op == &kMul, most = ids->op == &kMaximum;
  if (!adds && !scales && !most && ids->op != &kMinimum) return {};
  auto a = run_of(ids->in[0], depth + 1), b = run_of(ids->in[1], depth + 1);
  if (!a || !b) return {};
  if (adds) return Progression{a->start + b->start, a->step + b->step};
  if (a->step && b->step) return {};
  if (scales) return Progression{a->start * b->start, a->step * b->start + b->step * a->start};
  if (a->step || b->step) return {};
  return Progression{most ? std::max(a->start, b->start) : std::min(a->start, b->start), 0};
}
// Returns the slice of the axis `full` that the ids select; none if the ids are not constant or
// are out of range.
std::optional<SliceAttr> picked_run(NodeRef ids, const Axis& full) {
  auto* a = find(*ids, full.name);
  if (!a || ids->axes.size() != 1 || a->size == 0) return {};
  auto run = run_of(ids);
  if (!run || run->step < 1 || run->start < 0 ||
      run->start + (a->size - 1) * run->step >= full.size)
    return {};
  return SliceAttr{full.name, run->start, a->size, run->step};
}
std::int64_t where_on(const Node& n, Name axis) {
  auto& axes = indexed_axes(n);
  return std::find(axes.begin(), axes.end(), axis) - axes.begin();
}

// Returns true if x may be sharded along this axis. Values that are computed from positions alone
// are not sharded.
bool may_be_sharded(NodeRef x, Name axis, int depth = 0) {
  if (!has(x->axes, axis) || is_generated(x)) return false;
  if (depth == far || x->op->kind == Kind::leaf || x->op->kind == Kind::result) return true;
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
  auto slot = std::size_t(where_on(*n, axis));
  if (auto c = picked_run(n->in[1 + slot], full); c && n->in.size() == 2)
    return slice(n->in[0], c->axis, c->start, c->size, c->step);
  Name positions = positions_of(axis);
  auto picks = picks_of(*n, 1);
  for (auto& [a, ids] : picks) ids = rename(ids, {axis}, {positions});
  return rename(gather(n->in[0], picks, with_name(n->axes, axis, positions), attr.outside),
                {positions}, {axis});
}

}  // namespace

// If the ids are constant and consecutive, places the updates among zeros and selects within the
// range of the ids. Otherwise, renames the axis of the ids, so that they index blocks of the base.
NodePtr scatter_blockwise(NodeRef n, Name axis, int) {
  auto attr = ScatterAttr::of(*n);
  auto& base = n->in[0];
  auto updates = n->in[1];
  bool sets = attr.update == program::Update::set, adds = attr.update == program::Update::add;
  std::vector<SliceAttr> runs;
  auto picks = picks_of(*n, 2);
  for (auto& [a, ids] : picks)
    if (auto c = picked_run(ids, *find(*n, a)); c && c->step == 1) runs.push_back(*c);
  if (runs.size() == picks.size() && (sets || adds)) {
    NodePtr there;
    for (auto& c : runs) {
      auto full = *find(*base, c.axis);
      auto in_row = within(iota(full), c.start, c.start + c.size);
      there = there ? both(there, in_row) : in_row;
      updates = place(updates, replaced(updates->axes, c.axis, {full}), c.axis, c.start);
    }
    return sets ? select(there, updates, base, n->axes) : add(base, updates);
  }
  Name positions = positions_of(axis);
  for (auto& [a, ids] : picks) ids = rename(ids, {axis}, {positions});
  return scatter(base, rename(updates, {axis}, {positions}), picks, attr.update, attr.clamp);
}

NodePtr pointwise_source(NodeRef n, const std::function<bool(const Node&)>& ends) {
  auto base_of = [&](auto& self, NodeRef x, int depth) -> NodePtr {
    if (x->op->kind != Kind::map || depth == far || (depth && ends(*x))) return x;
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
  return running(n, Blocked(*find(*n, axis), blocks));
}
NodePtr extreme_blockwise(NodeRef n, Name, int) { return extreme_position(n); }
NodePtr slice_blockwise(NodeRef n, Name axis, int blocks) {
  return is_top_k(*n) ? First(n, Blocked(*find(*n->in[0], axis), blocks)).positions()
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
  if (picks_top_k(*n)) return First(n->in[1], Blocked(*find(*n->in[0], axis), blocks)).of(n->in[0]);
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
