// Interval arithmetic on positions.
#include "ops/bounds.h"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "ops/attr.h"
#include "ops/named.h"

namespace haliax::ops {
namespace {

constexpr int deepest = 12;  // depth limit of the search

// Returns the least and the largest value. Nothing if an operation overflowed.
std::optional<Bounds> hull(bool overflow, std::initializer_list<std::int64_t> ends) {
  if (overflow) return {};
  return Bounds{std::min(ends), std::max(ends)};
}
std::optional<Bounds> positions(std::int64_t start, std::int64_t step, std::int64_t count) {
  std::int64_t last = 0;
  bool overflow = __builtin_mul_overflow(step, count - 1, &last);
  overflow |= __builtin_add_overflow(last, start, &last);
  if (count <= 0) return {};
  return hull(overflow, {start, last});
}
std::optional<Bounds> sum(const Bounds& a, const Bounds& b) {
  std::int64_t low = 0, high = 0;
  bool overflow = __builtin_add_overflow(a.low, b.low, &low);
  overflow |= __builtin_add_overflow(a.high, b.high, &high);
  return hull(overflow, {low, high});
}
std::optional<Bounds> product(const Bounds& a, const Bounds& b) {
  std::int64_t p[4];
  bool overflow = __builtin_mul_overflow(a.low, b.low, &p[0]);
  overflow |= __builtin_mul_overflow(a.low, b.high, &p[1]);
  overflow |= __builtin_mul_overflow(a.high, b.low, &p[2]);
  overflow |= __builtin_mul_overflow(a.high, b.high, &p[3]);
  return hull(overflow, {p[0], p[1], p[2], p[3]});
}
std::optional<Bounds> of_leaf(const Node& n) {
  if (n.op == &prim::kNumber) return Bounds{integer_of(n), integer_of(n)};
  if (n.op == &prim::kIota) return positions(0, 1, n.axes[0].size);
  if (n.op != &prim::kIndex) return {};
  auto index = IndexAttr::of(n);
  auto step = std::max<std::int64_t>(1, index.chunk);
  return positions(index.start, step, (index.axis.size + step - 1) / step);
}
// Returns the bounds of an op that does not wrap around. A maximum or minimum of an operand without
// bounds is bounded on one side. For example, max(x, 0) is at least 0.
std::optional<Bounds> of_extreme(const Op& op, const std::optional<Bounds>& a,
                                 const std::optional<Bounds>& b) {
  constexpr auto least = std::numeric_limits<std::int64_t>::min(),
                 most = std::numeric_limits<std::int64_t>::max();
  if (!a && !b) return {};
  const Bounds &x = a ? *a : *b, &y = b ? *b : *a;
  if (&op == &prim::kMaximum)
    return Bounds{std::max(x.low, y.low), a && b ? std::max(x.high, y.high) : most};
  return Bounds{a && b ? std::min(x.low, y.low) : least, std::min(x.high, y.high)};
}
std::optional<Bounds> of_arithmetic(const Op& op, const Bounds& a, const Bounds& b) {
  if (&op == &prim::kAdd) return sum(a, b);
  if (&op == &prim::kSub && b.low > std::numeric_limits<std::int64_t>::min())
    return sum(a, {-b.high, -b.low});
  if (&op == &prim::kMul) return product(a, b);
  return {};
}
std::optional<Bounds> at_depth(const Node& n, int depth) {
  if (depth > deepest || !is_integer(n.dtype)) return {};
  auto of = [&](std::size_t k) { return at_depth(*n.in[k], depth + 1); };
  auto is = [&](auto*... ops) { return ((n.op == ops) || ...); };
  if (is(&prim::kMaximum, &prim::kMinimum)) return of_extreme(*n.op, of(0), of(1));
  std::optional<Bounds> out;
  if (n.op->kind == Kind::leaf) {
    out = of_leaf(n);
  } else if (is(&prim::kCast, &prim::kFit, &prim::kRename, &prim::kSlice)) {
    out = of(0);
  } else if (is(&prim::kSelect)) {
    auto a = of(1), b = of(2);
    if (a && b) out = Bounds{std::min(a->low, b->low), std::max(a->high, b->high)};
  } else if (is(&prim::kMod)) {
    if (auto divisor = of(1); divisor && divisor->low > 0) out = Bounds{0, divisor->high - 1};
  } else if (is(&prim::kAdd, &prim::kSub, &prim::kMul)) {
    auto a = of(0), b = of(1);
    if (a && b) out = of_arithmetic(*n.op, *a, *b);
  }
  // A value that the dtype does not hold wraps around.
  if (out && !(holds(n.dtype, out->low) && holds(n.dtype, out->high))) return {};
  return out;
}

}  // namespace

std::optional<Bounds> bounds_of(NodeRef n) { return at_depth(*n, 0); }

}  // namespace haliax::ops
