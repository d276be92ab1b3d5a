// Reductions, and normalizations along axes. Hidden axes are never reduced.
#include <cmath>

#include "haliax/fmt.h"
#include "ops/attr.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;

// The parts of a reduction: its operand, a mask, and the axes before and after.
struct Reduced {
  const char* op;
  CallSite here;
  NodePtr x, mask;
  // Reduced axes; all axes, including the hidden axes of the mask; remaining axes.
  Axes over, full, rest;
  DType narrow, wide;  // dtype of a float result; dtype to compute in

  Reduced(const char* name, const Arr& a, const AxisSelection& selection,
          const std::optional<NamedArray>& where = {})
      : op(name), here(a.at()), x(node_of(op, a)), over(axes_of(op, x, selection)) {
    Nodes operands{x};
    if (where) operands.push_back(mask = mask_of(op, *where, *x));
    full = with_hidden(operands, visible(*x));
    rest = without(full, over);
    narrow = float_of(x->dtype);
    wide = wide_of(x->dtype);
  }
  NodePtr by(Monoid m, NodeRef v) const {
    return prim::reduce(m, mask ? prim::select(mask, v, prim::identity(m, v->dtype), full) : v,
                        rest);
  }
  NodePtr sum(NodeRef v) const { return by(Monoid::sum, v); }
  NodePtr greatest(NodeRef v) const { return prim::stop_gradient(by(Monoid::max, v)); }
  // Returns the number of summed elements: a scalar, or an array if there is a mask.
  NodePtr count(DType d) const {
    if (!mask) return prim::number(double(axis_size(over)), d);
    // Cast before the broadcast: `reduce` then counts each element of the mask once.
    auto counted = prim::fit(prim::cast(mask, prim::position_dtype(axis_size(over))), full);
    return prim::cast(prim::reduce(Monoid::sum, counted, rest), d);
  }
  void compute_in(std::optional<DType> dtype) {
    if (!dtype) return;
    if (!is_float(*dtype)) fail(op, "dtype: expected a float dtype, got " + text(*dtype));
    narrow = *dtype;
    wide = wide_of(*dtype);
  }
  NodePtr centred(NodeRef v) const { return prim::sub(v, prim::div(sum(v), count(wide))); }
  // Computes the variance in the wide dtype, in two passes.
  NodePtr variance(int ddof) const {
    auto n = count(wide), from_mean = centred(prim::cast(x, wide)),
         freedom = prim::sub(n, prim::number(ddof, wide));
    auto v = prim::div(sum(prim::fit(prim::square(from_mean), full)), freedom);
    if (ddof == 0) return v;
    auto none = prim::less_equal(freedom, prim::number(0, wide));
    return prim::fit(prim::select(none, prim::number(NAN, wide), v), rest);
  }
  NamedArray result(NodeRef v) const { return NamedArray(prim::cast(v, narrow)); }
  void check_not_empty() const {
    if (axis_size(over) == 0)
      fail(op, "there are no elements along " + to_string(over) +
                   "; at least one is required for " + std::string(op));
  }
};

NamedArray extreme(const char* op, Monoid m, const Arr& a, const AxisSelection& selection,
                   const ReduceOptions& options) {
  Reduced f(op, a, selection, options.where);
  f.check_not_empty();
  return NamedArray(cast(f.by(m, f.x), options.dtype.value_or(f.x->dtype)));
}
NamedArray truth(const char* op, Monoid m, const Arr& a, const AxisSelection& selection,
                 const ReduceOptions& options) {
  Reduced f(op, a, selection, options.where);
  return NamedArray(cast(f.by(m, to_bool(f.x)), options.dtype.value_or(DType::boolean)));
}
NamedArray position(const char* op, bool largest, const Arr& a,
                    const std::optional<AxisSelector>& axis) {
  Reduced f(op, a, axis ? AxisSelection{*axis} : AxisSelection());
  f.check_not_empty();
  if (f.over.empty()) return NamedArray(prim::filled(0, prim::position_dtype(1), f.rest));
  return NamedArray(prim::argreduce(largest, prim::cast(f.x, no_bool(f.x->dtype)), f.rest, f.over));
}

// ---- softmax and logsumexp: composed values, with direct gradients ----
const Op kSoftmax{.name = "softmax", .kind = Kind::wrap, .grad = [](NodeRef o, NodeRef g) {
                    Axes over;
                    for (auto n : ReduceAttr::of(*o).over) over.push_back(*find(*o, n));
                    auto slope = prim::mul(g, o);
                    return Nodes{nullptr, prim::sub(slope, prim::mul(o, prim::sum(slope, over)))};
                  }};
const bool reductions_registered = prim::register_ops({&prim::kLogsumexp, &kSoftmax});

}  // namespace

// The gradient reads nodes of the value, so that exp is evaluated once for both. The shift by the
// maximum has no derivative.
const Op prim::kLogsumexp{
    .name = "logsumexp", .kind = Kind::wrap, .grad = [](NodeRef o, NodeRef g) {
      auto &e = o->in[2], &total = o->in[3];
      auto none = equal(total, number(0, o->dtype));  // all terms are -inf: the derivative is 0
      return Nodes{nullptr, mul(e, div(g, select(none, number(1, o->dtype), total))), nullptr,
                   nullptr, nullptr};
    }};

NamedArray sum(Arr a, const AxisSelection& axis, ReduceOptions options) {
  Reduced f("sum", a, axis, options.where);
  auto count = axis_size(f.over);
  auto dtype = options.dtype.value_or(sum_dtype(f.x->dtype, count));
  if (dtype == DType::boolean) return any(a, axis, options);
  if (f.x->dtype == DType::boolean && !holds(dtype, count))
    fail(f.op,
         fmt::format("the count of {} bools of {} may overflow {}; omit the dtype, or use i64",
                     count, to_string(f.over), dtype));
  return NamedArray(f.sum(prim::cast(f.x, dtype)));
}
NamedArray mean(Arr a, const AxisSelection& axis, ReduceOptions options) {
  Reduced f("mean", a, axis, options.where);
  auto dtype = options.dtype.value_or(f.narrow), wide = wide_of(dtype);
  return NamedArray(
      cast(prim::fit(prim::div(f.sum(prim::cast(f.x, wide)), f.count(wide)), f.rest), dtype));
}
NamedArray prod(Arr a, const AxisSelection& axis, ReduceOptions options) {
  Reduced f("prod", a, axis, options.where);
  auto dtype = options.dtype.value_or(sum_dtype(f.x->dtype, 1));
  if (dtype == DType::boolean) return all(a, axis, options);
  return NamedArray(f.by(Monoid::prod, prim::cast(f.x, dtype)));
}
NamedArray max(Arr a, const AxisSelection& axis, ReduceOptions options) {
  return extreme("max", Monoid::max, a, axis, options);
}
NamedArray min(Arr a, const AxisSelection& axis, ReduceOptions options) {
  return extreme("min", Monoid::min, a, axis, options);
}
NamedArray var(Arr a, const AxisSelection& axis, VarOptions options) {
  Reduced f("var", a, axis, options.where);
  f.compute_in(options.dtype);
  return f.result(f.variance(options.ddof));
}
NamedArray std_dev(Arr a, const AxisSelection& axis, VarOptions options) {
  Reduced f("std_dev", a, axis, options.where);
  f.compute_in(options.dtype);
  return f.result(prim::sqrt(f.variance(options.ddof)));
}
NamedArray ptp(Arr a, const AxisSelection& axis) {
  Reduced f("ptp", a, axis);
  f.check_not_empty();
  if (f.x->dtype == DType::boolean) fail(f.op, "is not defined for bools; cast them to i32");
  return NamedArray(prim::sub(f.by(Monoid::max, f.x), f.by(Monoid::min, f.x)));
}
NamedArray any(Arr a, const AxisSelection& axis, ReduceOptions options) {
  return truth("any", Monoid::max, a, axis, options);
}
NamedArray all(Arr a, const AxisSelection& axis, ReduceOptions options) {
  return truth("all", Monoid::min, a, axis, options);
}
NamedArray argmax(Arr a) { return argmax(std::move(a), std::nullopt); }
NamedArray argmax(Arr a, std::optional<AxisSelector> axis) {
  return position("argmax", true, a, axis);
}
NamedArray argmin(Arr a) { return argmin(std::move(a), std::nullopt); }
NamedArray argmin(Arr a, std::optional<AxisSelector> axis) {
  return position("argmin", false, a, axis);
}

NamedArray logsumexp(Arr a, const AxisSelection& axis) {
  Reduced f("logsumexp", a, axis);
  auto x = prim::cast(f.x, f.wide), top = f.greatest(x);
  auto shift = prim::select(prim::is_finite(top), top, prim::number(0, f.wide));
  auto e = prim::exp(prim::sub(x, shift)), total = f.sum(e),
       value = prim::add(prim::log(total), shift);
  return f.result(make(prim::kLogsumexp, {value, x, e, total, top}, f.rest, f.wide,
                       ReduceAttr{names_of(f.over)}.attr()));
}
NamedArray softmax(Arr a, const AxisSelection& axis) {
  Reduced f("softmax", a, axis);
  auto x = prim::fit(prim::cast(f.x, f.wide), f.full), e = prim::exp(prim::sub(x, f.greatest(x)));
  auto value = prim::mul(e, prim::reciprocal(f.sum(e)));
  return f.result(make(kSoftmax, {value, x}, f.full, f.wide, ReduceAttr{names_of(f.over)}.attr()));
}
// Differs from x - logsumexp(x), which cancels all significant digits for values far from zero.
NamedArray log_softmax(Arr a, const AxisSelection& axis) {
  Reduced f("log_softmax", a, axis);
  auto x = prim::fit(prim::cast(f.x, f.wide), f.full), shifted = prim::sub(x, f.greatest(x));
  return f.result(prim::sub(shifted, prim::log(f.sum(prim::exp(shifted)))));
}
NamedArray standardize(Arr a, const AxisSelection& axis, double epsilon) {
  Reduced f("standardize", a, axis);
  auto centred = f.centred(prim::cast(f.x, f.wide));
  auto scale = prim::rsqrt(prim::add(f.variance(0), prim::number(epsilon, f.wide)));
  return f.result(prim::fit(prim::mul(centred, scale), f.full));
}

}  // namespace haliax
