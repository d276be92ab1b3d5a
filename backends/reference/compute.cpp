// Scalar arithmetic of the reference backend; see compute.h.
#include "compute.h"

#include <string>

#include "haliax/error.h"

namespace haliax::reference {

using namespace scalar;
using program::Code;
using program::Monoid;

namespace {

[[noreturn]] void undefined(Code code, DType dtype) {
  throw Error("[reference] instruction " + std::to_string(int(code)) +
              " of program::Code is not defined for " + std::string(name_of(dtype)) +
              "; its operands should have been cast");
}

// Arithmetic of floats and of 64-bit integers. Narrow integers are sign-extended or zero-extended
// to 64 bits, so the caller only wraps the result.
template <class T> T arithmetic(Code code, DType dtype, T x, T y) {
  using U = std::conditional_t<std::is_floating_point_v<T>, T, std::uint64_t>;
  switch (code) {
    case Code::neg:
      return scalar::negate(x);
    case Code::abs:
      return std::is_floating_point_v<T> ? T(std::fabs(x)) : x < 0 ? scalar::negate(x) : x;
    case Code::sign:
      return scalar::sign(x);
    case Code::add:
      return T(U(x) + U(y));
    case Code::sub:
      return T(U(x) - U(y));
    case Code::mul:
      return T(U(x) * U(y));
    case Code::div:
      return scalar::div(x, y);
    case Code::floor_div:
      return scalar::floor_div(x, y);
    case Code::mod:
      return scalar::mod(x, y);
    case Code::rem:
      return scalar::rem(x, y);
    case Code::max:
      return scalar::max(x, y);
    case Code::min:
      return scalar::min(x, y);
    default:
      undefined(code, dtype);
  }
}

template <class T> T integer_op(Code code, DType dtype, T x, T y) {
  switch (code) {
    case Code::floor:
    case Code::ceil:
    case Code::round:
    case Code::trunc:
      return x;
    case Code::bit_not:
      return dtype == DType::boolean ? x == 0 : T(~x);
    case Code::bit_and:
      return x & y;
    case Code::bit_or:
      return x | y;
    case Code::bit_xor:
      return x ^ y;
    case Code::shift_left:
      return scalar::shift_left(x, y, width_of(dtype));
    case Code::shift_right:
      return scalar::shift_right(x, y, width_of(dtype));
    case Code::pow:
      return scalar::power(x, y);
    default:
      return arithmetic(code, dtype, x, y);
  }
}

double next(DType dtype, double x, double y) {
  if (dtype == DType::f64) return std::nextafter(x, y);
  if (dtype == DType::f32) return std::nextafter(float(x), float(y));
  if (x != x || y != y || x == y) return x == y ? y : x + y;
  auto to = dtype == DType::bf16 ? to_bf16 : to_f16;
  auto from = dtype == DType::bf16 ? from_bf16 : from_f16;
  if (x == 0) return from(y > 0 ? 0x0001 : 0x8001);
  return from(std::uint16_t(to(float(x)) + ((x < y) == (x > 0) ? 1 : -1)));
}

// Computes in double and rounds once. The rounded result equals the f32 operation for + - * / and
// sqrt, and is (almost) always the nearest f32 for other functions.
double floating(Code code, DType dtype, double x, double y) {
  bool f64 = dtype == DType::f64;
  switch (code) {
    case Code::log1p:
      return f64 ? std::log1p(x) : double(scalar::log1p(float(x)));
    case Code::erfinv:
      return f64 ? scalar::erfinv(x) : double(scalar::erfinv(float(x)));
    case Code::sigmoid:
      return scalar::sigmoid(x);
    case Code::digamma:
      return scalar::digamma(x);
    case Code::rsqrt:
      return 1 / std::sqrt(x);
    case Code::pow:
      return std::pow(x, y);
    case Code::atan2:
      return std::atan2(x, y);
    case Code::nextafter:
      return next(dtype, x, y);
    default:
      break;
  }
  // unary functions come from a table
  auto* f = operands_of(code) < 2 ? program::function_of(code) : nullptr;
  return f ? f->of(x) : arithmetic(code, dtype, x, y);
}

}  // namespace

Value compute(Code code, DType dtype, DType from, const Value* a) {
  switch (code) {
    case Code::cast:
      return cast(a[0], from, dtype);
    case Code::bitcast: {
      if (bytes_of(from) != bytes_of(dtype)) undefined(code, dtype);
      std::byte bytes[8];
      store(from, bytes, a[0]);
      return load(dtype, bytes);
    }
    case Code::logical_not:
      return truth(equal(from, a[0], {}));
    case Code::is_finite:
      return truth(!is_float(from) || std::isfinite(a[0].real));
    case Code::is_nan:
      return truth(is_nan(from, a[0]));
    case Code::is_inf:
      return truth(is_float(from) && std::isinf(a[0].real));
    case Code::popcount:
      return integer(dtype, std::popcount(std::uint64_t(a[0].integer) << (64 - width_of(from))));
    case Code::less:
      return truth(less(from, a[0], a[1]));
    case Code::less_equal:
      return truth(less(from, a[0], a[1]) || equal(from, a[0], a[1]));
    case Code::equal:
      return truth(equal(from, a[0], a[1]));
    case Code::not_equal:
      return truth(!equal(from, a[0], a[1]));
    case Code::select:
      return a[0].integer ? a[1] : a[2];
    case Code::fma:
      if (dtype == DType::f64) return {std::fma(a[0].real, a[1].real, a[2].real), 0};
      if (holds_real(dtype))
        return real(dtype, std::fma(float(a[0].real), float(a[1].real), float(a[2].real)));
      return integer(dtype, std::int64_t(std::uint64_t(a[0].integer) * std::uint64_t(a[1].integer) +
                                         std::uint64_t(a[2].integer)));
    case Code::threefry0:
    case Code::threefry1:
    case Code::threefry_xor: {
      auto word = [&](int k) { return std::uint32_t(a[k].integer); };
      auto [x, y] = threefry(word(0), word(1), word(2), word(3));
      return {0, code == Code::threefry0 ? x : code == Code::threefry1 ? y : x ^ y};
    }
    default:
      break;
  }
  auto y = operands_of(code) < 2 ? Value{} : a[1];
  if (holds_real(dtype)) return real(dtype, floating(code, dtype, a[0].real, y.real));
  if (!is_unsigned(dtype)) return integer(dtype, integer_op(code, dtype, a[0].integer, y.integer));
  return integer(dtype, std::int64_t(integer_op(code, dtype, std::uint64_t(a[0].integer),
                                                std::uint64_t(y.integer))));
}

Value start_of(Monoid m, DType d) {
  return m == Monoid::sum    ? Value{0, 0}
         : m == Monoid::prod ? Value{1, 1}
         : m == Monoid::max  ? lowest(d)
                             : highest(d);
}
Value combine(Monoid m, DType d, Value acc, Value x) {
  constexpr Code codes[] = {Code::add, Code::mul, Code::max, Code::min};
  const Value args[] = {acc, x};
  return compute(codes[int(m)], holds_real(d) ? DType::f64 : d, d, args);
}

}  // namespace haliax::reference
