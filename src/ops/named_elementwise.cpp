// Elementwise ops on one array: dtypes as in JAX, axes as they are. And arrays made from nothing.
#include <cmath>
#include <numbers>

#include "haliax/mesh.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;
using prim::number;

NamedArray same(const Op& op, const NodePtr& x, DType dtype) { return NamedArray(prim::map(op, {x}, dtype, &x->axes)); }

// For functions that integers are not closed over.
NamedArray inexact(const char* name, const Op& op, const Arr& a) {
  Here here(a.at());
  auto x = node_of(name, a);
  x = prim::cast(x, float_of(x->dtype));
  return same(op, x, x->dtype);
}
NamedArray scaled(const char* name, const Arr& a, double by) {
  Here here(a.at());
  auto x = node_of(name, a);
  return NamedArray(prim::scale(prim::cast(x, float_of(x->dtype)), by));
}
// Integers are whole already.
NamedArray rounding(const char* name, const Op& op, const Arr& a) {
  Here here(a.at());
  auto x = node_of(name, a);
  return is_float(x->dtype) ? same(op, x, x->dtype) : NamedArray(x);
}
// A question that integers answer alike.
NamedArray question(const char* name, const Op& op, const Arr& a, bool of_integers) {
  Here here(a.at());
  auto x = node_of(name, a);
  if (is_float(x->dtype)) return same(op, x, DType::boolean);
  return NamedArray(prim::filled(of_integers, DType::boolean, x->axes));
}
NamedArray is_value(const char* name, const Arr& a, double v) {
  Here here(a.at());
  auto x = node_of(name, a);
  if (!is_float(x->dtype)) return NamedArray(prim::filled(0, DType::boolean, x->axes));
  return NamedArray(prim::equal(x, number(v, x->dtype)));
}

}  // namespace

NamedArray abs(Arr a) {
  Here here(a.at());
  auto x = node_of("abs", a);
  return is_float(x->dtype) || is_signed(x->dtype) ? same(prim::kAbs, x, x->dtype) : NamedArray(x);
}
NamedArray sign(Arr a) {
  Here here(a.at());
  auto x = node_of("sign", a);
  if (is_float(x->dtype) || is_signed(x->dtype)) return same(prim::kSign, x, x->dtype);
  return NamedArray(prim::cast(to_bool(x), x->dtype));
}
NamedArray negative(Arr a) {
  Here here(a.at());
  auto x = node_of("negative", a);
  if (x->dtype == DType::boolean) fail("negative", "a bool has no negative; logical_not turns it round");
  return NamedArray(prim::neg(x));
}
NamedArray positive(Arr a) {
  Here here(a.at());
  return NamedArray(node_of("positive", a));
}
NamedArray square(Arr a) { return multiply(a, a); }
NamedArray reciprocal(Arr a) { return divide(Arr(1, a.at()), a); }

NamedArray exp(Arr a) { return inexact("exp", prim::kExp, a); }
NamedArray exp2(Arr a) { return inexact("exp2", prim::kExp2, a); }
NamedArray expm1(Arr a) { return inexact("expm1", prim::kExpm1, a); }
NamedArray log(Arr a) { return inexact("log", prim::kLog, a); }
NamedArray log2(Arr a) { return inexact("log2", prim::kLog2, a); }
NamedArray log10(Arr a) { return divide(inexact("log10", prim::kLog, a), Arr(std::numbers::ln10, a.at())); }
NamedArray log1p(Arr a) { return inexact("log1p", prim::kLog1p, a); }
NamedArray sqrt(Arr a) { return inexact("sqrt", prim::kSqrt, a); }
NamedArray rsqrt(Arr a) { return inexact("rsqrt", prim::kRsqrt, a); }
NamedArray cbrt(Arr a) { return inexact("cbrt", prim::kCbrt, a); }
NamedArray sin(Arr a) { return inexact("sin", prim::kSin, a); }
NamedArray cos(Arr a) { return inexact("cos", prim::kCos, a); }
NamedArray tan(Arr a) { return inexact("tan", prim::kTan, a); }
NamedArray arcsin(Arr a) { return inexact("arcsin", prim::kAsin, a); }
NamedArray arccos(Arr a) { return inexact("arccos", prim::kAcos, a); }
NamedArray arctan(Arr a) { return inexact("arctan", prim::kAtan, a); }
NamedArray sinh(Arr a) { return inexact("sinh", prim::kSinh, a); }
NamedArray cosh(Arr a) { return inexact("cosh", prim::kCosh, a); }
NamedArray tanh(Arr a) { return inexact("tanh", prim::kTanh, a); }
NamedArray arcsinh(Arr a) { return inexact("arcsinh", prim::kAsinh, a); }
NamedArray arccosh(Arr a) { return inexact("arccosh", prim::kAcosh, a); }
NamedArray arctanh(Arr a) { return inexact("arctanh", prim::kAtanh, a); }
NamedArray erf(Arr a) { return inexact("erf", prim::kErf, a); }
NamedArray erfinv(Arr a) { return inexact("erfinv", prim::kErfinv, a); }
NamedArray deg2rad(Arr a) { return scaled("deg2rad", a, std::numbers::pi / 180); }
NamedArray rad2deg(Arr a) { return scaled("rad2deg", a, 180 / std::numbers::pi); }

NamedArray floor(Arr a) { return rounding("floor", prim::kFloor, a); }
NamedArray ceil(Arr a) { return rounding("ceil", prim::kCeil, a); }
NamedArray trunc(Arr a) { return rounding("trunc", prim::kTrunc, a); }
NamedArray round(Arr a, int decimals) {
  Here here(a.at());
  auto x = node_of("round", a);
  if (!is_float(x->dtype)) {
    if (decimals < 0)
      fail("round", text(x->dtype) + " cannot be rounded to " + std::to_string(decimals) + " decimals; cast it to f32 first");
    return NamedArray(x);
  }
  if (decimals == 0) return same(prim::kRound, x, x->dtype);
  auto wide = prim::cast(x, wide_of(x->dtype));
  auto factor = number(std::pow(10.0, decimals), wide->dtype);
  auto whole = same(prim::kRound, prim::mul(wide, factor), wide->dtype).node();
  return NamedArray(prim::cast(prim::div(whole, factor), x->dtype));
}

NamedArray isfinite(Arr a) { return question("isfinite", prim::kIsFinite, a, true); }
NamedArray isnan(Arr a) { return question("isnan", prim::kIsNan, a, false); }
NamedArray isinf(Arr a) { return question("isinf", prim::kIsInf, a, false); }
NamedArray isneginf(Arr a) { return is_value("isneginf", a, -HUGE_VAL); }
NamedArray isposinf(Arr a) { return is_value("isposinf", a, HUGE_VAL); }
NamedArray signbit(Arr a) {
  Here here(a.at());
  auto x = node_of("signbit", a);
  if (x->dtype == DType::f64) x = prim::bitcast(x, DType::i64);
  else if (is_float(x->dtype)) x = prim::bitcast(prim::cast(x, DType::f32), DType::i32);   // -0.0 and NaN have a sign, too
  else if (!is_signed(x->dtype)) return NamedArray(prim::filled(0, DType::boolean, x->axes));
  return NamedArray(prim::less(x, prim::integer(0, x->dtype)));
}
NamedArray logical_not(Arr a) {
  Here here(a.at());
  return NamedArray(prim::logical_not(to_bool(node_of("logical_not", a))));
}
NamedArray bitwise_not(Arr a) {
  Here here(a.at());
  auto x = node_of("bitwise_not", a);
  if (is_float(x->dtype)) fail("bitwise_not", text(x->dtype) + " has no bits to turn round; use integers or bools");
  return x->dtype == DType::boolean ? NamedArray(prim::logical_not(x)) : same(prim::kBitNot, x, x->dtype);
}
NamedArray astype(Arr a, DType dtype) {
  Here here(a.at());
  auto x = node_of("astype", a);
  return NamedArray(dtype == DType::boolean ? to_bool(x) : prim::cast(x, dtype));
}
NamedArray stop_gradient(Arr a) {
  Here here(a.at());
  return NamedArray(prim::stop_gradient(node_of("stop_gradient", a)));
}

// ---- making arrays ----
NamedArray zeros(const AxisSpec& axes, DType dtype, SourceLocation at) {
  Here here(at);
  check_unique("zeros", axes);
  return NamedArray(prim::filled(0, dtype, axes));
}
NamedArray ones(const AxisSpec& axes, DType dtype, SourceLocation at) {
  Here here(at);
  check_unique("ones", axes);
  return NamedArray(prim::filled(1, dtype, axes));
}
NamedArray full(const AxisSpec& axes, Arr value, std::optional<DType> dtype) {
  Here here(value.at());
  check_unique("full", axes);
  auto v = dtype ? node_of("full", value, *dtype) : node_of("full", value);
  if (auto shown = visible(*v); !shown.empty())
    fail("full", "the value has axes " + to_string(shown) + "; broadcast_to takes an array");
  return NamedArray(prim::fit(v, with_hidden({v}, axes)));
}
NamedArray zeros_like(Arr a, std::optional<DType> dtype) { return full_like(a, Arr(0, a.at()), dtype); }
NamedArray ones_like(Arr a, std::optional<DType> dtype) { return full_like(a, Arr(1, a.at()), dtype); }
NamedArray full_like(Arr a, Arr value, std::optional<DType> dtype) {
  Here here(a.at());
  auto x = node_of("full_like", a);
  return full(visible(*x), value, dtype.value_or(x->dtype));
}

NamedArray arange(const AxisSpec& spec, ArangeOptions options, SourceLocation at) {
  Here here(at);
  auto& axes = spec.axes();
  check_unique("arange", axes);
  auto whole = [](double v) { return v == std::trunc(v) && std::abs(v) < 9e15; };
  bool fraction = !whole(options.start) || !whole(options.step);
  auto dtype = options.dtype.value_or(fraction ? DType::f32 : DType::i32);
  auto inner = !fraction ? (bytes_of(dtype) > 4 ? DType::i64 : DType::i32) : wide_of(dtype);   // to count in
  NodePtr position = prim::integer(0, DType::i32);
  std::int64_t stride = 1;
  for (std::size_t d = axes.size(); d-- > 0; stride *= axes[d].size)
    position = prim::add(position, prim::mul(prim::iota(axes[d]), prim::integer(stride, DType::i32)));
  auto v = prim::add(prim::mul(prim::cast(position, inner), number(options.step, inner)), number(options.start, inner));
  return NamedArray(prim::fit(prim::cast(v, dtype), axes));
}
NamedArray linspace(const Axis& axis, LinspaceOptions options, SourceLocation at) {
  Here here(at);
  auto turns = std::max<std::int64_t>(1, options.endpoint ? axis.size - 1 : axis.size);
  auto t = prim::div(prim::cast(prim::iota(axis), DType::f32), number(double(turns), DType::f32));
  auto rest = prim::sub(prim::filled(1, DType::f32, {axis}), t);   // both ends come out exactly
  return NamedArray(prim::add(prim::scale(rest, options.start), prim::scale(t, options.stop)));
}
NamedArray one_hot(Arr ids, const Axis& Class, DType dtype) {
  Here here(ids.at());
  auto x = node_of("one_hot", ids);
  if (!is_integer(x->dtype)) fail("one_hot", "the ids are " + text(x->dtype) + ", not integers");
  auto shown = visible(*x);
  check_free("one_hot", Class.name, shown);
  shown.push_back(Class);
  if (bytes_of(x->dtype) < 4) x = prim::cast(x, DType::i32);   // the positions may not fit in the dtype of the ids
  auto axes = with_hidden({x}, shown);
  return NamedArray(prim::cast(prim::map(prim::kEqual, {x, prim::iota(Class, x->dtype)}, DType::boolean, &axes), dtype));
}

}  // namespace haliax
