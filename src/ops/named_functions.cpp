// Elementwise functions of one array. Primitives that only this file uses are defined here; those
// that gradients and other ops use as well are in elementwise.cpp.
#include <cmath>
#include <numbers>

#include "ops/named.h"

namespace haliax {
namespace prim {
namespace {

NodePtr just_one(G like) { return number(1, like->dtype); }
G of(G o) { return o->in[0]; }

const Op kExp2 =
    map_op("exp2", Code::exp2, [](G o, G g) { return Nodes{scale(mul(g, o), std::log(2.0))}; });
const Op kExpm1 =
    map_op("expm1", Code::expm1, [](G o, G g) { return Nodes{mul(g, add(o, just_one(o)))}; });
const Op kLog2 =
    map_op("log2", Code::log2, [](G o, G g) { return Nodes{div(g, scale(of(o), std::log(2.0)))}; });
const Op kCbrt =
    map_op("cbrt", Code::cbrt, [](G o, G g) { return Nodes{div(scale(g, 1.0 / 3), square(o))}; });
const Op kTan =
    map_op("tan", Code::tan, [](G o, G g) { return Nodes{mul(g, add(square(o), just_one(o)))}; });
const Op kAsin = map_op("arcsin", Code::asin, [](G o, G g) {
  return Nodes{mul(g, rsqrt(sub(just_one(o), square(of(o)))))};
});
const Op kAcos = map_op("arccos", Code::acos, [](G o, G g) {
  return Nodes{neg(mul(g, rsqrt(sub(just_one(o), square(of(o))))))};
});
const Op kAtan = map_op("arctan", Code::atan,
                        [](G o, G g) { return Nodes{div(g, add(square(of(o)), just_one(o)))}; });
NodePtr cosh(G);
NodePtr sinh(G);
const Op kSinh = map_op("sinh", Code::sinh, [](G o, G g) { return Nodes{mul(g, cosh(of(o)))}; });
const Op kCosh = map_op("cosh", Code::cosh, [](G o, G g) { return Nodes{mul(g, sinh(of(o)))}; });
NodePtr cosh(G a) { return map(kCosh, {a}, a->dtype); }
NodePtr sinh(G a) { return map(kSinh, {a}, a->dtype); }
const Op kAsinh = map_op("arcsinh", Code::asinh, [](G o, G g) {
  return Nodes{mul(g, rsqrt(add(square(of(o)), just_one(o))))};
});
const Op kAcosh = map_op("arccosh", Code::acosh, [](G o, G g) {
  return Nodes{mul(g, rsqrt(sub(square(of(o)), just_one(o))))};
});
const Op kAtanh = map_op("arctanh", Code::atanh,
                         [](G o, G g) { return Nodes{div(g, sub(just_one(o), square(of(o))))}; });

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
// The mean of exp(x cos t) over t in [0, pi], by the midpoint rule. For a periodic function its
// error falls exponentially with the number of points: these suffice for all finite results.
NamedArray i0(Arr a) {
  auto [here, x] = Call("i0", a);
  const auto d = float_of(x->dtype), wide = wide_of(d);
  const Axis angle(Name("(angle)"), wide == DType::f64 ? 128 : 32);
  auto number = [&](double v) { return prim::number(v, wide); };
  auto t = prim::scale(prim::add(prim::cast(prim::iota(angle), wide), number(0.5)),
                       std::numbers::pi / double(angle.size));
  auto size = prim::abs(prim::cast(x, wide));
  auto axes = size->axes;
  axes.push_back(angle);
  auto terms =
      prim::exp(prim::map(prim::kMul, {size, prim::sub(prim::cos(t), number(1))}, axes, wide));
  auto mean = prim::scale(prim::sum(terms, {angle}), 1 / double(angle.size));
  return NamedArray(prim::cast(prim::mul(mean, prim::exp(size)), d));
}
NamedArray erf(Arr a) { return inexact("erf", prim::kErf, a); }
NamedArray erfinv(Arr a) { return inexact("erfinv", prim::kErfinv, a); }

}  // namespace haliax
