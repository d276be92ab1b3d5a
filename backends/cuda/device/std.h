// The subset of the standard library that base/half.h, base/arithmetic.h and kernel.h use. NVRTC
// provides no standard headers. The host's compiler uses this subset too, because its own headers
// would dominate the compile time.
#pragma once

namespace std {

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

template <bool, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
template <bool c, class A, class B> using conditional_t = typename conditional<c, A, B>::type;
template <class A, class B> inline constexpr bool is_same_v = false;
template <class A> inline constexpr bool is_same_v<A, A> = true;
template <class T>
inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T> inline constexpr bool is_signed_v = T(-1) < T(0);
template <class T>
using make_unsigned_t = conditional_t<
    sizeof(T) == 8, uint64_t,
    conditional_t<sizeof(T) == 4, uint32_t, conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

template <class To, class From> inline constexpr To bit_cast(const From& x) {
  return __builtin_bit_cast(To, x);
}
inline constexpr uint32_t rotl(uint32_t x, int by) { return x << by | x >> (32 - by); }

template <class T> struct numeric_limits {  // for integers
  static constexpr int digits = int(8 * sizeof(T)) - is_signed_v<T>;
  static constexpr T max() {
    return T(make_unsigned_t<T>(~make_unsigned_t<T>(0)) >> is_signed_v<T>);
  }
  static constexpr T min() { return T(~max()); }
};
template <> struct numeric_limits<float> {
  static constexpr float infinity() { return bit_cast<float>(0x7f800000u); }
  static constexpr float quiet_NaN() { return bit_cast<float>(0x7fc00000u); }
};
template <> struct numeric_limits<double> {
  static constexpr double infinity() { return bit_cast<double>(0x7ff0000000000000ull); }
  static constexpr double quiet_NaN() { return bit_cast<double>(0x7ff8000000000000ull); }
};

// C functions for both float types: all unary ones except for the trigonometric functions below,
// and some binary ones.
#define HALIAX_OF_ONE(name)                           \
  inline float name(float x) { return ::name##f(x); } \
  inline double name(double x) { return ::name(x); }
#define HALIAX_OF_TWO(name)                                       \
  inline float name(float x, float y) { return ::name##f(x, y); } \
  inline double name(double x, double y) { return ::name(x, y); }
HALIAX_OF_ONE(exp)
HALIAX_OF_ONE(log10)
HALIAX_OF_ONE(logb)
HALIAX_OF_ONE(tgamma)
HALIAX_OF_ONE(nearbyint)
HALIAX_OF_ONE(round)
HALIAX_OF_ONE(exp2)
HALIAX_OF_ONE(expm1)
HALIAX_OF_ONE(log)
HALIAX_OF_ONE(log2)
HALIAX_OF_ONE(log1p)
HALIAX_OF_ONE(sqrt)
HALIAX_OF_ONE(cbrt)
HALIAX_OF_ONE(asin)
HALIAX_OF_ONE(acos)
HALIAX_OF_ONE(atan)
HALIAX_OF_ONE(sinh)
HALIAX_OF_ONE(cosh)
HALIAX_OF_ONE(tanh)
HALIAX_OF_ONE(asinh)
HALIAX_OF_ONE(acosh)
HALIAX_OF_ONE(atanh)
HALIAX_OF_ONE(erf)
HALIAX_OF_ONE(erfc)
HALIAX_OF_ONE(lgamma)
HALIAX_OF_ONE(floor)
HALIAX_OF_ONE(ceil)
HALIAX_OF_ONE(rint)
HALIAX_OF_ONE(trunc)
HALIAX_OF_ONE(fabs)
HALIAX_OF_TWO(fmod)
HALIAX_OF_TWO(pow)
HALIAX_OF_TWO(atan2)
HALIAX_OF_TWO(copysign)
HALIAX_OF_TWO(nextafter)
#undef HALIAX_OF_ONE
#undef HALIAX_OF_TWO
inline float fma(float x, float y, float z) { return ::fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return ::fma(x, y, z); }

// ---- trigonometric functions: unlike CUDA's versions, these need no stack for large angles ----
// 2 / pi after 64 zero bits.
__device__ const uint32_t two_over_pi[39] = {
    0,          0,          0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041,
    0xfe5163ab, 0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e,
    0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b, 0xbdf9283b,
    0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7, 0x4f463f66, 0x9e5fea2d,
    0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1, 0x1f8d5d08, 0x56033046};

// An angle reduced modulo pi/2: high + low in [-pi/4, pi/4], and the number of quarters of a circle
// that were subtracted, modulo 4.
struct Angle {
  double high, low;
  unsigned quarters;
};
// For x from 2^20 on (Payne and Hanek): x is m * 2^e. The bits of 2/pi above 2^(2 - e) would add
// full turns. The next 192 bits, times m, contain the quarters in their first two bits.
inline Angle large_angle(double x) {
  const auto bits = bit_cast<uint64_t>(x);
  const auto m = (bits & 0xfffffffffffff) | 0x10000000000000;
  // position of the first of these bits in the table
  const int place = int(bits >> 52) - 1075 + 62;
  const uint32_t* from = two_over_pi + place / 32;
  uint32_t part[6], before = 0;
  uint64_t carried = 0;
#pragma unroll
  for (int k = 5; k >= 0; --k) {  // last word first; part[0] contains the quarters
    const auto w = uint32_t((uint64_t(from[k]) << 32 | from[k + 1]) << place % 32 >> 32);
    const auto low = (m & 0xffffffff) * w + carried, high = (m >> 32) * before + (low & 0xffffffff);
    part[k] = uint32_t(high), carried = (low >> 32) + (high >> 32), before = w;
  }
  auto quarters = part[0] >> 30;
  auto first = uint64_t(part[0]) << 34 | uint64_t(part[1]) << 2 | part[2] >> 30;
  auto second = uint64_t(part[2]) << 34 | uint64_t(part[3]) << 2 | part[4] >> 30;
  const bool down = first >> 63;  // the next quarter is nearer
  if (down) ++quarters, first = ~first, second = ~second;
  const double most = double(first >> 11 << 11) * 0x1p-64,
               rest = double(first & 0x7ff) * 0x1p-64 + double(second) * 0x1p-128;
  const double high = most + rest, low = rest - (high - most);
  constexpr double half_pi = 1.57079632679489655800, more = 6.12323399573676603587e-17;
  const double r = high * half_pi, error = fma(high, half_pi, -r) + (high * more + low * half_pi);
  return down ? Angle{-r, -error, quarters} : Angle{r, error, quarters};
}
// For x >= 0. pi/2 is split into parts of 33 bits, so that k times a part is exact, contracted or
// not (Cody and Waite; the parts are those of fdlibm).
inline Angle angle(double x) {
  if (x >= 0x1p20) return large_angle(x);
  const double k = rint(x * 0.63661977236758134308), a = x - k * 1.57079632673412561417;
  const double p = k * 6.07710050630396597660e-11, b = a - p, of_b = b - a,
               lost_b = (a - (b - of_b)) - (p + of_b);
  const double q = k * 2.02226624871116645580e-21, c = b - q, of_c = c - b,
               lost_c = (b - (c - of_c)) - (q + of_c);
  const double low = lost_b + lost_c - k * 8.47842766036889956997e-32, high = c + low;
  return {high, low - (high - c), unsigned(k)};
}
// The polynomials are those of fdlibm.
inline double sin_near(double x, double low) {
  const double z = x * x, v = z * x;
  double r = 1.58969099521155010221e-10;
  r = fma(r, z, -2.50507602534068634195e-08), r = fma(r, z, 2.75573137070700676789e-06);
  r = fma(r, z, -1.98412698298579493134e-04), r = fma(r, z, 8.33333333332248946124e-03);
  return x - ((z * (0.5 * low - v * r) - low) - v * -1.66666666666666324348e-01);
}
inline double cos_near(double x, double low) {
  const double z = x * x, h = 0.5 * z, w = 1 - h;
  double r = -1.13596475577881948265e-11;
  r = fma(r, z, 2.08757232129817482790e-09), r = fma(r, z, -2.75573143513906633035e-07);
  r = fma(r, z, 2.48015872894767294178e-05), r = fma(r, z, -1.38888888888741095749e-03);
  r = fma(r, z, 4.16666666666666019037e-02);
  return w + (((1 - w) - h) + (z * (z * r) - x * low));
}
// Returns the sine of the angle plus `later` times pi/2.
inline double sin_of(Angle a, unsigned later) {
  const auto q = a.quarters + later;
  const double s = q & 1 ? cos_near(a.high, a.low) : sin_near(a.high, a.low);
  return q & 2 ? -s : s;
}
inline bool is_angle(double x) { return x - x == 0; }
inline double sin(double x) {
  return is_angle(x) ? copysign(1.0, x) * sin_of(angle(fabs(x)), 0)
                     : numeric_limits<double>::quiet_NaN();
}
inline double cos(double x) {
  return is_angle(x) ? sin_of(angle(fabs(x)), 1) : numeric_limits<double>::quiet_NaN();
}
inline double tan(double x) {
  if (!is_angle(x)) return numeric_limits<double>::quiet_NaN();
  const auto a = angle(fabs(x));
  return copysign(1.0, x) * sin_of(a, 0) / sin_of(a, 1);
}
inline float sin(float x) { return float(sin(double(x))); }
inline float cos(float x) { return float(cos(double(x))); }
inline float tan(float x) { return float(tan(double(x))); }

}  // namespace std
