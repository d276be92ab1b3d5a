// Sorts, running sums and running products along an axis, and top_k.
#include <algorithm>

#include "graph/emit.h"
#include "graph/loop.h"
#include "haliax/fmt.h"
#include "ops/attr.h"
#include "ops/block_scan.h"
#include "ops/blockwise.h"
#include "ops/fault.h"
#include "ops/named.h"

namespace haliax::prim {
namespace {

using program::Update;

Along full_along(const Node& n, std::size_t, Name a) {
  return {a == AlongAttr::of(n).axis ? Along::Way::full : Along::Way::map, a};
}

Axes axis_last(const Axes& axes, Name last) {
  auto mine = *find_axis(axes, last);
  return joined(without(axes, {mine}), {mine});
}
void sort_lower(const Node& n, Emit& e) {
  program::Step s;
  s.kind = program::Kind::sort;
  auto dims = axis_last(n.axes, AlongAttr::of(n).axis);
  auto out = Emit::view(e.result(), n.axes, dims);
  s.sort = {Emit::sizes(dims), Emit::view(e.operand(0), n.in[0]->axes, dims), {}, {}};
  (n.op == &kSort ? s.sort.out : s.sort.indices) = out;
  e.push(std::move(s));
}
// Computes the gradient of a running product y[i] = x[0] ... x[i]. The cotangent of x[k] is
//
//     y[k - 1] * (g[k] + p[k]),   p[k] = x[k + 1] * (g[k + 1] + p[k + 1]).
//
// The formula has no division, so zeros are valid. A loop computes p.
NodePtr cumprod_grad(NodeRef x, NodeRef y, NodeRef g, Name axis, bool reverse) {
  const auto full = *find(*x, axis);
  const auto n = full.size;
  if (n < 2) return g;
  auto to_next_position = [&](NodeRef v, double first) {
    return pad(slice(v, axis, 0, n - 1), axis, 1, 0, number(first, x->dtype));
  };
  auto to_previous_position = [&](NodeRef v, double last) {
    return pad(slice(v, axis, 1, n - 1), axis, 0, 1, number(last, x->dtype));
  };
  auto earlier = [&](NodeRef v) {
    return reverse ? to_next_position(v, 0) : to_previous_position(v, 0);
  };
  // The loop reads one position at a time, which is contiguous if the axis is first.
  const auto others = without(x->axes, {full}), axis_first = joined({full}, others);
  const auto factor = earlier(fit(x, axis_first)), term = earlier(fit(g, axis_first));

  const DType sums = bytes_of(x->dtype) == 2 ? DType::f32 : x->dtype;
  constexpr int depth = -1;  // differs from the depth of loops around the op
  Loop l;
  l.axis = full;
  l.index = {index(full, 0, 1, depth, LoopOrigin::user)};
  l.drop = true;
  l.reverse = !reverse;
  auto part = [&](NodeRef v) { return cast(slice_at(v, l.index[0], true), sums); };
  const auto p = carry(l.index[0], others, sums);
  const auto next = mul(part(factor), add(part(term), p));
  l.results = {{ResultKind::carry, Monoid::sum, {next}, filled(0, sums, others), p},
               {ResultKind::stack, Monoid::sum, {next}, {}, {}}};
  const auto all = cast(fit(loop_result(make_loop(std::move(l)), 1), x->axes), x->dtype);
  const auto before = reverse ? to_previous_position(y, 1) : to_next_position(y, 1);
  return mul(before, add(fit(g, x->axes), all));
}
void cumulative_lower(const Node& n, Emit& e) {
  auto how = CumulativeAttr::of(n);
  auto dims = axis_last(n.axes, how.axis);
  e.push({.kind = program::Kind::cumulative,
          .cumulative = {Emit::sizes(dims), Emit::view(e.operand(0), n.in[0]->axes, dims),
                         Emit::view(e.result(), n.axes, dims), how.monoid, how.reverse}});
}

// For ops along one axis: sort, argsort, running sums.
std::string along_fault(const Node& n, DType dtype) {
  if (n.dtype != dtype)
    return fmt::format("an operand is {}, but the result is {}", n.in[0]->dtype, n.dtype);
  if (!same_set(n.axes, n.in[0]->axes)) return fault_of_sizes(n);
  auto axis = AlongAttr::of(n).axis;
  return has(n.axes, axis) ? "" : fmt::format("it has no axis {}", axis);
}
std::string same_fault(const Node& n) { return along_fault(n, n.in[0]->dtype); }
std::string argsort_fault(const Node& n) {
  auto* axis = find(*n.in[0], AlongAttr::of(n).axis);
  return along_fault(n, position_dtype(axis ? axis->size : 0));
}

}  // namespace

const Op kArgsort{.name = "argsort",
                  .kind = Kind::step,
                  .lower = sort_lower,
                  .along = full_along,
                  .fault = argsort_fault,
                  .blockwise = sort_blockwise};
const Op kSort{.name = "sort",
               .kind = Kind::step,
               .grad =
                   [](NodeRef o, NodeRef g) {
                     auto& x = o->in[0];
                     Name axis = AlongAttr::of(*o).axis;
                     return Nodes{scatter(filled(0, x->dtype, x->axes), g,
                                          {{axis, argsort(x, axis)}}, Update::add)};
                   },
               .lower = sort_lower,
               .along = full_along,
               .fault = same_fault,
               .blockwise = sort_blockwise};
const Op kCumulative{.name = "cumulative",
                     .kind = Kind::step,
                     .grad =
                         [](NodeRef o, NodeRef g) {
                           auto [axis, monoid, reverse] = CumulativeAttr::of(*o);
                           if (monoid == Monoid::sum)
                             return Nodes{cumulative(Monoid::sum, g, axis, !reverse)};
                           if (monoid == Monoid::prod)
                             return Nodes{cumprod_grad(o->in[0], o, g, axis, reverse)};
                           fail("cumulative",
                                "the gradient of a running max or min is not defined");
                         },
                     .lower = cumulative_lower,
                     .along = full_along,
                     .fault = same_fault,
                     .blockwise = cumulative_blockwise,
                     .block_scan = cumulative_block_scan};

NodePtr argsort(NodeRef x, Name axis) {
  return make(kArgsort, {x}, x->axes, position_dtype(find(*x, axis)->size), AlongAttr{axis}.attr());
}
NodePtr sort(NodeRef x, Name axis) {
  return make(kSort, {x}, x->axes, x->dtype, AlongAttr{axis}.attr());
}
NodePtr cumulative(Monoid m, NodeRef x, Name axis, bool reverse) {
  return make(kCumulative, {x}, x->axes, x->dtype, CumulativeAttr{axis, m, reverse}.attr());
}

namespace {
const bool order_registered = register_ops({&kArgsort, &kSort, &kCumulative});
}  // namespace
}  // namespace haliax::prim

namespace haliax {

using namespace ops;

namespace {
NamedArray running(const char* op, Arr x, const AxisSelector& axis, Monoid m,
                   std::optional<DType> dtype) {
  auto [here, n, a] = CallAlong(op, x, axis);
  auto d = dtype.value_or(sum_dtype(n->dtype, m == Monoid::sum ? a.size : 1));
  if (d == DType::boolean) fail(op, "dtype: expected numbers, got bool; use i32");
  return wrap(prim::cumulative(m, prim::cast(n, d), a.name));
}
// Returns a key whose ascending order is the descending order of the values. NaN is
// the largest value and has the first position.
NodePtr descending(NodeRef x) {
  if (x->dtype == DType::boolean) return prim::logical_not(x);
  // -1 - x, or maximum - x for unsigned integers: never overflows
  if (is_integer(x->dtype)) return prim::map(prim::kBitNot, {x}, x->dtype);
  auto nan = prim::is_nan(x);
  return prim::select(nan, prim::extreme(x->dtype, false), prim::neg(x));
}
}  // namespace

NamedArray cumsum(Arr x, const AxisSelector& axis, std::optional<DType> dtype) {
  return running("cumsum", x, axis, Monoid::sum, dtype);
}
NamedArray cumprod(Arr x, const AxisSelector& axis, std::optional<DType> dtype) {
  return running("cumprod", x, axis, Monoid::prod, dtype);
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
                                        std::optional<AxisSelector> new_axis) {
  constexpr auto op = "top_k";
  auto [here, n, a] = CallAlong(op, x, axis);
  if (k < 0 || k > a.size)
    fail(op, fmt::format("k is {}; it must be from 0 to the size of {}", k, a));
  if (new_axis && new_axis->size >= 0 && new_axis->size != k)
    fail(op, fmt::format("k is {}, but new_axis is {}", k, Axis(new_axis->name, new_axis->size)));
  // (..., axis = k)
  auto first = prim::slice(prim::argsort(descending(n), a.name), a.name, 0, k);
  auto values = prim::gather(n, {{a.name, first}}, first->axes, program::Outside::clamp);
  auto name = new_axis ? new_axis->name : a.name;
  return {wrap(renamed(op, values, a, name)), wrap(renamed(op, first, a, name))};
}

}  // namespace haliax
