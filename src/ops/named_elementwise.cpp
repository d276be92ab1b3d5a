// Elementwise ops on one array, with the dtypes of JAX and unchanged axes, and ops that create
// arrays.
#include <array>
#include <cmath>
#include <numbers>

#include "base/dtype_hint.h"
#include "haliax/aliases.h"
#include "haliax/fmt.h"
#include "haliax/mesh.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;
using prim::number;

// Applies an op to one array: `result` maps its node to the node of the result.
NamedArray apply(const char* name, const Arr& a, auto result) {
  auto [here, x] = Call(name, a);
  return NamedArray(result(x));
}
NodePtr same_dtype(const Op& op, NodeRef x) { return prim::map(op, {x}, x->dtype); }
NodePtr filled_bools(bool value, NodeRef x) { return prim::filled(value, DType::boolean, x->axes); }
bool has_sign(NodeRef x) { return is_float(x->dtype) || is_signed(x->dtype); }

NamedArray scaled(const char* name, const Arr& a, double by) {
  return apply(name, a,
               [&](NodeRef x) { return prim::scale(prim::cast(x, float_of(x->dtype)), by); });
}
// Integers need no rounding.
NamedArray rounding(const char* name, const Op& op, const Arr& a) {
  return apply(name, a, [&](NodeRef x) { return is_float(x->dtype) ? same_dtype(op, x) : x; });
}
// A predicate that has the same value for all integers.
NamedArray predicate(const char* name, const Op& op, const Arr& a, bool of_integers) {
  return apply(name, a, [&](NodeRef x) {
    return is_float(x->dtype) ? prim::map(op, {x}, DType::boolean) : filled_bools(of_integers, x);
  });
}
NamedArray is_value(const char* name, const Arr& a, double v) {
  return apply(name, a, [&](NodeRef x) {
    return is_float(x->dtype) ? prim::equal(x, number(v, x->dtype)) : filled_bools(false, x);
  });
}
NamedArray filled(const char* name, double v, DType dtype, const Axes& axes, SourceLocation at) {
  CallSite here(at);
  check_new(name, axes);
  return NamedArray(prim::filled(v, dtype, axes));
}

}  // namespace

NamedArray abs(Arr a) {
  return apply("abs", a, [](NodeRef x) { return has_sign(x) ? same_dtype(prim::kAbs, x) : x; });
}
NamedArray fabs(Arr a) {
  return apply("fabs", a,
               [](NodeRef x) { return same_dtype(prim::kAbs, prim::cast(x, float_of(x->dtype))); });
}
NamedArray rint(Arr a) {
  return apply("rint", a, [](NodeRef x) {
    return same_dtype(prim::kRound, prim::cast(x, float_of(x->dtype)));
  });
}
NamedArray sign(Arr a) {
  return apply("sign", a, [](NodeRef x) {
    return has_sign(x) ? same_dtype(prim::kSign, x) : prim::cast(to_bool(x), x->dtype);
  });
}
NamedArray negative(Arr a) {
  return apply("negative", a, [](NodeRef x) {
    if (x->dtype == DType::boolean)
      fail("negative", "negative is not defined for bool; use logical_not");
    return prim::neg(x);
  });
}
NamedArray positive(Arr a) {
  return apply("positive", a, [](NodeRef x) { return x; });
}
NamedArray square(Arr a) { return multiply(a, a); }
NamedArray reciprocal(Arr a) { return divide(Arr(1, a.at()), a); }

NamedArray deg2rad(Arr a) { return scaled("deg2rad", a, std::numbers::pi / 180); }
NamedArray rad2deg(Arr a) { return scaled("rad2deg", a, 180 / std::numbers::pi); }

NamedArray floor(Arr a) { return rounding("floor", prim::kFloor, a); }
NamedArray ceil(Arr a) { return rounding("ceil", prim::kCeil, a); }
NamedArray trunc(Arr a) { return rounding("trunc", prim::kTrunc, a); }
NamedArray round(Arr a, int decimals) {
  auto [here, x] = Call("round", a);
  if (decimals < 0 && !is_float(x->dtype))
    fail("round", fmt::format("{} cannot be rounded to {} decimals; cast it to f32 first", x->dtype,
                              decimals));
  if (decimals == 0 || !is_float(x->dtype)) return rounding("round", prim::kRound, a);
  auto wide = prim::cast(x, wide_of(x->dtype));
  auto factor = number(std::pow(10.0, decimals), wide->dtype);
  auto rounded = same_dtype(prim::kRound, prim::mul(wide, factor));
  return NamedArray(prim::cast(prim::div(rounded, factor), x->dtype));
}

NamedArray isfinite(Arr a) { return predicate("isfinite", prim::kIsFinite, a, true); }
NamedArray isnan(Arr a) { return predicate("isnan", prim::kIsNan, a, false); }
NamedArray isinf(Arr a) { return predicate("isinf", prim::kIsInf, a, false); }
NamedArray isneginf(Arr a) { return is_value("isneginf", a, -HUGE_VAL); }
NamedArray isposinf(Arr a) { return is_value("isposinf", a, HUGE_VAL); }
NamedArray signbit(Arr a) {
  auto [here, x] = Call("signbit", a);
  if (x->dtype == DType::f64) x = prim::bitcast(x, DType::i64);
  // The sign bit, so that -0.0 and NaN have a sign as well.
  else if (is_float(x->dtype))
    x = prim::bitcast(prim::cast(x, DType::f32), DType::i32);
  else if (!is_signed(x->dtype))
    return NamedArray(filled_bools(false, x));
  return NamedArray(prim::less(x, prim::integer(0, x->dtype)));
}
NamedArray logical_not(Arr a) {
  return apply("logical_not", a, [](NodeRef x) { return prim::logical_not(to_bool(x)); });
}
NamedArray bitwise_not(Arr a) {
  return apply("bitwise_not", a, [](NodeRef x) {
    if (is_float(x->dtype))
      fail("bitwise_not", "expected integers or bools, got " + text(x->dtype));
    return same_dtype(x->dtype == DType::boolean ? prim::kNot : prim::kBitNot, x);
  });
}
NamedArray astype(Arr a, DType dtype) {
  return apply("astype", a, [&](NodeRef x) { return cast(x, dtype); });
}
NamedArray stop_gradient(Arr a) { return apply("stop_gradient", a, prim::stop_gradient); }

// ---- creating arrays ----
NamedArray zeros(const AxisSpec& axes, DType dtype, SourceLocation at) {
  return filled("zeros", 0, dtype, axes, at);
}
NamedArray ones(const AxisSpec& axes, DType dtype, SourceLocation at) {
  return filled("ones", 1, dtype, axes, at);
}
NamedArray full(const AxisSpec& axes, Arr value, std::optional<DType> dtype) {
  CallSite here(value.at());
  check_new("full", axes);
  auto v = dtype ? node_of("full", value, *dtype) : node_of("full", value);
  if (auto shown = visible(*v); !shown.empty())
    fail("full", "the value has axes " + to_string(shown) + "; use broadcast_to for arrays");
  return NamedArray(prim::fit(v, with_hidden({v}, axes)));
}
NamedArray zeros_like(Arr a, std::optional<DType> dtype) {
  return full_like(a, Arr(0, a.at()), dtype);
}
NamedArray ones_like(Arr a, std::optional<DType> dtype) {
  return full_like(a, Arr(1, a.at()), dtype);
}
NamedArray full_like(Arr a, Arr value, std::optional<DType> dtype) {
  auto [here, x] = Call("full_like", a);
  return full(visible(*x), value, dtype.value_or(x->dtype));
}

NamedArray arange(const AxisSpec& spec, ArangeOptions options, SourceLocation at) {
  CallSite here(at);
  auto& axes = spec.axes();
  check_new("arange", axes);
  // The range of i64, approximately.
  auto in_range = [](double v) { return std::abs(v) < 9e18; };
  auto is_integral = [&](double v) { return in_range(v) && v == std::trunc(v); };
  bool fraction = !is_integral(options.start) || !is_integral(options.step);
  const auto size = axis_size(axes);
  double last = options.start + options.step * double(std::max<std::int64_t>(0, size - 1));
  auto fit = [&](DType d) {  // both ends are representable; a cast rounds them toward 0
    return in_range(options.start) && in_range(last) && holds(d, std::int64_t(options.start)) &&
           holds(d, std::int64_t(last));
  };
  auto dtype = options.dtype.value_or(fraction          ? DType::f32
                                      : fit(DType::i32) ? DType::i32
                                                        : DType::i64);
  if (size > 0 && !is_float(dtype) && dtype != DType::boolean && !fit(dtype))
    fail("arange", fmt::format("{} to {} do not fit in {}", options.start, last, dtype));
  bool narrow = bytes_of(dtype) <= 4 && fit(DType::i32);
  // dtype to count in
  auto inner = !fraction ? (narrow ? DType::i32 : DType::i64) : wide_of(dtype);
  auto position = prim::cast(prim::flat_position(axes, prim::position_dtype(size)), inner);
  auto v =
      prim::add(prim::mul(position, number(options.step, inner)), number(options.start, inner));
  return NamedArray(prim::fit(prim::cast(v, dtype), axes));
}
NamedArray arange(const AxisSpec& axes, Arr start, Arr step) {
  constexpr auto op = "arange";
  CallSite here(start.at());
  auto dtype = no_bool(promoted(op, std::array<const Arr*, 2>{&start, &step}));
  auto from = node_of(op, start, dtype), by = node_of(op, step, dtype);
  for (auto& n : {from, by})
    if (!visible(*n).empty())
      fail(op, "start and step must be scalars, got an array with axes " + to_string(visible(*n)));
  auto position = arange(axes, {.dtype = dtype}, start.at()).node();
  auto v = prim::add(prim::mul(position, by), from);
  return NamedArray(prim::fit(v, with_hidden({from, by}, axes)));
}

namespace {
// Returns evenly spaced values in a float dtype. A name without a size has 50 positions.
NodePtr evenly(const AxisSelector& selector, double start, double stop, bool endpoint, DType d) {
  Axis axis(selector.name, selector.size < 0 ? 50 : selector.size);
  auto steps = std::max<std::int64_t>(1, endpoint ? axis.size - 1 : axis.size);
  auto t = prim::div(prim::cast(prim::iota(axis), d), number(double(steps), d));
  auto rest = prim::sub(prim::filled(1, d, {axis}), t);  // both ends are exact
  return prim::add(prim::scale(rest, start), prim::scale(t, stop));
}
// Returns the values in the requested dtype. Integers round down.
NamedArray as_dtype(NodeRef x, std::optional<DType> dtype) {
  auto d = dtype.value_or(DType::f32);
  return NamedArray(cast(is_integer(d) ? same_dtype(prim::kFloor, x) : x, d));
}
DType float_dtype(std::optional<DType> d) { return wide_of(d.value_or(DType::f32)); }
}  // namespace

NamedArray linspace(const AxisSelector& axis, LinspaceOptions o, SourceLocation at) {
  CallSite here(at);
  return as_dtype(evenly(axis, o.start, o.stop, o.endpoint, float_dtype(o.dtype)), o.dtype);
}
NamedArray logspace(const AxisSelector& axis, LogspaceOptions o, SourceLocation at) {
  CallSite here(at);
  const auto d = float_dtype(o.dtype);
  auto exponent = evenly(axis, o.start, o.stop, o.endpoint, d);
  return as_dtype(prim::pow(prim::filled(o.base, d, exponent->axes), exponent), o.dtype);
}
NamedArray geomspace(const AxisSelector& axis, LinspaceOptions o, SourceLocation at) {
  CallSite here(at);
  if (!(o.start * o.stop > 0))
    fail("geomspace", fmt::format("start is {} and stop is {}; they must have the same sign, and "
                                  "must not be 0",
                                  o.start, o.stop));
  const auto d = float_dtype(o.dtype);
  const double sign = o.start < 0 ? -1 : 1;
  auto logarithm =
      evenly(axis, std::log10(std::abs(o.start)), std::log10(std::abs(o.stop)), o.endpoint, d);
  auto x = prim::scale(prim::pow(prim::filled(10, d, logarithm->axes), logarithm), sign);
  return as_dtype(x, o.dtype);
}
NamedArray one_hot(Arr ids, const Axis& Class, DType dtype) {
  if (ids.is_number()) {
    CallSite here(ids.at());
    const auto id = ids.integer();
    if (ids.is_real() || id < -Class.size || id >= Class.size)
      fail("one_hot", fmt::format("ids: {} is not a position of axis {}", ids.number(), Class));
    ids = Arr(id < 0 ? id + Class.size : id, ids.at());
  }
  auto [here, x] = Call("one_hot", ids);
  if (!is_integer(x->dtype))
    fail("one_hot", "ids: expected integers, got " + text(x->dtype) + integer_hint(x->dtype));
  auto shown = visible(*x);
  check_free("one_hot", Class.name, shown);
  shown.push_back(Class);
  // The positions may not fit in the dtype of the ids.
  if (!holds(x->dtype, Class.size))
    x = prim::cast(x, prim::position_dtype(Class.size));
  else if (bytes_of(x->dtype) < 4)
    x = prim::cast(x, DType::i32);
  auto axes = with_hidden({x}, shown);
  return NamedArray(prim::cast(
      prim::map(prim::kEqual, {x, prim::iota(Class, x->dtype)}, DType::boolean, &axes), dtype));
}

}  // namespace haliax
