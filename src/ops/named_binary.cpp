// Elementwise ops on two and three arrays. C++ scalars are weakly typed, and one operand must have
// the axes of the others.
#include <array>
#include <cmath>
#include <numbers>

#include "haliax/fmt.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;

DType as_is(DType d) { return d; }
// Two operands in the dtype of the computation: `rule` applied to the promoted dtype.
struct BinaryCall {
  CallSite here;
  DType dtype;
  NodePtr a, b;
  BinaryCall(const char* op, const Arr& a, const Arr& b, DType (*rule)(DType) = as_is)
      : here(a.at()), dtype(rule(promoted(op, std::array{&a, &b}))), a(node_of(op, a, dtype)),
        b(node_of(op, b, dtype)) {}
  Nodes operands() {  // moves the operands out; valid once
    Nodes both(2);
    both[0] = std::move(a);
    both[1] = std::move(b);
    return both;
  }
};
NamedArray binary(const char* name, const Op& op, const Arr& a, const Arr& b,
                  DType (*rule)(DType)) {
  BinaryCall c(name, a, b, rule);
  return pointwise(name, op, c.operands(), c.dtype);
}
NamedArray inexact(const char* name, const Op& op, const Arr& a, const Arr& b) {
  return binary(name, op, a, b, float_of);
}
// Integer quotients and remainders.
NamedArray division(const char* name, const Op& op, const Arr& a, const Arr& b) {
  return binary(name, op, a, b, no_bool);
}
// Arithmetic. On bools, `of_bools` is the op that JAX uses; null: not defined.
NamedArray arithmetic(const char* name, const Op& op, const Op* of_bools, const Arr& a,
                      const Arr& b) {
  BinaryCall c(name, a, b);
  if (c.dtype != DType::boolean) return pointwise(name, op, c.operands(), c.dtype);
  if (!of_bools)
    fail(name, "is not defined for two bools; cast one to i32, or use the logical ops");
  return pointwise(name, *of_bools, c.operands(), c.dtype);
}
NamedArray comparison(const char* name, const Op& op, const Arr& a, const Arr& b,
                      bool swapped = false) {
  auto [here, dtype, x, y] = BinaryCall(name, a, b);
  auto axes = broadcast(name, {x, y});
  return NamedArray(prim::map(op, swapped ? Nodes{y, x} : Nodes{x, y}, DType::boolean, &axes));
}
NamedArray logical(const char* name, const Op& op, const Arr& a, const Arr& b) {
  CallSite here(a.at());
  return pointwise(name, op, {to_bool(node_of(name, a)), to_bool(node_of(name, b))},
                   DType::boolean);
}
NamedArray bits(const char* name, const Op& op, const Arr& a, const Arr& b, bool shift = false) {
  CallSite here(a.at());
  if (auto d = promoted(name, std::array{&a, &b}); is_float(d))
    fail(name, fmt::format("expected integers{}, got {}", shift ? "" : " or bools", d));
  return binary(name, op, a, b, shift ? no_bool : as_is);
}

// Returns x to the power n > 0, by squaring.
NodePtr integer_power(NodePtr x, std::int64_t n) {
  NodePtr out;
  for (; n; n >>= 1, x = n ? prim::mul(x, x) : x)
    if (n & 1) out = out ? prim::mul(out, x) : x;
  return out;
}

const Op kAtan2 = prim::map_op("arctan2", Code::atan2, [](NodeRef o, NodeRef g) {
  auto &y = o->in[0], &x = o->in[1];
  auto d = prim::div(g, prim::add(prim::square(y), prim::square(x)));
  return Nodes{prim::mul(d, x), prim::neg(prim::mul(d, y))};
});
const Op kNextafter = prim::map_op("nextafter", Code::nextafter),
         kBitXor = prim::map_op("bitwise_xor", Code::bit_xor);
const Op kShiftLeft = prim::map_op("left_shift", Code::shift_left),
         kShiftRight = prim::map_op("right_shift", Code::shift_right);

// Returns the 16-bit float after x in the direction of y. Backends compute in f32, where the next
// float is nearer.
NodePtr next_of_16_bits(NodeRef x, NodeRef y) {
  const auto d = x->dtype;
  auto bits = [](std::int64_t v) { return prim::integer(v, DType::u16); };
  auto test = [](const Op& op, const Nodes& in) { return prim::map(op, in, DType::boolean); };
  auto zero = prim::number(0, d), mine = prim::bitcast(x, DType::u16);
  auto inwards = test(kBitXor, {prim::less(x, y), prim::less(zero, x)});  // towards 0
  auto moved = prim::select(inwards, prim::sub(mine, bits(1)), prim::add(mine, bits(1)));
  // smallest magnitude, with the sign of y
  auto least = prim::select(prim::less(zero, y), bits(1), bits(0x8001));
  auto next = prim::bitcast(prim::select(prim::equal(x, zero), least, moved), d);
  auto nan = test(prim::kBitOr, {prim::is_nan(x), prim::is_nan(y)});
  return prim::select(nan, prim::add(x, y), prim::select(prim::equal(x, y), y, next));
}

// Operands of the wrap: the value, a, b. The derivatives are the shares of exp(a) and exp(b). The
// gradient of the composed value would be NaN for an infinite operand.
NodePtr share(NodeRef x, NodeRef o) {
  auto finite = prim::is_finite(o);
  auto top = prim::cast(prim::equal(x, prim::number(HUGE_VAL, x->dtype)), o->dtype);
  return prim::select(finite, prim::exp(prim::sub(x, o)), top);
}
const Op kLogaddexp{
    .name = "logaddexp", .kind = Kind::wrap, .grad = [](NodeRef o, NodeRef g) {
      return Nodes{nullptr, prim::mul(g, share(o->in[1], o)), prim::mul(g, share(o->in[2], o))};
    }};
// Operands of the wrap: the value, a, b. The derivatives are a / value and b / value, and 0 if the
// value is 0. Next to an infinite operand, a finite one has no influence.
NodePtr ratio_to(NodeRef x, NodeRef o) {
  auto zero = prim::number(0, x->dtype), one = prim::number(1, x->dtype);
  auto infinite = prim::map(prim::kIsInf, {o}, DType::boolean);
  auto ratio = prim::div(x, prim::select(prim::equal(o, zero), one, o));
  auto top = prim::select(prim::map(prim::kIsInf, {x}, DType::boolean), prim::sign(x), zero);
  return prim::select(infinite, top, ratio);
}
const Op kHypot{.name = "hypot", .kind = Kind::wrap, .grad = [](NodeRef o, NodeRef g) {
                  return Nodes{nullptr, prim::mul(g, ratio_to(o->in[1], o)),
                               prim::mul(g, ratio_to(o->in[2], o))};
                }};
const bool binary_registered = prim::register_ops(
    {&kAtan2, &kNextafter, &kBitXor, &kShiftLeft, &kShiftRight, &kLogaddexp, &kHypot});

}  // namespace

NamedArray add(Arr a, Arr b) { return arithmetic("add", prim::kAdd, &prim::kBitOr, a, b); }
NamedArray subtract(Arr a, Arr b) { return arithmetic("subtract", prim::kSub, nullptr, a, b); }
NamedArray multiply(Arr a, Arr b) {
  return arithmetic("multiply", prim::kMul, &prim::kBitAnd, a, b);
}
NamedArray maximum(Arr a, Arr b) {
  return arithmetic("maximum", prim::kMaximum, &prim::kBitOr, a, b);
}
NamedArray minimum(Arr a, Arr b) {
  return arithmetic("minimum", prim::kMinimum, &prim::kBitAnd, a, b);
}
NamedArray divide(Arr a, Arr b) { return inexact("divide", prim::kDiv, a, b); }
NamedArray arctan2(Arr a, Arr b) { return inexact("arctan2", kAtan2, a, b); }
NamedArray nextafter(Arr a, Arr b) {
  BinaryCall c("nextafter", a, b, float_of);
  if (bytes_of(c.dtype) > 2) return pointwise("nextafter", kNextafter, c.operands(), c.dtype);
  auto axes = broadcast("nextafter", {c.a, c.b});
  return NamedArray(prim::fit(next_of_16_bits(c.a, c.b), axes));
}
NamedArray floor_divide(Arr a, Arr b) { return division("floor_divide", prim::kFloorDiv, a, b); }
NamedArray mod(Arr a, Arr b) { return division("mod", prim::kMod, a, b); }
NamedArray fmod(Arr a, Arr b) { return division("fmod", prim::kRem, a, b); }

NamedArray power(Arr a, Arr b) {
  CallSite here(a.at());
  auto dtype = no_bool(promoted("power", std::array<const Arr*, 2>{&a, &b}));
  auto x = node_of("power", a, dtype);
  const bool integer = b.is_number() && b.number() == std::trunc(b.number());
  if (integer && b.number() < 0 && !is_float(dtype))
    fail("power", fmt::format("{} to the power {} is not an integer; cast it to f32 first", dtype,
                              b.number()));
  // A small integer exponent becomes a few multiplications, which are exact and valid for a
  // negative base.
  if (integer && std::abs(b.number()) <= 16) {
    auto n = std::int64_t(b.number());
    if (n == 0) return NamedArray(prim::filled(1, dtype, x->axes));
    auto p = integer_power(x, std::abs(n));
    return NamedArray(n < 0 ? prim::reciprocal(p) : p);
  }
  return pointwise("power", prim::kPow, {x, node_of("power", b, dtype)}, dtype);
}

NamedArray hypot(Arr a, Arr b) {
  auto [here, dtype, x, y] = BinaryCall("hypot", a, b, float_of);
  auto axes = broadcast("hypot", {x, y});
  // Scales by the larger operand, so that squares neither overflow nor underflow.
  auto u = prim::abs(x), v = prim::abs(y), large = prim::max(u, v), small = prim::min(u, v);
  auto zero = prim::number(0, dtype), one = prim::number(1, dtype);
  auto plain = prim::logical_not(prim::map(prim::kIsInf, {large}, DType::boolean));
  auto usual = prim::both(plain, prim::less(zero, large));
  auto ratio = prim::div(prim::select(usual, small, zero), prim::select(usual, large, one));
  auto value = prim::fit(prim::mul(large, prim::sqrt(prim::add(one, prim::square(ratio)))), axes);
  return NamedArray(make(kHypot, {value, x, y}, axes, dtype));
}
NamedArray logaddexp(Arr a, Arr b) {
  auto [here, dtype, x, y] = BinaryCall("logaddexp", a, b, float_of);
  auto axes = broadcast("logaddexp", {x, y});
  auto difference = prim::sub(x, y);  // NaN for two equal infinities, whose sum is correct
  auto tail = prim::map(prim::kLog1p, {prim::exp(prim::neg(prim::abs(difference)))}, dtype);
  auto strange = prim::is_nan(difference);
  auto value = prim::select(strange, prim::add(x, y), prim::add(prim::max(x, y), tail), axes);
  return NamedArray(make(kLogaddexp, {value, x, y}, axes, dtype));
}

NamedArray logaddexp2(Arr a, Arr b) {
  auto [here, dtype, x, y] = BinaryCall("logaddexp2", a, b, float_of);
  auto natural = [&, wide = wide_of(dtype)](NodeRef v) {
    return Arr(NamedArray(prim::scale(prim::cast(v, wide), std::numbers::ln2)), a.at());
  };
  auto sum = logaddexp(natural(x), natural(y)).node();
  return NamedArray(prim::cast(prim::scale(sum, 1 / std::numbers::ln2), dtype));
}
NamedArray float_power(Arr a, Arr b) {
  auto real = [](const Arr& v) {
    if (v.is_number()) return Arr(v.number(), v.at());
    return is_float(v.dtype()) ? v : Arr(astype(v, DType::f32), v.at());
  };
  return power(real(a), real(b));
}
std::pair<NamedArray, NamedArray> divmod(Arr a, Arr b) { return {floor_divide(a, b), mod(a, b)}; }

NamedArray equal(Arr a, Arr b) { return comparison("equal", prim::kEqual, a, b); }
NamedArray not_equal(Arr a, Arr b) { return comparison("not_equal", prim::kNotEqual, a, b); }
NamedArray less(Arr a, Arr b) { return comparison("less", prim::kLess, a, b); }
NamedArray less_equal(Arr a, Arr b) { return comparison("less_equal", prim::kLessEqual, a, b); }
NamedArray greater(Arr a, Arr b) { return comparison("greater", prim::kLess, a, b, true); }
NamedArray greater_equal(Arr a, Arr b) {
  return comparison("greater_equal", prim::kLessEqual, a, b, true);
}
NamedArray logical_and(Arr a, Arr b) { return logical("logical_and", prim::kBitAnd, a, b); }
NamedArray logical_or(Arr a, Arr b) { return logical("logical_or", prim::kBitOr, a, b); }
NamedArray logical_xor(Arr a, Arr b) { return logical("logical_xor", kBitXor, a, b); }
// An operator has no parameter for its source location. The location of an operand is used instead,
// which is usually on the same line.
namespace {
Arr from(const NamedArray& a, const NamedArray& created_at) {
  return {a, created_at.empty() ? SourceLocation() : created_at.node()->origin.at};
}
}  // namespace
NamedArray operator!(const NamedArray& a) { return logical_not(from(a, a)); }
NamedArray operator&&(const NamedArray& a, const NamedArray& b) {
  return logical_and(from(a, b), from(b, b));
}
NamedArray operator&&(const NamedArray& a, bool b) { return logical_and(from(a, a), b); }
NamedArray operator&&(bool a, const NamedArray& b) {
  return logical_and(Arr(a, from(b, b).at()), from(b, b));
}
NamedArray operator||(const NamedArray& a, const NamedArray& b) {
  return logical_or(from(a, b), from(b, b));
}
NamedArray operator||(const NamedArray& a, bool b) { return logical_or(from(a, a), b); }
NamedArray operator||(bool a, const NamedArray& b) {
  return logical_or(Arr(a, from(b, b).at()), from(b, b));
}
NamedArray bitwise_and(Arr a, Arr b) { return bits("bitwise_and", prim::kBitAnd, a, b); }
NamedArray bitwise_or(Arr a, Arr b) { return bits("bitwise_or", prim::kBitOr, a, b); }
NamedArray bitwise_xor(Arr a, Arr b) { return bits("bitwise_xor", kBitXor, a, b); }
NamedArray left_shift(Arr a, Arr b) { return bits("left_shift", kShiftLeft, a, b, true); }
NamedArray right_shift(Arr a, Arr b) { return bits("right_shift", kShiftRight, a, b, true); }

namespace {
// Returns a where it is the better value or b is NaN, otherwise b.
NamedArray ignoring_nan(const char* name, const Arr& a, const Arr& b, bool largest) {
  auto [here, dtype, x, y] = BinaryCall(name, a, b);
  auto axes = broadcast(name, {x, y});
  auto better = largest ? prim::less(y, x) : prim::less(x, y);
  if (is_float(dtype))
    better = prim::map(prim::kBitOr, {better, prim::map(prim::kIsNan, {y}, DType::boolean)},
                       DType::boolean, &axes);
  return NamedArray(prim::select(better, x, y, axes));
}
}  // namespace
NamedArray fmax(Arr a, Arr b) { return ignoring_nan("fmax", a, b, true); }
NamedArray fmin(Arr a, Arr b) { return ignoring_nan("fmin", a, b, false); }

NamedArray where(Arr condition, Arr a, Arr b) {
  CallSite here(condition.at());
  auto c = to_bool(node_of("where", condition));
  auto dtype = promoted("where", std::array<const Arr*, 2>{&a, &b});
  return pointwise("where", prim::kSelect,
                   {c, node_of("where", a, dtype), node_of("where", b, dtype)}, dtype);
}
NamedArray clip(Arr a, std::optional<Arr> min, std::optional<Arr> max) {
  CallSite here(a.at());
  auto dtype =
      no_bool(promoted("clip", std::array<const Arr*, 3>{&a, min ? &*min : &a, max ? &*max : &a}));
  auto x = node_of("clip", a, dtype);
  Nodes all{x};
  if (min) all.push_back(node_of("clip", *min, dtype));
  if (max) all.push_back(node_of("clip", *max, dtype));
  auto axes = broadcast("clip", all);
  if (min) x = prim::map(prim::kMaximum, {x, all[1]}, dtype, max ? nullptr : &axes);
  if (max) x = prim::map(prim::kMinimum, {x, all.back()}, dtype, &axes);
  return NamedArray(prim::fit(x, axes));
}

}  // namespace haliax
