// Elementwise functions of one array. Primitives that only this file uses are defined here; those
// that gradients and other ops use as well are in elementwise.cpp.
#include <cmath>
#include <numbers>
#include <span>

#include "ops/named.h"

namespace haliax {
namespace prim {
namespace {

NodeRef of(NodeRef o) { return o->in[0]; }

const Op kExp2 = map_op("exp2", Code::exp2, [](NodeRef o, NodeRef g) {
  return Nodes{scale(mul(g, o), std::log(2.0))};
});
const Op kExpm1 = map_op("expm1", Code::expm1,
                         [](NodeRef o, NodeRef g) { return Nodes{mul(g, add(o, one(o)))}; });
const Op kLog2 = map_op("log2", Code::log2, [](NodeRef o, NodeRef g) {
  return Nodes{div(g, scale(of(o), std::log(2.0)))};
});
const Op kCbrt = map_op("cbrt", Code::cbrt, [](NodeRef o, NodeRef g) {
  return Nodes{div(scale(g, 1.0 / 3), square(o))};
});
const Op kTan = map_op("tan", Code::tan,
                       [](NodeRef o, NodeRef g) { return Nodes{mul(g, add(square(o), one(o)))}; });
const Op kAsin = map_op("arcsin", Code::asin, [](NodeRef o, NodeRef g) {
  return Nodes{mul(g, rsqrt(sub(one(o), square(of(o)))))};
});
const Op kAcos = map_op("arccos", Code::acos, [](NodeRef o, NodeRef g) {
  return Nodes{neg(mul(g, rsqrt(sub(one(o), square(of(o))))))};
});
const Op kAtan = map_op("arctan", Code::atan, [](NodeRef o, NodeRef g) {
  return Nodes{div(g, add(square(of(o)), one(o)))};
});
NodePtr cosh(NodeRef);
NodePtr sinh(NodeRef);
const Op kSinh =
    map_op("sinh", Code::sinh, [](NodeRef o, NodeRef g) { return Nodes{mul(g, cosh(of(o)))}; });
const Op kCosh =
    map_op("cosh", Code::cosh, [](NodeRef o, NodeRef g) { return Nodes{mul(g, sinh(of(o)))}; });
NodePtr cosh(NodeRef a) { return map(kCosh, {a}, a->dtype); }
NodePtr sinh(NodeRef a) { return map(kSinh, {a}, a->dtype); }
const Op kAsinh = map_op("arcsinh", Code::asinh, [](NodeRef o, NodeRef g) {
  return Nodes{mul(g, rsqrt(add(square(of(o)), one(o))))};
});
const Op kAcosh = map_op("arccosh", Code::acosh, [](NodeRef o, NodeRef g) {
  return Nodes{mul(g, rsqrt(sub(square(of(o)), one(o))))};
});
const Op kAtanh = map_op("arctanh", Code::atanh, [](NodeRef o, NodeRef g) {
  return Nodes{div(g, sub(one(o), square(of(o))))};
});

const bool functions_registered =
    register_ops({&kExp2, &kExpm1, &kLog2, &kCbrt, &kTan, &kAsin, &kAcos, &kAtan, &kSinh, &kCosh,
                  &kAsinh, &kAcosh, &kAtanh});

}  // namespace
}  // namespace prim

namespace {

using namespace ops;

// These functions map integers to floats.
NamedArray inexact(const char* name, const Op& op, const Arr& a) {
  auto [here, x] = Call(name, a);
  auto d = float_of(x->dtype);
  return NamedArray(prim::map(op, {prim::cast(x, d)}, d));
}

}  // namespace

NamedArray exp(Arr a) { return inexact("exp", prim::kExp, a); }
NamedArray exp2(Arr a) { return inexact("exp2", prim::kExp2, a); }
NamedArray expm1(Arr a) { return inexact("expm1", prim::kExpm1, a); }
NamedArray log(Arr a) { return inexact("log", prim::kLog, a); }
NamedArray log2(Arr a) { return inexact("log2", prim::kLog2, a); }
NamedArray log10(Arr a) {
  return divide(inexact("log10", prim::kLog, a), Arr(std::numbers::ln10, a.at()));
}
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
NamedArray sinc(Arr a) {
  auto [here, x] = Call("sinc", a);
  const auto d = float_of(x->dtype);
  auto one = prim::number(1, d), angle = prim::scale(prim::cast(x, d), std::numbers::pi);
  auto zero = prim::equal(angle, prim::number(0, d)), safe = prim::select(zero, one, angle);
  // The Taylor series at 0, for the derivatives there: 1 - z / 6 + z^2 / 120 with z = angle^2.
  auto z = prim::square(angle);
  auto series =
      prim::add(one, prim::mul(z, prim::add(prim::number(-1.0 / 6, d), prim::scale(z, 1.0 / 120))));
  return NamedArray(prim::select(zero, series, prim::div(prim::sin(safe), safe)));
}
namespace {

// Returns the polynomial with these coefficients, the constant first.
NodePtr polynomial(NodeRef x, std::span<const double> coefficients) {
  auto result = prim::number(coefficients.back(), x->dtype);
  for (std::size_t k = coefficients.size() - 1; k-- > 0;)
    result = prim::add(prim::mul(result, x), prim::number(coefficients[k], x->dtype));
  return result;
}
// I0 for f64: the mean of exp(x cos t) over t in [0, pi], by the midpoint rule. For a periodic
// function its error falls exponentially with the number of elements: these suffice for all finite
// results.
NodePtr bessel_by_mean(NodeRef size) {
  const Axis angle(Name("(angle)"), 128);
  auto number = [&](double v) { return prim::number(v, DType::f64); };
  auto t = prim::scale(prim::add(prim::cast(prim::iota(angle), DType::f64), number(0.5)),
                       std::numbers::pi / double(angle.size));
  auto axes = size->axes;
  axes.push_back(angle);
  auto terms = prim::exp(
      prim::map(prim::kMul, {size, prim::sub(prim::cos(t), number(1))}, axes, DType::f64));
  auto mean = prim::scale(prim::sum(terms, {angle}), 1 / double(angle.size));
  return prim::mul(mean, prim::exp(size));
}
// Returns the coefficients of the derivative of a polynomial.
std::vector<double> derivative_of(std::span<const double> coefficients) {
  std::vector<double> out;
  for (std::size_t k = 1; k < coefficients.size(); ++k) out.push_back(double(k) * coefficients[k]);
  return out;
}
// I0 for f32: up to 8 the power series, whose terms are positive; then a polynomial in 16 / x - 1
// (a least-squares fit at Chebyshev nodes) times exp(x) / sqrt(x). `slope`: its derivative. The
// composed gradient of the series would compute powers that underflow, which is slow.
NodePtr bessel_by_polynomials(NodeRef size, bool slope) {
  constexpr double kBorder = 8;
  static constexpr double kFar[] = {0.4021765094,    0.003360552242,  0.0001362171642,
                                    1.113981566e-05, 1.476115734e-06, 3.073322911e-07,
                                    1.08679425e-07,  3.161985572e-08};
  double series[18] = {1};
  for (int k = 1; k < 18; ++k) series[k] = series[k - 1] / (double(k) * k);
  const auto d = size->dtype;
  auto border = prim::number(kBorder, d), one = prim::number(1, d);
  // Each branch has an argument within its range, so that no gradient is NaN.
  auto is_near = prim::less_equal(size, border);
  auto near = prim::select(is_near, size, border), far = prim::select(is_near, border, size);
  auto squared = prim::scale(prim::square(near), 0.25);
  auto reciprocal = prim::div(one, far);
  auto inverse = prim::sub(prim::scale(reciprocal, 2 * kBorder), one);
  auto half = prim::exp(prim::scale(far, 0.5));  // exp(x) would overflow before the result does
  auto below = polynomial(squared, series), above = polynomial(inverse, kFar);
  if (slope) {
    auto change = prim::mul(polynomial(inverse, derivative_of(kFar)),
                            prim::scale(prim::square(reciprocal), 2 * kBorder));
    below = prim::mul(polynomial(squared, derivative_of(series)), prim::scale(near, 0.5));
    above = prim::sub(prim::mul(above, prim::sub(one, prim::scale(reciprocal, 0.5))), change);
  }
  auto scaled = prim::mul(prim::mul(above, prim::rsqrt(far)), half);
  return prim::select(is_near, below, prim::mul(scaled, half));
}
// Operands of the wrap: the value, |x|.
const Op kI0{.name = "i0", .kind = Kind::wrap, .grad = [](NodeRef o, NodeRef g) {
               return Nodes{nullptr, prim::mul(g, bessel_by_polynomials(o->in[1], true))};
             }};
const bool bessel_registered = prim::register_ops({&kI0});

}  // namespace

NamedArray i0(Arr a) {
  auto [here, x] = Call("i0", a);
  const auto d = float_of(x->dtype), wide = wide_of(d);
  auto size = prim::abs(prim::cast(x, wide));
  if (wide == DType::f64) return NamedArray(prim::cast(bessel_by_mean(size), d));
  auto value = make(kI0, {bessel_by_polynomials(size, false), size}, size->axes, wide);
  return NamedArray(prim::cast(value, d));
}
NamedArray erf(Arr a) { return inexact("erf", prim::kErf, a); }
NamedArray erfinv(Arr a) { return inexact("erfinv", prim::kErfinv, a); }

}  // namespace haliax
