// Elementwise primitives that other ops and gradients use. In a gradient, `o` is the result, x(o)
// and y(o) are its operands, and `g` is the cotangent of the result. The returned cotangents may
// have more axes than the operands; `vjp` sums over the extra axes, for all ops.
#include <numbers>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::prim {
namespace {

constexpr double kRootPi = 1 / std::numbers::inv_sqrtpi;

NodeRef x(NodeRef o) { return o->in[0]; }
NodeRef y(NodeRef o) { return o->in[1]; }

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
               .grad = [](NodeRef o, NodeRef g) { return Nodes{cast(g, x(o)->dtype)}; },
               .linear_in = cast_linear,
               .zero_in = [](auto&, auto) { return Linear::all; },
               .cheap = true};
const Op kBitcast = map_op("bitcast", Code::bitcast);
const Op kNeg = map_op(
    "neg", Code::neg, [](NodeRef, NodeRef g) { return Nodes{neg(g)}; }, Linear::all);
const Op kStop = map_op("stop_gradient", Code::cast, nullptr, Linear::no,
                        [](auto&, auto) { return Linear::moves; });
const Op kAbs =
    map_op("abs", Code::abs, [](NodeRef o, NodeRef g) { return Nodes{mul(g, sign(x(o)))}; });
const Op kSign = map_op("sign", Code::sign);
const Op kExp = map_op("exp", Code::exp, [](NodeRef o, NodeRef g) { return Nodes{mul(g, o)}; });
const Op kLog = map_op("log", Code::log, [](NodeRef o, NodeRef g) { return Nodes{div(g, x(o))}; });
const Op kLog1p = map_op("log1p", Code::log1p,
                         [](NodeRef o, NodeRef g) { return Nodes{div(g, add(x(o), one(o)))}; });
const Op kSqrt =
    map_op("sqrt", Code::sqrt, [](NodeRef o, NodeRef g) { return Nodes{div(scale(g, 0.5), o)}; });
const Op kRsqrt = map_op("rsqrt", Code::rsqrt, [](NodeRef o, NodeRef g) {
  return Nodes{mul(scale(g, -0.5), div(o, x(o)))};
});
const Op kSin =
    map_op("sin", Code::sin, [](NodeRef o, NodeRef g) { return Nodes{mul(g, cos(x(o)))}; });
const Op kCos =
    map_op("cos", Code::cos, [](NodeRef o, NodeRef g) { return Nodes{neg(mul(g, sin(x(o))))}; });
const Op kTanh = map_op("tanh", Code::tanh,
                        [](NodeRef o, NodeRef g) { return Nodes{mul(g, sub(one(o), square(o)))}; });
// 1 - sigmoid(x) is computed as sigmoid(-x), which is also accurate for large x.
const Op kSigmoid = map_op("sigmoid", Code::sigmoid, [](NodeRef o, NodeRef g) {
  return Nodes{mul(g, mul(o, sigmoid(neg(x(o)))))};
});
const Op kErf = map_op("erf", Code::erf, [](NodeRef o, NodeRef g) {
  return Nodes{mul(scale(g, 2 / kRootPi), exp(neg(square(x(o)))))};
});
const Op kErfinv = map_op("erfinv", Code::erfinv, [](NodeRef o, NodeRef g) {
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
    [](NodeRef, NodeRef g) {
      return Nodes{g, g};
    },
    Linear::all);
const Op kSub = map_op(
    "sub", Code::sub,
    [](NodeRef, NodeRef g) {
      return Nodes{g, neg(g)};
    },
    Linear::all);
const Op kMul = map_op(
    "mul", Code::mul,
    [](NodeRef o, NodeRef g) {
      return Nodes{mul(g, y(o)), mul(g, x(o))};
    },
    Linear::one);
const Op kDiv = map_op(
    "div", Code::div,
    [](NodeRef o, NodeRef g) {
      auto d = div(g, y(o));
      return Nodes{d, neg(mul(d, o))};
    },
    Linear::no, [](auto&, auto k) { return k == 0 ? Linear::one : Linear::no; });
// Returns x to the power y - 1, or x where y is 0.
NodePtr next_lower_power(NodeRef o) {
  const auto exponent = sub(y(o), one(o));
  if (is_number(exponent, 0.5)) return sqrt(x(o));
  if (is_number(exponent, -0.5)) return rsqrt(x(o));
  return pow(x(o), select(equal(y(o), number(0, o->dtype)), one(o), exponent));
}
const Op kPow = map_op("pow", Code::pow, [](NodeRef o, NodeRef g) {
  // Both derivatives are finite at 0: by y where x is 0, and by x where y is 0.
  auto zero = number(0, o->dtype), base = select(equal(x(o), zero), one(o), x(o));
  auto dx = mul(g, mul(y(o), next_lower_power(o)));
  return Nodes{dx, mul(g, mul(select(equal(x(o), zero), zero, log(base)), o))};
});
// The cotangent flows to the selected operand. If both are equal, each receives half of it, as in
// JAX.
Nodes winners_grad(NodeRef o, NodeRef g) {
  auto half = number(0.5, o->dtype), none = number(0, o->dtype);
  auto share = [&](NodeRef a, NodeRef b) {
    return mul(g, select(equal(a, o), select(equal(b, o), half, one(o)), none));
  };
  return {share(x(o), y(o)), share(y(o), x(o))};
}
const Op kMaximum = map_op("maximum", Code::max, winners_grad),
         kMinimum = map_op("minimum", Code::min, winners_grad);
// x = y * q + r with an integer q, whose derivative is 0.
Nodes remainder_grad(const Op& rounding, NodeRef o, NodeRef g) {
  return {g, neg(mul(g, map(rounding, {div(x(o), y(o))}, o->dtype)))};
}
const Op kRem =
    map_op("rem", Code::rem, [](NodeRef o, NodeRef g) { return remainder_grad(kTrunc, o, g); });
const Op kMod =
    map_op("mod", Code::mod, [](NodeRef o, NodeRef g) { return remainder_grad(kFloor, o, g); });
const Op kFloorDiv = map_op("floor_div", Code::floor_div);
const Op kLess = map_op("less", Code::less), kLessEqual = map_op("less_equal", Code::less_equal);
const Op kEqual = map_op("equal", Code::equal), kNotEqual = map_op("not_equal", Code::not_equal);
const Op kBitAnd = map_op("bitwise_and", Code::bit_and, nullptr, Linear::no, nullptr,
                          [](auto&, auto) { return Linear::one; });
const Op kBitOr = map_op("bitwise_or", Code::bit_or);

// ---- three and four operands ----
Nodes select_grad(NodeRef o, NodeRef g) {
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
const Op kFma = map_op("fma", Code::fma, [](NodeRef o, NodeRef g) {
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
NodePtr cast(NodeRef a, DType d) { return build(kCast, {stripped(a)}, a->axes, d); }
NodePtr bitcast(NodeRef a, DType d) { return map(kBitcast, {a}, d); }
NodePtr neg(NodeRef a) { return build(kNeg, {stripped(a)}, a->axes, a->dtype); }
NodePtr logical_not(NodeRef a) { return map(kNot, {a}, DType::boolean); }
NodePtr stop_gradient(NodeRef a) { return map(kStop, {a}, a->dtype); }
NodePtr exp(NodeRef a) { return map(kExp, {a}, a->dtype); }
NodePtr log(NodeRef a) { return map(kLog, {a}, a->dtype); }
NodePtr sqrt(NodeRef a) { return map(kSqrt, {a}, a->dtype); }
NodePtr rsqrt(NodeRef a) { return map(kRsqrt, {a}, a->dtype); }
NodePtr abs(NodeRef a) { return map(kAbs, {a}, a->dtype); }
NodePtr sign(NodeRef a) { return map(kSign, {a}, a->dtype); }
NodePtr tanh(NodeRef a) { return map(kTanh, {a}, a->dtype); }
NodePtr sigmoid(NodeRef a) { return map(kSigmoid, {a}, a->dtype); }
NodePtr sin(NodeRef a) { return map(kSin, {a}, a->dtype); }
NodePtr cos(NodeRef a) { return map(kCos, {a}, a->dtype); }
NodePtr square(NodeRef a) { return mul(a, a); }
NodePtr reciprocal(NodeRef a) { return div(one(a), a); }

namespace {
NodePtr binary(const Op& op, NodeRef a, NodeRef b) { return map(op, {a, b}, a->dtype); }
NodePtr arithmetic(const Op& op, NodeRef a, NodeRef b) {
  return build(op, {stripped(a), stripped(b)}, joined(a->axes, b->axes), a->dtype);
}
}  // namespace

NodePtr add(NodeRef a, NodeRef b) { return arithmetic(kAdd, a, b); }
NodePtr sub(NodeRef a, NodeRef b) { return arithmetic(kSub, a, b); }
NodePtr mul(NodeRef a, NodeRef b) { return arithmetic(kMul, a, b); }
NodePtr div(NodeRef a, NodeRef b) { return arithmetic(kDiv, a, b); }
NodePtr scale(NodeRef a, double v) { return mul(a, number(v, a->dtype)); }
NodePtr max(NodeRef a, NodeRef b) { return binary(kMaximum, a, b); }
NodePtr min(NodeRef a, NodeRef b) { return binary(kMinimum, a, b); }
NodePtr pow(NodeRef a, NodeRef b) { return binary(kPow, a, b); }
NodePtr less(NodeRef a, NodeRef b) { return map(kLess, {a, b}, DType::boolean); }
NodePtr less_equal(NodeRef a, NodeRef b) { return map(kLessEqual, {a, b}, DType::boolean); }
NodePtr equal(NodeRef a, NodeRef b) { return map(kEqual, {a, b}, DType::boolean); }
bool tests_equality(const Node& n) { return n.op == &kEqual || n.op == &kNotEqual; }
bool selects(const Node& n) { return n.op == &kSelect; }
NodePtr both(NodeRef a, NodeRef b) { return map(kBitAnd, {a, b}, DType::boolean); }
NodePtr either(NodeRef a, NodeRef b) { return map(kBitOr, {a, b}, DType::boolean); }
NodePtr is_nan(NodeRef a) { return map(kIsNan, {a}, DType::boolean); }
NodePtr is_finite(NodeRef a) { return map(kIsFinite, {a}, DType::boolean); }
NodePtr select(NodeRef c, NodeRef a, NodeRef b) { return map(kSelect, {c, a, b}, a->dtype); }
NodePtr select(NodeRef c, NodeRef a, NodeRef b, const Axes& axes) {
  return map(kSelect, {c, a, b}, a->dtype, &axes);
}
NodePtr fma(NodeRef a, NodeRef b, NodeRef c) { return map(kFma, {a, b, c}, a->dtype); }
NodePtr threefry(Code word, NodeRef k0, NodeRef k1, NodeRef high, NodeRef low) {
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
