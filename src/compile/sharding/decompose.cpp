// Ops that need a whole axis, said in terms of ops that need only a block of it: each device orders or sums its own block, and
// what is left to do is small.
#include <algorithm>
#include <limits>

#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {
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
    auto whole = count * step == size ? x : prim::pad(x, axis, 0, count * step - size, fill);
    return prim::unflatten(whole, axis, {Axis(blocks, count), Axis(axis, step)});
  }
  NodePtr joined(const NodePtr& x) const {
    auto inner = find(*x, axis)->size;
    return prim::flatten(x, {blocks, axis}, Axis(axis, count * inner));
  }
};

NodePtr cumulative(const NodePtr& n, const Blocked& b) {
  auto m = Monoid(n->attr.ints[0]);
  bool reverse = n->attr.ints[1] != 0;
  auto nothing = prim::identity(m, n->dtype);
  auto y = prim::cumulative(m, b.split(n->in[0], nothing), b.axis, reverse);
  auto last = prim::slice(y, b.axis, reverse ? 0 : b.step - 1, 1, 1, true);
  auto sums = prim::cumulative(m, last, b.blocks, reverse);
  Axes one = sums->axes;
  for (auto& a : one)
    if (a.name == b.blocks) a.size = 1;
  auto first = prim::fit(nothing, one), others = prim::slice(sums, b.blocks, reverse ? 1 : 0, b.count - 1);
  auto before = prim::concat(reverse ? Nodes{others, first} : Nodes{first, others}, Axis(b.blocks, b.count));
  const Op& op = m == Monoid::sum    ? prim::kAdd
                 : m == Monoid::prod ? prim::kMul
                 : m == Monoid::max  ? prim::kMaximum
                                     : prim::kMinimum;
  auto all = b.joined(prim::map(op, {y, before}, n->dtype, &y->axes));
  return prim::fit(prim::slice(all, b.axis, 0, b.size), n->axes);
}

// The first position of the extreme: of those that hold it, the least.
NodePtr extreme_position(const NodePtr& n) {
  auto& x = n->in[0];
  auto top = prim::reduce(n->op == &prim::kArgmax ? Monoid::max : Monoid::min, x, n->axes);
  auto nan = [](const NodePtr& v) { return prim::map(prim::kNotEqual, {v, v}, DType::boolean); };
  auto both = [](const Op& op, const NodePtr& a, const NodePtr& b) { return prim::map(op, {a, b}, DType::boolean); };
  auto hit = prim::equal(x, top);
  if (is_float(x->dtype)) hit = both(prim::kBitOr, hit, both(prim::kBitAnd, nan(x), nan(top)));
  NodePtr position = prim::integer(0, DType::i32);
  std::int64_t stride = 1;
  for (std::size_t k = n->attr.names.size(); k-- > 0;) {
    auto a = *find(*x, n->attr.names[k]);
    position = prim::add(position, prim::mul(prim::iota(a), prim::integer(stride, DType::i32)));
    stride *= a.size;
  }
  auto candidate = prim::select(hit, position, prim::extreme(DType::i32, true));
  return prim::reduce(Monoid::min, candidate, n->axes);
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
  First(const NodePtr& top, const Blocked& blocked) : b(blocked), k(top->attr.ints[1]) {
    auto& keys = top->in[0]->in[0];
    auto last = is_float(keys->dtype) ? prim::number(std::numeric_limits<double>::quiet_NaN(), keys->dtype) : prim::extreme(keys->dtype, true);
    const auto each = std::min(k, b.step), there = b.size / b.step * each + std::min(b.size % b.step, each);
    base = base_at(keys);
    order = prim::slice(prim::argsort(b.split(keys, last), b.axis), b.axis, 0, each);
    sent = picked(base);
    auto candidates = again(keys, base, sent);
    if (there < b.count * each)  // what the last blocks lack
      candidates =
          prim::select(prim::less(prim::iota(Axis(b.axis, b.count * each)), prim::integer(there, DType::i32)), candidates, last);
    best = prim::slice(prim::argsort(candidates, b.axis), b.axis, 0, k);
  }
  NodePtr pick(const NodePtr& table, const NodePtr& ids) const {
    return prim::gather(table, {{b.axis, ids}}, ids->axes, program::Outside::clamp);
  }
  NodePtr picked(const NodePtr& x) const { return b.joined(pick(b.split(x, prim::number(0, x->dtype)), order)); }
  NodePtr base_at(const NodePtr& x) const {  // of which it is made without regard to where on the axis it lies
    auto regards = [&](const Node& n) {
      return std::any_of(n.in.begin(), n.in.end(), [&](auto& i) { return is_free(i) && has(i->axes, b.axis); });
    };
    return regards(*x) ? x : base_of(x, regards);
  }
  NodePtr of(const NodePtr& x) const { return pick(base_at(x) == base ? again(x, base, sent) : picked(x), best); }
  NodePtr positions() const {
    auto start = prim::mul(prim::iota(Axis(b.blocks, b.count)), prim::integer(b.step, DType::i32));
    return pick(b.joined(prim::map(prim::kAdd, {order, start}, DType::i32, &order->axes)), best);
  }
};

}  // namespace

NodePtr base_of(const NodePtr& n, const std::function<bool(const Node&)>& ends) {
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
bool is_top_k(const Node& n) {
  return n.op == &prim::kSlice && rules::shifts(n) && n.in[0]->op == &prim::kArgsort &&
         n.attr.names[0] == n.in[0]->attr.names[0] && n.attr.ints[0] == 0 && n.attr.ints[2] == 1;
}
bool picks_top_k(const Node& n) {
  return n.op == &prim::kGather && n.in.size() == 2 && is_top_k(*n.in[1]) && n.attr.names[0] == n.in[1]->attr.names[0];
}
NodePtr by_blocks(const NodePtr& n, Name axis, int blocks) {
  auto outer = context().origin;
  context().origin = n->origin;
  context().origin.mapping = {};  // it binds the result, not how it is made
  NodePtr out;
  if (n->op == &prim::kCumulative)
    out = cumulative(n, Blocked(*find(*n, axis), blocks));
  else if (n->op == &prim::kGather)
    out = First(n->in[1], Blocked(*find(*n->in[0], axis), blocks)).of(n->in[0]);
  else if (n->op == &prim::kSlice)
    out = First(n, Blocked(*find(*n->in[0], axis), blocks)).positions();
  else
    out = extreme_position(n);
  context().origin = outer;
  return prim::fit(out, n->axes);
}

}  // namespace haliax::partitioning
