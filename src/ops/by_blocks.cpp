#include "ops/by_blocks.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/loop.h"
#include "ops/attr.h"

namespace haliax::prim {
namespace {

struct Blocked {
  Name axis, blocks;
  std::int64_t size, count, step;  // of the axis; of blocks; of one block
  Blocked(const Axis& a, int n)
      : axis(a.name),
        blocks("(blocks of " + std::string(a.name.text()) + ")"),
        size(a.size),
        count(n),
        step((a.size + n - 1) / n) {}
  // (..., axis) -> (..., blocks, axis); what is missing in the last block is `fill`.
  NodePtr split(const NodePtr& x, const NodePtr& fill) const {
    auto whole = count * step == size ? x : pad(x, axis, 0, count * step - size, fill);
    return unflatten(whole, axis, {Axis(blocks, count), Axis(axis, step)});
  }
  NodePtr joined(const NodePtr& x) const {
    auto inner = find(*x, axis)->size;
    return flatten(x, {blocks, axis}, Axis(axis, count * inner));
  }
};

NodePtr running(const NodePtr& n, const Blocked& b) {
  auto [axis, m, reverse] = CumulativeAttr::of(*n);
  auto nothing = identity(m, n->dtype);
  auto y = cumulative(m, b.split(n->in[0], nothing), b.axis, reverse);
  auto last = slice(y, b.axis, reverse ? 0 : b.step - 1, 1, 1, true);
  auto sums = cumulative(m, last, b.blocks, reverse);
  Axes one = sums->axes;
  for (auto& a : one)
    if (a.name == b.blocks) a.size = 1;
  auto first = fit(nothing, one), others = slice(sums, b.blocks, reverse ? 1 : 0, b.count - 1);
  auto before = concat(reverse ? Nodes{others, first} : Nodes{first, others}, Axis(b.blocks, b.count));
  const Op& op = m == Monoid::sum    ? kAdd
                 : m == Monoid::prod ? kMul
                 : m == Monoid::max  ? kMaximum
                                     : kMinimum;
  auto all = b.joined(map(op, {y, before}, n->dtype, &y->axes));
  return fit(slice(all, b.axis, 0, b.size), n->axes);
}

// The first position of the extreme: of those that hold it, the least.
NodePtr extreme_position(const NodePtr& n) {
  auto& x = n->in[0];
  auto top = reduce(n->op == &kArgmax ? Monoid::max : Monoid::min, x, n->axes);
  auto nan = [](const NodePtr& v) { return map(kNotEqual, {v, v}, DType::boolean); };
  auto both = [](const Op& op, const NodePtr& a, const NodePtr& b) { return map(op, {a, b}, DType::boolean); };
  auto hit = equal(x, top);
  if (is_float(x->dtype)) hit = both(kBitOr, hit, both(kBitAnd, nan(x), nan(top)));
  NodePtr position = integer(0, DType::i32);
  std::int64_t stride = 1;
  for (std::size_t k = n->attr.names.size(); k-- > 0;) {
    auto a = *find(*x, n->attr.names[k]);
    position = add(position, mul(iota(a), integer(stride, DType::i32)));
    stride *= a.size;
  }
  auto candidate = select(hit, position, extreme(DType::i32, true));
  return reduce(Monoid::min, candidate, n->axes);
}

// n, made again of another value of its base.
NodePtr again(const NodePtr& n, const NodePtr& base, const NodePtr& now) {
  if (n == base) return now;
  if (is_free(n)) return n;
  Nodes in;
  for (auto& x : n->in) in.push_back(again(x, base, now));
  auto axes = n->axes;
  for (auto& a : axes) a = *find(*now, a.name);
  return make(*n->op, std::move(in), axes, n->dtype, n->attr);
}

// Each block gives its own first k; the first k of those are the first k of all. What is sent is what the keys are made of, if it
// is made point by point: it is mostly what is picked, too.
struct First {
  Blocked b;
  std::int64_t k;
  NodePtr base, order, sent, best;  // order: positions in each block (..., blocks, axis = k)
                                    // sent: of the base, what is picked so (..., axis = blocks * k); best: positions in it
  First(const NodePtr& top, const Blocked& blocked) : b(blocked), k(SliceAttr::of(*top).size) {
    auto& keys = top->in[0]->in[0];
    auto last = is_float(keys->dtype) ? number(std::numeric_limits<double>::quiet_NaN(), keys->dtype) : extreme(keys->dtype, true);
    const auto each = std::min(k, b.step), there = b.size / b.step * each + std::min(b.size % b.step, each);
    base = base_at(keys);
    order = slice(argsort(b.split(keys, last), b.axis), b.axis, 0, each);
    sent = picked(base);
    auto candidates = again(keys, base, sent);
    if (there < b.count * each)  // what the last blocks lack
      candidates =
          select(less(iota(Axis(b.axis, b.count * each)), integer(there, DType::i32)), candidates, last);
    best = slice(argsort(candidates, b.axis), b.axis, 0, k);
  }
  NodePtr pick(const NodePtr& table, const NodePtr& ids) const {
    return gather(table, {{b.axis, ids}}, ids->axes, program::Outside::clamp);
  }
  NodePtr picked(const NodePtr& x) const { return b.joined(pick(b.split(x, number(0, x->dtype)), order)); }
  NodePtr base_at(const NodePtr& x) const {  // of which it is made without regard to where on the axis it lies
    auto regards = [&](const Node& n) {
      return std::any_of(n.in.begin(), n.in.end(), [&](auto& i) { return is_free(i) && has(i->axes, b.axis); });
    };
    return regards(*x) ? x : pointwise_source(x, regards);
  }
  NodePtr of(const NodePtr& x) const { return pick(base_at(x) == base ? again(x, base, sent) : picked(x), best); }
  NodePtr positions() const {
    auto start = mul(iota(Axis(b.blocks, b.count)), integer(b.step, DType::i32));
    return pick(b.joined(map(kAdd, {order, start}, DType::i32, &order->axes)), best);
  }
};

// ---- slices by ids ----
Name positions_of(Name axis) { return Name("(positions of " + std::string(axis.text()) + ")"); }
Axes with_name(Axes axes, Name from, Name to) {
  for (auto& a : axes)
    if (a.name == from) a.name = to;
  return axes;
}
// One position, or those from a start that is not known yet, picked by ids: the devices that hold them answer. The index of a loop is no such
// start: its turns read all of the axis.
NodePtr picked_slice(const NodePtr& n) {
  auto& x = n->in[0];
  auto c = SliceAttr::of(*n);
  const bool known = n->in.size() == 1;
  if (!known && n->in[1]->op == &kIndex) return nullptr;
  auto size = find(*x, c.axis)->size;
  const auto d = size > std::numeric_limits<std::int32_t>::max() ? DType::i64 : DType::i32;
  auto ids = integer(c.start, d);
  Name positions = positions_of(c.axis);
  if (!c.drop) ids = add(mul(iota(Axis(positions, c.size), d), integer(c.step, d)), ids);
  if (!known) {   // moved to where it fits, as the slice is
    auto& start = n->in[1];
    auto at = [&](std::int64_t i) { return integer(i, start->dtype); };
    ids = add(ids, cast(max(min(start, at(size - c.start - ((c.size - 1) * c.step + 1))), at(0)), d));
  }
  auto out = gather(x, {{c.axis, ids}}, with_name(n->axes, c.axis, positions), program::Outside::zero);
  return c.drop ? out : rename(out, {positions}, {c.axis});
}

// ---- ids with the name of the axis that they say where on ----
// Known ids, one step after the other: of start + step * position.
struct Run {
  std::int64_t start = 0, step = 0;
};
std::optional<Run> run_of(const NodePtr& ids, int depth = 0) {
  constexpr int far = 8;
  if (is_number(ids) && is_integer(ids->dtype)) return Run{integer_of(ids->op == &kNumber ? *ids : *ids->in[0]), 0};
  if (ids->op == &kIota) return Run{0, 1};
  if (depth == far || ids->axes.size() > 1) return {};
  if (ids->op == &kFit || (ids->op == &kCast && is_integer(ids->dtype))) return run_of(ids->in[0], depth + 1);
  bool adds = ids->op == &kAdd, scales = ids->op == &kMul, most = ids->op == &kMaximum;
  if (!adds && !scales && !most && ids->op != &kMinimum) return {};
  auto a = run_of(ids->in[0], depth + 1), b = run_of(ids->in[1], depth + 1);
  if (!a || !b) return {};
  if (adds) return Run{a->start + b->start, a->step + b->step};
  if (a->step && b->step) return {};
  if (scales) return Run{a->start * b->start, a->step * b->start + b->step * a->start};
  if (a->step || b->step) return {};
  return Run{most ? std::max(a->start, b->start) : std::min(a->start, b->start), 0};
}
// The slice of `whole` that ids (axis) name; none if they are not known, or not all inside.
std::optional<SliceAttr> slice_of(const NodePtr& ids, const Axis& whole) {
  auto* a = find(*ids, whole.name);
  if (!a || ids->axes.size() != 1 || a->size == 0) return {};
  auto run = run_of(ids);
  if (!run || run->step < 1 || run->start < 0 || run->start + (a->size - 1) * run->step >= whole.size) return {};
  return SliceAttr{whole.name, run->start, a->size, run->step};
}
std::int64_t where_on(const Node& n, Name axis) { return std::find(n.attr.names.begin(), n.attr.names.end(), axis) - n.attr.names.begin(); }

// Another name for the axis of the ids: then the table's keeps its own, and the ids pick from blocks of it. Not where as much comes out
// as there is.
NodePtr picked_apart(const NodePtr& n, Name axis) {
  if (picks_in_order(*n) || n->bytes() >= n->in[0]->bytes()) return nullptr;
  auto attr = GatherAttr::of(*n);
  auto whole = *find(*n->in[0], axis);
  auto slot = std::size_t(where_on(*n, axis));
  if (auto c = slice_of(n->in[1 + slot], whole); c && n->in.size() == 2)
    return slice(n->in[0], c->axis, c->start, c->size, c->step);
  Name positions = positions_of(axis);
  Where where;
  for (std::size_t k = 0; k < attr.axes.size(); ++k) where.push_back({attr.axes[k], rename(n->in[k + 1], {axis}, {positions})});
  return rename(gather(n->in[0], where, with_name(n->axes, axis, positions), attr.outside), {positions}, {axis});
}

}  // namespace

// Likewise what is placed. At positions that are known, in a row, it is placed among zeros, and what the row covers is chosen from there.
NodePtr scatter_by_blocks(const NodePtr& n, Name axis, int) {
  auto attr = ScatterAttr::of(*n);
  auto& base = n->in[0];
  auto updates = n->in[1];
  bool sets = attr.update == program::Update::set, adds = attr.update == program::Update::add;
  std::vector<SliceAttr> runs;
  for (std::size_t k = 0; k < attr.axes.size(); ++k)
    if (auto c = slice_of(n->in[k + 2], *find(*n, attr.axes[k])); c && c->step == 1) runs.push_back(*c);
  if (runs.size() == attr.axes.size() && (sets || adds)) {
    NodePtr there;
    for (auto& c : runs) {
      auto whole = *find(*base, c.axis);
      auto position = iota(whole, whole.size > std::numeric_limits<std::int32_t>::max() ? DType::i64 : DType::i32);
      auto number = [&](std::int64_t i) { return integer(i, position->dtype); };
      auto in_row = map(kBitAnd, {less_equal(number(c.start), position), less(position, number(c.start + c.size))}, DType::boolean);
      there = there ? map(kBitAnd, {there, in_row}, DType::boolean) : in_row;
      auto axes = updates->axes;
      for (auto& a : axes)
        if (a.name == c.axis) a = whole;
      updates = place(updates, axes, c.axis, c.start, 1, false);
    }
    return sets ? map(kSelect, {there, updates, base}, n->dtype, &n->axes) : add(base, updates);
  }
  Name positions = positions_of(axis);
  Where where;
  for (std::size_t k = 0; k < attr.axes.size(); ++k) where.push_back({attr.axes[k], rename(n->in[k + 2], {axis}, {positions})});
  return scatter(base, rename(updates, {axis}, {positions}), where, attr.update, attr.clamp);
}

NodePtr pointwise_source(const NodePtr& n, const std::function<bool(const Node&)>& ends) {
  constexpr int far = 8;
  auto below = [&](auto& self, const NodePtr& x, int depth) -> NodePtr {
    if (x->op->kind != Kind::map || depth == far || (depth && ends(*x))) return x;
    NodePtr one;
    for (auto& i : x->in) {
      if (is_free(i)) continue;
      auto base = self(self, i, depth + 1);
      if ((one && one != base) || base->axes.size() != x->axes.size()) return x;
      one = base;
    }
    return one ? one : x;
  };
  auto base = below(below, n, 0);
  return bytes_of(base->dtype) > bytes_of(n->dtype) ? n : base;
}
bool maps(const Node& n) {
  for (std::size_t k = 0; k < n.in.size(); ++k)
    if (n.in[k] && !only_waits(n, k))
      for (auto& a : n.in[k]->axes)
        if (along(n, k, a.name).way != Along::Way::map) return false;
  return std::all_of(n.axes.begin(), n.axes.end(), [&](auto& a) { return along(n, kResultSide, a.name).way == Along::Way::map; });
}
bool is_top_k(const Node& n) {
  return n.op == &kSlice && along(n, 0, n.attr.names[0]).way == Along::Way::shift && n.in[0]->op == &kArgsort &&
         n.attr.names[0] == n.in[0]->attr.names[0] && SliceAttr::of(n).start == 0 && SliceAttr::of(n).step == 1;
}
bool picks_top_k(const Node& n) {
  return n.op == &kGather && n.in.size() == 2 && is_top_k(*n.in[1]) && n.attr.names[0] == n.in[1]->attr.names[0];
}

bool picks_in_order(const Node& n) { return picks_top_k(n) || (n.op == &kGather && n.in[1]->op == &kArgsort); }

NodePtr cumulative_by_blocks(const NodePtr& n, Name axis, int blocks) { return running(n, Blocked(*find(*n, axis), blocks)); }
NodePtr extreme_by_blocks(const NodePtr& n, Name, int) { return extreme_position(n); }
NodePtr slice_by_blocks(const NodePtr& n, Name axis, int blocks) {
  return is_top_k(*n) ? First(n, Blocked(*find(*n->in[0], axis), blocks)).positions() : picked_slice(n);
}
NodePtr gather_by_blocks(const NodePtr& n, Name axis, int blocks) {
  return picks_top_k(*n) ? First(n->in[1], Blocked(*find(*n->in[0], axis), blocks)).of(n->in[0]) : picked_apart(n, axis);
}

NodePtr by_blocks(const NodePtr& n, Name axis, int blocks) {
  At due(n->origin);
  context().origin.mapping = {};  // it binds the result, not how it is made
  auto out = n->op->by_blocks(n, axis, blocks);
  return out ? fit(out, n->axes) : out;
}

namespace {
NodePtr within(const NodePtr& ids, std::int64_t end) {
  auto number = [&](std::int64_t v) { return integer(v, ids->dtype); };
  return map(kBitAnd, {less_equal(number(0), ids), less(ids, number(end))}, DType::boolean);
}
}  // namespace
BlockIds::BlockIds(const NodePtr& of, std::int64_t n, bool clamp) : size(n), ids(signed_ids(of, n)) {
  auto number = [&](std::int64_t v) { return integer(v, ids->dtype); };
  if (clamp && size > 0) ids = min(max(ids, number(0)), number(size - 1));
}
NodePtr BlockIds::there() const { return within(ids, size); }
NodePtr BlockIds::from(const NodePtr& start, std::int64_t length) const {
  auto shifted = sub(ids, cast(start, ids->dtype));
  return select(within(shifted, length), shifted, integer(length, ids->dtype));
}

}  // namespace haliax::prim
