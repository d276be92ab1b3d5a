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
std::optional<Bounds> at_depth(const Node& n, int depth) {
  if (depth > deepest || !is_integer(n.dtype)) return {};
  auto of = [&](std::size_t k) { return at_depth(*n.in[k], depth + 1); };
  std::optional<Bounds> out;
  if (n.op == &prim::kNumber) {
    auto v = integer_of(n);
    out = Bounds{v, v};
  } else if (n.op == &prim::kIota) {
    out = positions(0, 1, n.axes[0].size);
  } else if (n.op == &prim::kIndex) {
    auto index = IndexAttr::of(n);
    auto step = std::max<std::int64_t>(1, index.chunk);
    out = positions(index.start, step, (index.axis.size + step - 1) / step);
  } else if (n.op == &prim::kCast || n.op == &prim::kFit || n.op == &prim::kRename ||
             n.op == &prim::kSlice) {
    out = of(0);
  } else if (n.op == &prim::kSelect) {
    auto a = of(1), b = of(2);
    if (a && b) out = Bounds{std::min(a->low, b->low), std::max(a->high, b->high)};
  } else if (n.in.size() == 2) {
    auto a = of(0), b = of(1);
    if (n.op == &prim::kMaximum && (a || b))
      out = Bounds{std::max(a ? a->low : b->low, b ? b->low : a->low),
                   a && b ? std::max(a->high, b->high) : std::numeric_limits<std::int64_t>::max()};
    if (n.op == &prim::kMinimum && (a || b))
      out = Bounds{a && b ? std::min(a->low, b->low) : std::numeric_limits<std::int64_t>::min(),
                   std::min(a ? a->high : b->high, b ? b->high : a->high)};
    if (n.op == &prim::kMod && b && b->low > 0) out = Bounds{0, b->high - 1};
    if (!a || !b) return out;
    if (n.op == &prim::kAdd) out = sum(*a, *b);
    if (n.op == &prim::kSub && b->low > std::numeric_limits<std::int64_t>::min())
      out = sum(*a, {-b->high, -b->low});
    if (n.op == &prim::kMul) out = product(*a, *b);
  }
  // A value that the dtype does not hold wraps around.
  if (out && !(holds(n.dtype, out->low) && holds(n.dtype, out->high))) return {};
  return out;
}

}  // namespace

std::optional<Bounds> bounds_of(NodeRef n) { return at_depth(*n, 0); }

}  // namespace haliax::ops
