// Reductions, and what normalises along axes. Hidden axes are never folded.
#include <cmath>

#include "ops/named.h"

namespace haliax::prim {

// The gradient is made of the very nodes of the value: exp is evaluated once for both. (The shift by the greatest has no derivative.)
const Op kLogsumexp{.name = "logsumexp", .kind = Kind::wrap, .grad = [](const NodePtr& o, const NodePtr& g) {
  auto &e = o->in[2], &total = o->in[3];
  auto none = equal(total, number(0, o->dtype));   // all -inf: the derivative is 0
  return Nodes{nullptr, mul(e, div(g, select(none, number(1, o->dtype), total))), nullptr, nullptr, nullptr}; }};

}  // namespace haliax::prim

namespace haliax {
namespace {

using namespace ops;
using G = const NodePtr&;

// What a reduction reads: its operand, a mask, and the axes before and after.
struct Fold {
  const char* op;
  NodePtr x, mask;
  Axes over, whole, rest;   // folded; with the hidden axes of the mask; what is left of them

  Fold(const char* name, const Arr& a, const AxisSelection& selection, const std::optional<NamedArray>& where) : op(name) {
    x = node_of(op, a);
    over = axes_of(op, x, selection);
    Nodes operands{x};
    if (where) operands.push_back(mask = mask_of(op, *where, *x));
    whole = with_hidden(operands, visible(*x));
    for (auto& v : whole) if (!has(over, v.name)) rest.push_back(v);
  }
  NodePtr masked(G v, G otherwise) const { return mask ? prim::map(prim::kSelect, {mask, v, otherwise}, v->dtype, &whole) : v; }
  NodePtr sum(G v) const { return prim::reduce(Monoid::sum, masked(v, prim::number(0, v->dtype)), rest); }
  // How many are summed: a number, or with a mask an array.
  NodePtr count(DType d) const {
    if (!mask) return prim::number(double(axis_size(over)), d);
    return prim::cast(prim::reduce(Monoid::sum, prim::cast(prim::fit(mask, whole), DType::i32), rest), d);
  }
  void check_not_empty() const {
    if (axis_size(over) == 0) fail(op, "there is nothing along " + to_string(over) + ", and nothing has no " + std::string(op));
  }
};

// Sums of narrow integers and bools are i32, of unsigned ones u32.
DType sum_dtype(DType d) {
  if (d == DType::boolean) return DType::i32;
  if (is_integer(d) && bytes_of(d) < 4) return is_signed(d) ? DType::i32 : DType::u32;
  return d;
}
NamedArray cast_to(G x, DType d) { return NamedArray(d == DType::boolean ? to_bool(x) : prim::cast(x, d)); }

NamedArray extreme(const char* op, Monoid m, const Arr& a, const AxisSelection& selection, const ReduceOptions& options) {
  Here here(a.at());
  Fold f(op, a, selection, options.where);
  f.check_not_empty();
  auto v = f.masked(f.x, prim::identity(m, f.x->dtype));
  return cast_to(prim::reduce(m, v, f.rest), options.dtype.value_or(f.x->dtype));
}
NamedArray truth(const char* op, Monoid m, const Arr& a, const AxisSelection& selection, const ReduceOptions& options) {
  Here here(a.at());
  Fold f(op, a, selection, options.where);
  auto v = f.masked(to_bool(f.x), prim::integer(m == Monoid::min, DType::boolean));
  return cast_to(prim::reduce(m, v, f.rest), options.dtype.value_or(DType::boolean));
}
NamedArray position(const char* op, bool largest, const Arr& a, const std::optional<AxisSelector>& axis) {
  Here here(a.at());
  Fold f(op, a, axis ? AxisSelection{*axis} : AxisSelection(), {});
  f.check_not_empty();
  auto x = f.x->dtype == DType::boolean ? prim::cast(f.x, DType::i32) : f.x;
  if (f.over.empty()) return NamedArray(prim::filled(0, DType::i32, f.rest));
  return NamedArray(prim::argreduce(largest, x, f.rest, f.over));
}

// The variance in the dtype that it is computed in: two passes.
NodePtr variance(const Fold& f, int ddof) {
  auto wide = wide_of(f.x->dtype);
  auto x = prim::cast(f.x, wide), n = f.count(wide);
  auto centred = prim::sub(x, prim::div(f.sum(x), n));
  auto freedom = prim::sub(n, prim::number(ddof, wide));
  auto v = prim::div(f.sum(prim::fit(prim::square(centred), f.whole)), freedom);
  if (ddof == 0) return v;
  auto none = prim::less_equal(freedom, prim::number(0, wide));
  return prim::fit(prim::select(none, prim::number(NAN, wide), v), f.rest);
}

// ---- softmax and logsumexp: composed values, direct gradients ----
const Op kSoftmax{.name = "softmax", .kind = Kind::wrap, .grad = [](G o, G g) {
  Axes over;
  for (auto n : o->attr.names) over.push_back(*find(*o, n));
  auto slope = prim::mul(g, o);
  return Nodes{nullptr, prim::sub(slope, prim::mul(o, prim::sum(slope, over)))}; }};
const bool registered = [] {
  prim::register_ops({&prim::kLogsumexp, &kSoftmax});
  return true;
}();

NodePtr greatest(const Fold& f, G x) { return prim::stop_gradient(prim::reduce(Monoid::max, x, f.rest)); }

}  // namespace

NamedArray sum(Arr a, const AxisSelection& axis, ReduceOptions options) {
  Here here(a.at());
  Fold f("sum", a, axis, options.where);
  auto dtype = options.dtype.value_or(sum_dtype(f.x->dtype));
  if (dtype == DType::boolean) return any(a, axis, options);
  return NamedArray(f.sum(prim::cast(f.x, dtype)));
}
NamedArray mean(Arr a, const AxisSelection& axis, ReduceOptions options) {
  Here here(a.at());
  Fold f("mean", a, axis, options.where);
  auto dtype = options.dtype.value_or(float_of(f.x->dtype));
  auto wide = wide_of(dtype);
  return cast_to(prim::fit(prim::div(f.sum(prim::cast(f.x, wide)), f.count(wide)), f.rest), dtype);
}
NamedArray prod(Arr a, const AxisSelection& axis, ReduceOptions options) {
  Here here(a.at());
  Fold f("prod", a, axis, options.where);
  auto dtype = options.dtype.value_or(sum_dtype(f.x->dtype));
  if (dtype == DType::boolean) return all(a, axis, options);
  auto x = prim::cast(f.x, dtype);
  return NamedArray(prim::reduce(Monoid::prod, f.masked(x, prim::number(1, dtype)), f.rest));
}
NamedArray max(Arr a, const AxisSelection& axis, ReduceOptions options) { return extreme("max", Monoid::max, a, axis, options); }
NamedArray min(Arr a, const AxisSelection& axis, ReduceOptions options) { return extreme("min", Monoid::min, a, axis, options); }
NamedArray var(Arr a, const AxisSelection& axis, VarOptions options) {
  Here here(a.at());
  Fold f("var", a, axis, options.where);
  return NamedArray(prim::cast(variance(f, options.ddof), float_of(f.x->dtype)));
}
NamedArray std_dev(Arr a, const AxisSelection& axis, VarOptions options) {
  Here here(a.at());
  Fold f("std_dev", a, axis, options.where);
  return NamedArray(prim::cast(prim::sqrt(variance(f, options.ddof)), float_of(f.x->dtype)));
}
NamedArray any(Arr a, const AxisSelection& axis, ReduceOptions options) { return truth("any", Monoid::max, a, axis, options); }
NamedArray all(Arr a, const AxisSelection& axis, ReduceOptions options) { return truth("all", Monoid::min, a, axis, options); }
NamedArray argmax(Arr a, std::optional<AxisSelector> axis) { return position("argmax", true, a, axis); }
NamedArray argmin(Arr a, std::optional<AxisSelector> axis) { return position("argmin", false, a, axis); }

NamedArray logsumexp(Arr a, const AxisSelection& axis) {
  Here here(a.at());
  Fold f("logsumexp", a, axis, {});
  auto wide = wide_of(f.x->dtype);
  auto x = prim::cast(f.x, wide), top = greatest(f, x);
  auto shift = prim::select(prim::map(prim::kIsFinite, {top}, DType::boolean, &top->axes), top, prim::number(0, wide));
  auto e = prim::exp(prim::sub(x, shift)), total = prim::reduce(Monoid::sum, e, f.rest);
  auto node = make(prim::kLogsumexp, {prim::add(prim::log(total), shift), x, e, total, top}, f.rest, wide, {.names = names_of(f.over)});
  return NamedArray(prim::cast(node, float_of(f.x->dtype)));
}
NamedArray softmax(Arr a, const AxisSelection& axis) {
  Here here(a.at());
  Fold f("softmax", a, axis, {});
  auto wide = wide_of(f.x->dtype);
  auto x = prim::fit(prim::cast(f.x, wide), f.whole), e = prim::exp(prim::sub(x, greatest(f, x)));
  auto value = prim::mul(e, prim::reciprocal(prim::reduce(Monoid::sum, e, f.rest)));
  auto node = make(kSoftmax, {value, x}, f.whole, wide, {.names = names_of(f.over)});
  return NamedArray(prim::cast(node, float_of(f.x->dtype)));
}
// Not x - logsumexp(x): far from zero the two would agree in all digits that matter.
NamedArray log_softmax(Arr a, const AxisSelection& axis) {
  Here here(a.at());
  Fold f("log_softmax", a, axis, {});
  auto wide = wide_of(f.x->dtype);
  auto x = prim::fit(prim::cast(f.x, wide), f.whole), shifted = prim::sub(x, greatest(f, x));
  auto value = prim::sub(shifted, prim::log(prim::reduce(Monoid::sum, prim::exp(shifted), f.rest)));
  return NamedArray(prim::cast(value, float_of(f.x->dtype)));
}
NamedArray standardize(Arr a, const AxisSelection& axis, double epsilon) {
  Here here(a.at());
  Fold f("standardize", a, axis, {});
  auto wide = wide_of(f.x->dtype);
  auto x = prim::cast(f.x, wide);
  auto centred = prim::sub(x, prim::div(f.sum(x), f.count(wide)));
  auto scale = prim::rsqrt(prim::add(variance(f, 0), prim::number(epsilon, wide)));
  return NamedArray(prim::cast(prim::fit(prim::mul(centred, scale), f.whole), float_of(f.x->dtype)));
}

}  // namespace haliax
