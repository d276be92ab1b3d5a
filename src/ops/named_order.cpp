// Sorting along an axis, and running sums and running products.
#include "haliax/fmt.h"
#include "ops/named.h"

namespace haliax {

using namespace ops;

namespace {
NamedArray running(const char* op, Arr x, const AxisSelector& axis, Monoid m) {
  auto [here, n, a] = CallAlong(op, x, axis);
  return wrap(prim::cumulative(m, prim::cast(n, sum_dtype(n->dtype, m == Monoid::sum ? a.size : 1)),
                               a.name, false));
}
// Returns a key whose ascending order is the descending order of the values. NaN is
// the largest value and has the first position.
NodePtr descending(G x) {
  if (x->dtype == DType::boolean) return prim::logical_not(x);
  // -1 - x, or maximum - x for unsigned integers: never overflows
  if (is_integer(x->dtype)) return prim::map(prim::kBitNot, {x}, x->dtype);
  auto nan = prim::is_nan(x);
  return prim::select(nan, prim::extreme(x->dtype, false), prim::neg(x));
}
}  // namespace

NamedArray cumsum(Arr x, const AxisSelector& axis) {
  return running("cumsum", x, axis, Monoid::sum);
}
NamedArray cumprod(Arr x, const AxisSelector& axis) {
  return running("cumprod", x, axis, Monoid::prod);
}
NamedArray sort(Arr x, const AxisSelector& axis) {
  auto [here, n, a] = CallAlong("sort", x, axis);
  return wrap(prim::sort(n, a.name));
}
NamedArray argsort(Arr x, const AxisSelector& axis) {
  auto [here, n, a] = CallAlong("argsort", x, axis);
  return wrap(prim::argsort(n, a.name));
}
std::pair<NamedArray, NamedArray> top_k(Arr x, const AxisSelector& axis, std::int64_t k,
                                        std::optional<Name> new_axis) {
  constexpr auto op = "top_k";
  auto [here, n, a] = CallAlong(op, x, axis);
  if (k < 0 || k > a.size)
    fail(op, fmt::format("k is {}; it must be from 0 to the size of {}", k, a));
  // (..., axis = k)
  auto first = prim::slice(prim::argsort(descending(n), a.name), a.name, 0, k);
  auto values = prim::gather(n, {{a.name, first}}, first->axes, program::Outside::clamp);
  auto name = new_axis.value_or(a.name);
  return {wrap(renamed(op, values, a, name)), wrap(renamed(op, first, a, name))};
}

}  // namespace haliax
