// Elementwise primitives that other ops and gradients use. `g` is the cotangent of the result. The
// returned cotangents may have more axes than the operands; `vjp` sums over the extra axes, for all
// ops.
#include <numbers>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::prim {
namespace {

constexpr double kRootPi = 1 / std::numbers::inv_sqrtpi;

NodePtr one(G like) { return number(1, like->dtype); }
G x(G o) { return o->in[0]; }
G y(G o) { return o->in[1]; }

}  // namespace

// ---- one operand ----
// A cast that rounds, or that converts to bool, does not commute with a sum. A partial sum is
// therefore completed before this cast.
Linear cast_linear(const Node& n, std::size_t) {
  auto from = n.in[0]->dtype, to = n.dtype;
  // Integer sums wrap the same way in both dtypes.
  bool integers =
      !is_float(from) && !is_float(to) && from != DType::boolean && to != DType::boolean;
  return integers || (is_float(from) && is_float(to) && bytes_of(to) >= bytes_of(from))
             ? Linear::all
             : Linear::no;
}
const Op kCast{.name = "cast",
               .kind = Kind::map,
               .code = Code::cast,
               .linear = Linear::all,
               .grad = [](G o, G g) { return Nodes{cast(g, x(o)->dtype)}; },
               .linear_in = cast_linear,
               .zero_in = [](auto&, auto) { return Linear::all; },
               .cheap = true};
const Op kBitcast = map_op("bitcast", Code::bitcast);
const Op kNeg = map_op(
    "neg", Code::neg, [](G, G g) { return Nodes{neg(g)}; }, Linear::all);
const Op kStop = map_op("stop_gradient", Code::cast, nullptr, Linear::no,
                        [](auto&, auto) { return Linear::moves; });
const Op kAbs = map_op("abs", Code::abs, [](G o, G g) { return Nodes{mul(g, sign(x(o)))}; });
const Op kSign = map_op("sign", Code::sign);
const Op kExp = map_op("exp", Code::exp, [](G o, G g) { return Nodes{mul(g, o)}; });
const Op kLog = map_op("log", Code::log, [](G o, G g) { return Nodes{div(g, x(o))}; });
const Op kLog1p =
    map_op("log1p", Code::log1p, [](G o, G g) { return Nodes{div(g, add(x(o), one(o)))}; });
const Op kSqrt = map_op("sqrt", Code::sqrt, [](G o, G g) { return Nodes{div(scale(g, 0.5), o)}; });
const Op kRsqrt =
    map_op("rsqrt", Code::rsqrt, [](G o, G g) { return Nodes{mul(scale(g, -0.5), div(o, x(o)))}; });
const Op kSin = map_op("sin", Code::sin, [](G o, G g) { return Nodes{mul(g, cos(x(o)))}; });
const Op kCos = map_op("cos", Code::cos, [](G o, G g) { return Nodes{neg(mul(g, sin(x(o))))}; });
const Op kTanh =
    map_op("tanh", Code::tanh, [](G o, G g) { return Nodes{mul(g, sub(one(o), square(o)))}; });
// 1 - sigmoid(x) is computed as sigmoid(-x), which is also accurate for large x.
const Op kSigmoid = map_op("sigmoid", Code::sigmoid,
                           [](G o, G g) { return Nodes{mul(g, mul(o, sigmoid(neg(x(o)))))}; });
const Op kErf = map_op("erf", Code::erf, [](G o, G g) {
  return Nodes{mul(scale(g, 2 / kRootPi), exp(neg(square(x(o)))))};
});
const Op kErfinv = map_op("erfinv", Code::erfinv, [](G o, G g) {
  return Nodes{mul(scale(g, kRootPi / 2), exp(square(o)))};
});
const Op kFloor = map_op("floor", Code::floor), kCeil = map_op("ceil", Code::ceil);
const Op kRound = map_op("round", Code::round), kTrunc = map_op("trunc", Code::trunc);
const Op kNot = map_op("logical_not", Code::logical_not),
         kBitNot = map_op("bitwise_not", Code::bit_not);
const Op kIsFinite = map_op("isfinite", Code::is_finite), kIsNan = map_op("isnan", Code::is_nan);
const Op kIsInf = map_op("isinf", Code::is_inf);

// ---- two operands ----
const Op kAdd = map_op(
    "add", Code::add,
    [](G, G g) {
      return Nodes{g, g};
    },
    Linear::all);
const Op kSub = map_op(
    "sub", Code::sub,
    [](G, G g) {
      return Nodes{g, neg(g)};
    },
    Linear::all);
const Op kMul = map_op(
    "mul", Code::mul,
    [](G o, G g) {
      return Nodes{mul(g, y(o)), mul(g, x(o))};
    },
    Linear::one);
const Op kDiv = map_op(
    "div", Code::div,
    [](G o, G g) {
      auto d = div(g, y(o));
      return Nodes{d, neg(mul(d, o))};
    },
    Linear::no, [](auto&, auto k) { return k == 0 ? Linear::one : Linear::no; });
// Returns x to the power y - 1, or x where y is 0.
NodePtr next_lower_power(G o) {
  const auto exponent = sub(y(o), one(o));
  if (is_number(exponent, 0.5)) return sqrt(x(o));
  if (is_number(exponent, -0.5)) return rsqrt(x(o));
  return pow(x(o), select(equal(y(o), number(0, o->dtype)), one(o), exponent));
}
const Op kPow = map_op("pow", Code::pow, [](G o, G g) {
  // Both derivatives are finite at 0: by y where x is 0, and by x where y is 0.
  auto zero = number(0, o->dtype), base = select(equal(x(o), zero), one(o), x(o));
  auto dx = mul(g, mul(y(o), next_lower_power(o)));
  return Nodes{dx, mul(g, mul(select(equal(x(o), zero), zero, log(base)), o))};
});
// The cotangent flows to the selected operand. If both are equal, each receives half of it, as in
// JAX.
Nodes winners_grad(G o, G g) {
  auto half = number(0.5, o->dtype), none = number(0, o->dtype);
  auto share = [&](G a, G b) {
    return mul(g, select(equal(a, o), select(equal(b, o), half, one(o)), none));
  };
  return {share(x(o), y(o)), share(y(o), x(o))};
}
const Op kMaximum = map_op("maximum", Code::max, winners_grad),
         kMinimum = map_op("minimum", Code::min, winners_grad);
// x = y * q + r with an integer q, whose derivative is 0.
Nodes remainder_grad(const Op& rounding, G o, G g) {
  return {g, neg(mul(g, map(rounding, {div(x(o), y(o))}, o->dtype)))};
}
const Op kRem = map_op("rem", Code::rem, [](G o, G g) { return remainder_grad(kTrunc, o, g); });
const Op kMod = map_op("mod", Code::mod, [](G o, G g) { return remainder_grad(kFloor, o, g); });
const Op kFloorDiv = map_op("floor_div", Code::floor_div);
const Op kLess = map_op("less", Code::less), kLessEqual = map_op("less_equal", Code::less_equal);
const Op kEqual = map_op("equal", Code::equal), kNotEqual = map_op("not_equal", Code::not_equal);
const Op kBitAnd = map_op("bitwise_and", Code::bit_and, nullptr, Linear::no, nullptr,
                          [](auto&, auto) { return Linear::one; });
const Op kBitOr = map_op("bitwise_or", Code::bit_or);

// ---- three and four operands ----
Nodes select_grad(G o, G g) {
  auto none = number(0, o->dtype);
  return {nullptr, select(x(o), g, none), select(x(o), none, g)};
}
// If one side is 0, the select is 0 where the condition or the other side is 0, as in an
// elementwise product.
Linear select_zero_in(const Node& n, std::size_t k) {
  if (is_number(n.in[2], 0)) return k < 2 ? Linear::one : Linear::no;
  if (is_number(n.in[1], 0)) return k == 2 ? Linear::one : Linear::no;
  return k == 0 ? Linear::no : Linear::all;
}
const Op kSelect = map_op(
    "select", Code::select, select_grad, Linear::no,
    [](auto&, auto k) { return k == 0 ? Linear::no : Linear::all; }, select_zero_in);
const Op kFma = map_op("fma", Code::fma, [](G o, G g) {
  return Nodes{mul(g, y(o)), mul(g, x(o)), g};
});
const Op kThreefry0 = map_op("threefry0", Code::threefry0),
         kThreefry1 = map_op("threefry1", Code::threefry1);
const Op kThreefryXor = map_op("threefry_xor", Code::threefry_xor);

// ---- builders ----
NodePtr map(const Op& op, Nodes in, DType dtype, const Axes* axes) {
  if (axes) return map(op, std::move(in), Axes(*axes), dtype);
  Axes out = in[0]->axes;
  for (auto& n : in) out = joined(std::move(out), n->axes);
  return map(op, std::move(in), std::move(out), dtype);
}
NodePtr map(const Op& op, Nodes in, Axes axes, DType dtype) {
  // Operands are broadcast by name, so a `fit` around an operand is redundant.
  for (auto& n : in) n = stripped(n);
  return make(op, std::move(in), std::move(axes), dtype);
}
NodePtr cast(G a, DType d) { return build(kCast, {stripped(a)}, a->axes, d); }
NodePtr bitcast(G a, DType d) { return map(kBitcast, {a}, d); }
NodePtr neg(G a) { return build(kNeg, {stripped(a)}, a->axes, a->dtype); }
NodePtr logical_not(G a) { return map(kNot, {a}, DType::boolean); }
NodePtr stop_gradient(G a) { return map(kStop, {a}, a->dtype); }
NodePtr exp(G a) { return map(kExp, {a}, a->dtype); }
NodePtr log(G a) { return map(kLog, {a}, a->dtype); }
NodePtr sqrt(G a) { return map(kSqrt, {a}, a->dtype); }
NodePtr rsqrt(G a) { return map(kRsqrt, {a}, a->dtype); }
NodePtr abs(G a) { return map(kAbs, {a}, a->dtype); }
NodePtr sign(G a) { return map(kSign, {a}, a->dtype); }
NodePtr tanh(G a) { return map(kTanh, {a}, a->dtype); }
NodePtr sigmoid(G a) { return map(kSigmoid, {a}, a->dtype); }
NodePtr sin(G a) { return map(kSin, {a}, a->dtype); }
NodePtr cos(G a) { return map(kCos, {a}, a->dtype); }
NodePtr square(G a) { return mul(a, a); }
NodePtr reciprocal(G a) { return div(one(a), a); }

namespace {
NodePtr binary(const Op& op, G a, G b) { return map(op, {a, b}, a->dtype); }
NodePtr arithmetic(const Op& op, G a, G b) {
  return build(op, {stripped(a), stripped(b)}, joined(a->axes, b->axes), a->dtype);
}
}  // namespace

NodePtr add(G a, G b) { return arithmetic(kAdd, a, b); }
NodePtr sub(G a, G b) { return arithmetic(kSub, a, b); }
NodePtr mul(G a, G b) { return arithmetic(kMul, a, b); }
NodePtr div(G a, G b) { return arithmetic(kDiv, a, b); }
NodePtr scale(G a, double v) { return mul(a, number(v, a->dtype)); }
NodePtr max(G a, G b) { return binary(kMaximum, a, b); }
NodePtr min(G a, G b) { return binary(kMinimum, a, b); }
NodePtr pow(G a, G b) { return binary(kPow, a, b); }
NodePtr less(G a, G b) { return map(kLess, {a, b}, DType::boolean); }
NodePtr less_equal(G a, G b) { return map(kLessEqual, {a, b}, DType::boolean); }
NodePtr equal(G a, G b) { return map(kEqual, {a, b}, DType::boolean); }
bool tests_equality(const Node& n) { return n.op == &kEqual || n.op == &kNotEqual; }
bool selects(const Node& n) { return n.op == &kSelect; }
NodePtr both(G a, G b) { return map(kBitAnd, {a, b}, DType::boolean); }
NodePtr either(G a, G b) { return map(kBitOr, {a, b}, DType::boolean); }
NodePtr is_nan(G a) { return map(kIsNan, {a}, DType::boolean); }
NodePtr is_finite(G a) { return map(kIsFinite, {a}, DType::boolean); }
NodePtr select(G c, G a, G b) { return map(kSelect, {c, a, b}, a->dtype); }
NodePtr select(G c, G a, G b, const Axes& axes) { return map(kSelect, {c, a, b}, a->dtype, &axes); }
NodePtr fma(G a, G b, G c) { return map(kFma, {a, b, c}, a->dtype); }
NodePtr threefry(Code word, G k0, G k1, G high, G low) {
  auto& op = word == Code::threefry0   ? kThreefry0
             : word == Code::threefry1 ? kThreefry1
                                       : kThreefryXor;
  return map(op, {k0, k1, high, low}, DType::u32);
}

const bool maps_registered = register_ops(
    {&kCast,    &kBitcast, &kNeg,    &kStop,     &kAbs,       &kSign,      &kExp,        &kLog,
     &kLog1p,   &kSqrt,    &kRsqrt,  &kSin,      &kCos,       &kTanh,      &kSigmoid,    &kErf,
     &kErfinv,  &kFloor,   &kCeil,   &kRound,    &kTrunc,     &kNot,       &kBitNot,     &kIsFinite,
     &kIsNan,   &kIsInf,   &kAdd,    &kSub,      &kMul,       &kDiv,       &kPow,        &kMaximum,
     &kMinimum, &kRem,     &kMod,    &kFloorDiv, &kLess,      &kLessEqual, &kEqual,      &kNotEqual,
     &kBitAnd,  &kBitOr,   &kSelect, &kFma,      &kThreefry0, &kThreefry1, &kThreefryXor});

}  // namespace haliax::prim
