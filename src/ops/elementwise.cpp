// Elementwise primitives: one block each. `g` is the cotangent of the result; what is returned may have more axes than the operand:
// the gradient walk sums them away, once for all ops.
#include <cmath>
#include <numbers>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::prim {
namespace {

using G = const NodePtr&;
constexpr double kPi = std::numbers::pi;

Op unary(const char* name, Code code, Nodes (*grad)(G o, G g), Linear linear = Linear::no) {
  return {.name = name, .kind = Kind::map, .code = code, .linear = linear, .grad = grad};
}
NodePtr one(G like) { return number(1, like->dtype); }
G x(G o) { return o->in[0]; }
G y(G o) { return o->in[1]; }

}  // namespace

// ---- one operand ----
// Terms that are rounded, or made truth values, lose bits: a sum that is pending is cast once it is there.
Linear cast_linear(const Node& n, std::size_t) {
  auto from = n.in[0]->dtype, to = n.dtype;
  bool integers = !is_float(from) && !is_float(to) && from != DType::boolean && to != DType::boolean;   // sums that wrap, wrap alike
  return integers || (is_float(from) && is_float(to) && bytes_of(to) >= bytes_of(from)) ? Linear::all : Linear::no;
}
const Op kCast{.name = "cast", .kind = Kind::map, .code = Code::cast, .linear = Linear::all,
               .grad = [](G o, G g) { return Nodes{cast(g, x(o)->dtype)}; }, .linear_in = cast_linear, .cheap = true};
const Op kBitcast = unary("bitcast", Code::bitcast, nullptr);
const Op kNeg = unary("neg", Code::neg, [](G, G g) { return Nodes{neg(g)}; }, Linear::all);
const Op kStop{.name = "stop_gradient", .kind = Kind::map, .code = Code::cast, .linear_in = [](const Node&, std::size_t) { return Linear::moves; }};
const Op kAbs = unary("abs", Code::abs, [](G o, G g) { return Nodes{mul(g, sign(x(o)))}; });
const Op kSign = unary("sign", Code::sign, nullptr);
const Op kExp = unary("exp", Code::exp, [](G o, G g) { return Nodes{mul(g, o)}; });
const Op kExp2 = unary("exp2", Code::exp2, [](G o, G g) { return Nodes{scale(mul(g, o), std::log(2.0))}; });
const Op kExpm1 = unary("expm1", Code::expm1, [](G o, G g) { return Nodes{mul(g, add(o, one(o)))}; });
const Op kLog = unary("log", Code::log, [](G o, G g) { return Nodes{div(g, x(o))}; });
const Op kLog2 = unary("log2", Code::log2, [](G o, G g) { return Nodes{div(g, scale(x(o), std::log(2.0)))}; });
const Op kLog1p = unary("log1p", Code::log1p, [](G o, G g) { return Nodes{div(g, add(x(o), one(o)))}; });
const Op kSqrt = unary("sqrt", Code::sqrt, [](G o, G g) { return Nodes{div(scale(g, 0.5), o)}; });
const Op kRsqrt = unary("rsqrt", Code::rsqrt, [](G o, G g) { return Nodes{mul(scale(g, -0.5), div(o, x(o)))}; });
const Op kCbrt = unary("cbrt", Code::cbrt, [](G o, G g) { return Nodes{div(scale(g, 1.0 / 3), square(o))}; });
const Op kSin = unary("sin", Code::sin, [](G o, G g) { return Nodes{mul(g, cos(x(o)))}; });
const Op kCos = unary("cos", Code::cos, [](G o, G g) { return Nodes{neg(mul(g, sin(x(o))))}; });
const Op kTan = unary("tan", Code::tan, [](G o, G g) { return Nodes{mul(g, add(square(o), one(o)))}; });
const Op kAsin = unary("arcsin", Code::asin, [](G o, G g) { return Nodes{mul(g, rsqrt(sub(one(o), square(x(o)))))}; });
const Op kAcos = unary("arccos", Code::acos, [](G o, G g) { return Nodes{neg(mul(g, rsqrt(sub(one(o), square(x(o))))))}; });
const Op kAtan = unary("arctan", Code::atan, [](G o, G g) { return Nodes{div(g, add(square(x(o)), one(o)))}; });
extern const Op kSinh, kCosh;
const Op kSinh = unary("sinh", Code::sinh, [](G o, G g) { return Nodes{mul(g, map(kCosh, {x(o)}, o->dtype))}; });
const Op kCosh = unary("cosh", Code::cosh, [](G o, G g) { return Nodes{mul(g, map(kSinh, {x(o)}, o->dtype))}; });
const Op kTanh = unary("tanh", Code::tanh, [](G o, G g) { return Nodes{mul(g, sub(one(o), square(o)))}; });
const Op kAsinh = unary("arcsinh", Code::asinh, [](G o, G g) { return Nodes{mul(g, rsqrt(add(square(x(o)), one(o))))}; });
const Op kAcosh = unary("arccosh", Code::acosh, [](G o, G g) { return Nodes{mul(g, rsqrt(sub(square(x(o)), one(o))))}; });
const Op kAtanh = unary("arctanh", Code::atanh, [](G o, G g) { return Nodes{div(g, sub(one(o), square(x(o))))}; });
const Op kErf = unary("erf", Code::erf, [](G o, G g) { return Nodes{mul(scale(g, 2 / std::sqrt(kPi)), exp(neg(square(x(o)))))}; });
const Op kErfinv = unary("erfinv", Code::erfinv, [](G o, G g) { return Nodes{mul(scale(g, std::sqrt(kPi) / 2), exp(square(o)))}; });
const Op kFloor = unary("floor", Code::floor, nullptr), kCeil = unary("ceil", Code::ceil, nullptr);
const Op kRound = unary("round", Code::round, nullptr), kTrunc = unary("trunc", Code::trunc, nullptr);
const Op kNot = unary("logical_not", Code::logical_not, nullptr), kBitNot = unary("bitwise_not", Code::bit_not, nullptr);
const Op kIsFinite = unary("isfinite", Code::is_finite, nullptr), kIsNan = unary("isnan", Code::is_nan, nullptr),
         kIsInf = unary("isinf", Code::is_inf, nullptr);

// ---- two operands ----
const Op kAdd{.name = "add", .kind = Kind::map, .code = Code::add, .linear = Linear::all, .grad = [](G, G g) { return Nodes{g, g}; }};
const Op kSub{.name = "sub", .kind = Kind::map, .code = Code::sub, .linear = Linear::all, .grad = [](G, G g) { return Nodes{g, neg(g)}; }};
const Op kMul{.name = "mul", .kind = Kind::map, .code = Code::mul, .linear = Linear::one,
              .grad = [](G o, G g) { return Nodes{mul(g, y(o)), mul(g, x(o))}; }};
const Op kDiv{.name = "div", .kind = Kind::map, .code = Code::div,
              .grad = [](G o, G g) { auto d = div(g, y(o)); return Nodes{d, neg(mul(d, o))}; },
              .linear_in = [](const Node&, std::size_t k) { return k == 0 ? Linear::one : Linear::no; }};
extern const Op kPow;
const Op kPow{.name = "pow", .kind = Kind::map, .code = Code::pow, .grad = [](G o, G g) {
  // At x = 0 the derivative by y is 0, and by x it is 0 where y is 0.
  auto zero = number(0, o->dtype), base = select(equal(x(o), zero), one(o), x(o));
  auto dx = mul(g, mul(y(o), pow(x(o), select(equal(y(o), zero), one(o), sub(y(o), one(o))))));
  return Nodes{dx, mul(g, mul(select(equal(x(o), zero), zero, log(base)), o))}; }};
// Where both are equal each gets half of the cotangent, as in JAX.
NodePtr winner(G o, G a, G b) {
  auto half = number(0.5, o->dtype), none = number(0, o->dtype);
  return select(equal(a, o), select(equal(b, o), half, one(o)), none);
}
const Op kMaximum{.name = "maximum", .kind = Kind::map, .code = Code::max, .grad = [](G o, G g) {
  return Nodes{mul(g, winner(o, x(o), y(o))), mul(g, winner(o, y(o), x(o)))}; }};
const Op kMinimum{.name = "minimum", .kind = Kind::map, .code = Code::min, .grad = [](G o, G g) {
  return Nodes{mul(g, winner(o, x(o), y(o))), mul(g, winner(o, y(o), x(o)))}; }};
const Op kAtan2{.name = "arctan2", .kind = Kind::map, .code = Code::atan2, .grad = [](G o, G g) {
  auto d = div(g, add(square(x(o)), square(y(o))));
  return Nodes{mul(d, y(o)), neg(mul(d, x(o)))}; }};
const Op kRem{.name = "rem", .kind = Kind::map, .code = Code::rem, .grad = [](G o, G g) {
  return Nodes{g, neg(mul(g, map(kTrunc, {div(x(o), y(o))}, o->dtype)))}; }};
const Op kMod{.name = "mod", .kind = Kind::map, .code = Code::mod, .grad = [](G o, G g) {
  return Nodes{g, neg(mul(g, map(kFloor, {div(x(o), y(o))}, o->dtype)))}; }};
const Op kFloorDiv{.name = "floor_div", .kind = Kind::map, .code = Code::floor_div};
const Op kNextafter{.name = "nextafter", .kind = Kind::map, .code = Code::nextafter};
const Op kLess{.name = "less", .kind = Kind::map, .code = Code::less}, kLessEqual{.name = "less_equal", .kind = Kind::map, .code = Code::less_equal},
    kEqual{.name = "equal", .kind = Kind::map, .code = Code::equal}, kNotEqual{.name = "not_equal", .kind = Kind::map, .code = Code::not_equal};
const Op kBitAnd{.name = "bitwise_and", .kind = Kind::map, .code = Code::bit_and}, kBitOr{.name = "bitwise_or", .kind = Kind::map, .code = Code::bit_or},
    kBitXor{.name = "bitwise_xor", .kind = Kind::map, .code = Code::bit_xor};
const Op kShiftLeft{.name = "left_shift", .kind = Kind::map, .code = Code::shift_left},
    kShiftRight{.name = "right_shift", .kind = Kind::map, .code = Code::shift_right};

// ---- three and four ----
const Op kSelect{.name = "select", .kind = Kind::map, .code = Code::select, .grad = [](G o, G g) {
  auto none = number(0, o->dtype);
  return Nodes{nullptr, select(x(o), g, none), select(x(o), none, g)}; },
  .linear_in = [](const Node&, std::size_t k) { return k == 0 ? Linear::no : Linear::all; }};
const Op kFma{.name = "fma", .kind = Kind::map, .code = Code::fma, .grad = [](G o, G g) { return Nodes{mul(g, y(o)), mul(g, x(o)), g}; }};
const Op kThreefry0{.name = "threefry0", .kind = Kind::map, .code = Code::threefry0}, kThreefry1{.name = "threefry1", .kind = Kind::map, .code = Code::threefry1},
    kThreefryXor{.name = "threefry_xor", .kind = Kind::map, .code = Code::threefry_xor};

// ---- builders ----
NodePtr map(const Op& op, Nodes in, DType dtype, const Axes* axes) {
  Axes out;
  if (axes) out = *axes;
  else for (auto& n : in)
    for (auto& a : n->axes)
      if (!has(out, a.name)) out.push_back(a);
  for (auto& n : in)
    if (n->op == &kFit) n = n->in[0];   // operands are broadcast by name anyway
  return make(op, std::move(in), std::move(out), dtype);
}
NodePtr cast(G a, DType d) {
  if (a->dtype == d) return a;
  if (is_number(a)) {
    auto& n = a->op == &kNumber ? a : a->in[0];
    if (is_float(d) || !is_float(n->dtype)) {
      auto v = is_float(n->dtype) ? number(n->attr.number, d) : integer(integer_of(*n), d);
      return fit(v, a->axes);
    }
  }
  return map(kCast, {a}, d, &a->axes);
}
NodePtr bitcast(G a, DType d) { return map(kBitcast, {a}, d, &a->axes); }
NodePtr stop_gradient(G a) { return map(kStop, {a}, a->dtype, &a->axes); }
NodePtr neg(G a) { return is_number(a) && is_float(a->dtype) ? filled(-(a->op == &kNumber ? a : a->in[0])->attr.number, a->dtype, a->axes) : map(kNeg, {a}, a->dtype, &a->axes); }
NodePtr exp(G a) { return map(kExp, {a}, a->dtype, &a->axes); }
NodePtr log(G a) { return map(kLog, {a}, a->dtype, &a->axes); }
NodePtr sqrt(G a) { return map(kSqrt, {a}, a->dtype, &a->axes); }
NodePtr rsqrt(G a) { return map(kRsqrt, {a}, a->dtype, &a->axes); }
NodePtr abs(G a) { return map(kAbs, {a}, a->dtype, &a->axes); }
NodePtr sign(G a) { return map(kSign, {a}, a->dtype, &a->axes); }
NodePtr tanh(G a) { return map(kTanh, {a}, a->dtype, &a->axes); }
NodePtr sin(G a) { return map(kSin, {a}, a->dtype, &a->axes); }
NodePtr cos(G a) { return map(kCos, {a}, a->dtype, &a->axes); }
NodePtr square(G a) { return mul(a, a); }
NodePtr logical_not(G a) { return map(kNot, {a}, DType::boolean, &a->axes); }
NodePtr reciprocal(G a) { return div(one(a), a); }

namespace {
Axes joined(G a, G b) {
  Axes out = a->axes;
  for (auto& v : b->axes) if (!has(out, v.name)) out.push_back(v);
  return out;
}
NodePtr binary(const Op& op, G a, G b) { auto axes = joined(a, b); return map(op, {a, b}, a->dtype, &axes); }
}  // namespace

namespace {
// Two plain numbers: folded in the precision of their dtype.
NodePtr folded(G a, G b, double (*f)(double, double)) {
  if (a->op != &kNumber || b->op != &kNumber || (a->dtype != DType::f32 && a->dtype != DType::f64)) return nullptr;
  return number(f(a->attr.number, b->attr.number), a->dtype);
}
}  // namespace

NodePtr add(G a, G b) {
  if (auto n = folded(a, b, [](double x, double y) { return x + y; })) return n;
  if (is_number(a, 0)) return fit(b, joined(a, b));
  if (is_number(b, 0)) return fit(a, joined(a, b));
  return binary(kAdd, a, b);
}
NodePtr sub(G a, G b) {
  if (is_number(b, 0)) return fit(a, joined(a, b));
  return binary(kSub, a, b);
}
NodePtr mul(G a, G b) {
  if (auto n = folded(a, b, [](double x, double y) { return x * y; })) return n;
  if (is_number(a, 1)) return fit(b, joined(a, b));
  if (is_number(b, 1)) return fit(a, joined(a, b));
  return binary(kMul, a, b);
}
NodePtr div(G a, G b) {
  if (auto n = folded(a, b, [](double x, double y) { return x / y; })) return n;
  if (is_number(b, 1)) return fit(a, joined(a, b));
  return binary(kDiv, a, b);
}
NodePtr scale(G a, double v) { return mul(a, number(v, a->dtype)); }
NodePtr max(G a, G b) { return binary(kMaximum, a, b); }
NodePtr min(G a, G b) { return binary(kMinimum, a, b); }
NodePtr pow(G a, G b) { return binary(kPow, a, b); }
NodePtr less(G a, G b) { return map(kLess, {a, b}, DType::boolean); }
NodePtr less_equal(G a, G b) { return map(kLessEqual, {a, b}, DType::boolean); }
NodePtr equal(G a, G b) { return map(kEqual, {a, b}, DType::boolean); }
NodePtr select(G c, G a, G b) { return map(kSelect, {c, a, b}, a->dtype); }
NodePtr fma(G a, G b, G c) { return map(kFma, {a, b, c}, a->dtype); }
NodePtr threefry(Code word, G k0, G k1, G high, G low) {
  auto& op = word == Code::threefry0 ? kThreefry0 : word == Code::threefry1 ? kThreefry1 : kThreefryXor;
  return map(op, {k0, k1, high, low}, DType::u32);
}

namespace {
const bool registered = [] {
  register_ops({&kCast, &kBitcast, &kNeg, &kStop, &kAbs, &kSign, &kExp, &kExp2, &kExpm1, &kLog, &kLog2, &kLog1p, &kSqrt, &kRsqrt, &kCbrt, &kSin, &kCos,
                &kTan, &kAsin, &kAcos, &kAtan, &kSinh, &kCosh, &kTanh, &kAsinh, &kAcosh, &kAtanh, &kErf, &kErfinv, &kFloor, &kCeil, &kRound, &kTrunc,
                &kNot, &kBitNot, &kIsFinite, &kIsNan, &kIsInf, &kAdd, &kSub, &kMul, &kDiv, &kPow, &kMaximum, &kMinimum, &kAtan2, &kRem, &kMod, &kFloorDiv,
                &kNextafter, &kLess, &kLessEqual, &kEqual, &kNotEqual, &kBitAnd, &kBitOr, &kBitXor, &kShiftLeft, &kShiftRight, &kSelect, &kFma,
                &kThreefry0, &kThreefry1, &kThreefryXor});
  return true;
}();
}  // namespace
}  // namespace haliax::prim
