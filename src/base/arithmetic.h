// Scalar arithmetic of a Program's op codes, wherever the result differs from plain C++ or C++
// leaves it undefined. All backends use these definitions, so that random numbers and corner cases
// are the same on every device. GPU kernels are compiled with this source and have no standard
// library: a function here may use only the parts of `std` that backends/cuda/device/std.h defines.
//
//   integers          wrap around at their width; x / 0 is -1 (all bits set); x rem 0 and x mod 0
//                     are x; lowest / -1 is lowest
//   rem, mod          rem has the sign of the dividend (C), mod the sign of the divisor (Python);
//                     floor_div rounds down and matches mod
//   shifts            a count that is negative or at least the width yields 0, or all sign bits
//                     for a signed shift_right
//   max, min          NaN if an operand is NaN
//   sign              the sign of NaN is NaN, the sign of a zero is the same zero
//   round             halfway cases round to even
//   float to integer  saturates; NaN becomes 0
//   to bool           x != 0
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace haliax::scalar {

// ---- random bits ----
struct Words {
  std::uint32_t a, b;
};

// Threefry-2x32 with 20 rounds (Salmon et al. 2011).
static inline Words threefry(std::uint32_t key0, std::uint32_t key1, std::uint32_t x0,
                             std::uint32_t x1) {
  constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const std::uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAu};
  x0 += keys[0];
  x1 += keys[1];
  for (std::uint32_t i = 0; i < 5; ++i) {
    for (int r : rotations[i % 2]) {
      x0 += x1;
      x1 = std::rotl(x1, r) ^ x0;
    }

    x0 += keys[(i + 1) % 3];
    x1 += keys[(i + 2) % 3] + i + 1;
  }
  return {x0, x1};
}

// ---- functions on which random numbers depend ----
// Library functions are avoided here, since their results differ between machines.

// Computes log(1 + x) = e log 2 + log(1 + f), with f in [-1/4, 1/2], by a polynomial in double: a
// fit at Chebyshev nodes with a relative error of 2^-45. The f32 result is correctly rounded except
// for about 1 in 10^6 arguments.
static inline float log1p(float value) {
  constexpr double terms[17] = {0.015017293179883011,
                                -0.046046321775463681,
                                0.068880726624469507,
                                -0.075407465164787205,
                                0.07773939003760634,
                                -0.083093296084569876,
                                0.09080979741457644,
                                -0.10000266623904006,
                                0.11111559851056675,
                                -0.12500018472413396,
                                0.14285704935292268,
                                -0.16666666112741413,
                                0.20000000084291827,
                                -0.25000000004154133,
                                0.33333333333105675,
                                -0.49999999999995626,
                                1};
  double x = value, u = 1 + x;
  auto bits = std::bit_cast<std::uint64_t>(u);
  // u = 2^exponent * m, with m in [3/4, 3/2)
  auto exponent = std::int64_t(bits - 0x3FE8000000000000) >> 52;
  double m = std::bit_cast<double>(bits - (std::uint64_t(exponent) << 52));
  double f = exponent == 0 ? x : m - 1, z = f * f, even = terms[0], odd = terms[1];
  for (int i = 2; i < 16; i += 2) {
    even = std::fma(even, z, terms[i]);
    odd = std::fma(odd, z, terms[i + 1]);
  }
  even = std::fma(even, z, terms[16]);
  double y = std::fma(double(exponent), 0.693147180559945309, f * std::fma(odd, f, even));
  if (value == 0) return value;  // the sign of a zero
  constexpr float inf = std::numeric_limits<float>::infinity(),
                  nan = std::numeric_limits<float>::quiet_NaN();
  return value > -1 && value < inf ? float(y) : value == -1 ? -inf : value == inf ? inf : nan;
}

// Computes erfinv in f32 after M. Giles, "Approximating the erfinv function" (2011), with the
// coefficients of XLA. Every step is an f32 fma.
static inline float erfinv(float x) {
  constexpr float central[9] = {2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,
                                -4.39150654e-06f, .00021858087f,   -.00125372503f,
                                -.00417768164f,   .246640727f,     1.50140941f};
  constexpr float tail[9] = {-.000200214257f, .000100950558f, .00134934322f,
                             -.00367342844f,  .00573950773f,  -.0076224613f,
                             .00943887047f,   1.00167406f,    2.83297682f};
  float w = -log1p(-x * x);
  bool near = w < 5;
  w = near ? w - 2.5f : std::sqrt(w) - 3;
  float p = near ? central[0] : tail[0];
  for (int i = 1; i < 9; ++i) p = std::fma(p, w, near ? central[i] : tail[i]);
  return x == 1 || x == -1 ? x * std::numeric_limits<float>::infinity() : p * x;
}

// Computes erfinv in double by Newton's method: on erf in the middle, and on log erfc in the tails.
// In the tails log erfc is close to a parabola, so the iteration converges from any start.
static inline double erfinv(double x) {
  constexpr double slope = 1.12837916709551257390;  // 2 / sqrt(pi)
  double a = std::fabs(x);
  if (!(a < 1))
    return a == 1 ? x * std::numeric_limits<double>::infinity()
                  : std::numeric_limits<double>::quiet_NaN();
  if (a < 0.5) {
    double y = erfinv(float(x));
    for (int i = 0; i < 2; ++i) y -= (std::erf(y) - x) / (slope * std::exp(-y * y));
    return a < 1e-9 ? x / slope : y;
  }
  double target = std::log(1 - a), y = std::sqrt(-target);
  for (int i = 0; i < 7; ++i)
    y += (std::log(std::erfc(y)) - target) * std::erfc(y) / (slope * std::exp(-y * y));
  return std::copysign(y, x);
}

// Returns 1 / (1 + e^-x). Results close to 0 keep full relative precision unless e^-x overflows.
template <class T> static inline T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }

// Computes the derivative of lgamma. Reflects x to x > 0, shifts it to x >= 10 by the recurrence,
// then sums the asymptotic series with coefficients B(2n) / 2n.
static inline double digamma(double x) {
  constexpr double pi = 3.14159265358979323846;
  if (x <= 0 && x == std::floor(x)) return std::numeric_limits<double>::quiet_NaN();
  if (x < 0) return digamma(1 - x) - pi / std::tan(pi * (x - std::rint(x)));
  double shift = 0;
  for (; x < 10; ++x) shift += 1 / x;
  double z = 1 / (x * x);
  constexpr double bernoulli[] = {1.0 / 12,  -691.0 / 32760, 1.0 / 132, -1.0 / 240,
                                  1.0 / 252, -1.0 / 120,     1.0 / 12};
  double series = 0;
  for (double b : bernoulli) series = z * (b + series);
  return std::log(x) - 0.5 / x - series - shift;
}

// ---- arithmetic ----
// T is float, double, or a 32-bit or 64-bit integer. Smaller integers are computed in 32 bits and
// then truncated.
template <class T> static inline T sign(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; }
// If y is NaN, x > y is false and the result is y.
template <class T> static inline T max(T x, T y) { return x != x || x > y ? x : y; }
template <class T> static inline T min(T x, T y) { return x != x || x < y ? x : y; }

template <class T> static inline T negate(T x) {
  if constexpr (std::is_floating_point_v<T>)
    return -x;
  else
    return T(std::make_unsigned_t<T>(0) - std::make_unsigned_t<T>(x));
}
template <class T> static inline T div(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x / y;
  else
    return y == 0 ? T(-1) : std::is_signed_v<T> && y == T(-1) ? negate(x) : T(x / y);
}
template <class T> static inline T rem(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return std::fmod(x, y);
  else
    return y == 0 ? x : std::is_signed_v<T> && y == T(-1) ? T(0) : T(x % y);
}
template <class T> static inline T mod(T x, T y) {
  T r = rem(x, y);
  if constexpr (std::is_floating_point_v<T>)
    if (r == 0) return std::copysign(r, y);
  return r != 0 && y != 0 && (r < 0) != (y < 0) ? T(r + y) : r;
}
template <class T> static inline T floor_div(T x, T y) {
  T r = rem(x, y);
  bool down = r != 0 && y != 0 && (r < 0) != (y < 0);
  // x / 0 is NaN for floats, as in JAX
  if constexpr (std::is_floating_point_v<T>)
    return std::rint((x - r) / y - (down ? 1 : 0));
  else
    return T(div(x, y) - (down ? 1 : 0));
}
// Computes x^n by repeated squaring. x^-n is 1 / x^n truncated to an integer.
template <class T> static inline T power(T x, T n) {
  using U = std::make_unsigned_t<T>;
  if (n < 0) return x == 1 || (x == T(-1) && n % 2 == 0) ? T(1) : x == T(-1) ? T(-1) : T(0);
  U result = 1;
  for (U base = U(x), left = U(n); left; left >>= 1, base *= base)
    if (left & 1) result *= base;
  return T(result);
}
template <class T> static inline T shift_left(T x, T count, int width) {
  return count < 0 || count >= T(width) ? T(0) : T(std::make_unsigned_t<T>(x) << count);
}
template <class T> static inline T shift_right(T x, T count, int width) {
  return count < 0 || count >= T(width) ? (x < 0 ? T(-1) : T(0)) : T(x >> count);
}
template <class I, class F> static inline I saturate(F x) {
  // the largest I, plus 1
  constexpr F end = F(2) * F(I(1) << (std::numeric_limits<I>::digits - 1));
  if (x != x) return 0;
  return x >= end                                ? std::numeric_limits<I>::max()
         : x <= F(std::numeric_limits<I>::min()) ? std::numeric_limits<I>::min()
                                                 : I(x);
}

}  // namespace haliax::scalar
