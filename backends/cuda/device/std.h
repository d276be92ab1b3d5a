// What kernels have of the standard library: just what base/half.h, base/arithmetic.h and kernel.h use. They are compiled by
// NVRTC, which brings none, and by the host's compiler without its own headers, which would cost most of the time.
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

template <bool, class A, class B>
struct conditional {
  using type = A;
};
template <class A, class B>
struct conditional<false, A, B> {
  using type = B;
};
template <bool c, class A, class B>
using conditional_t = typename conditional<c, A, B>::type;
template <class A, class B>
inline constexpr bool is_same_v = false;
template <class A>
inline constexpr bool is_same_v<A, A> = true;
template <class T>
inline constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <class T>
inline constexpr bool is_signed_v = T(-1) < T(0);
template <class T>
using make_unsigned_t = conditional_t<sizeof(T) == 8, uint64_t,
                                      conditional_t<sizeof(T) == 4, uint32_t, conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>>;

template <class To, class From>
inline constexpr To bit_cast(const From& x) {
  return __builtin_bit_cast(To, x);
}
inline constexpr uint32_t rotl(uint32_t x, int by) { return x << by | x >> (32 - by); }

template <class T>
struct numeric_limits {  // of an integer
  static constexpr int digits = int(8 * sizeof(T)) - is_signed_v<T>;
  static constexpr T max() { return T(make_unsigned_t<T>(~make_unsigned_t<T>(0)) >> is_signed_v<T>); }
  static constexpr T min() { return T(~max()); }
};
template <>
struct numeric_limits<float> {
  static constexpr float infinity() { return bit_cast<float>(0x7f800000u); }
  static constexpr float quiet_NaN() { return bit_cast<float>(0x7fc00000u); }
};
template <>
struct numeric_limits<double> {
  static constexpr double infinity() { return bit_cast<double>(0x7ff0000000000000ull); }
  static constexpr double quiet_NaN() { return bit_cast<double>(0x7ff8000000000000ull); }
};

// Functions of C, for both floats.
#define HALIAX_OF_ONE(name)                           \
  inline float name(float x) { return ::name##f(x); } \
  inline double name(double x) { return ::name(x); }
#define HALIAX_OF_TWO(name)                                       \
  inline float name(float x, float y) { return ::name##f(x, y); } \
  inline double name(double x, double y) { return ::name(x, y); }
HALIAX_OF_ONE(exp)
HALIAX_OF_ONE(exp2) HALIAX_OF_ONE(expm1) HALIAX_OF_ONE(log) HALIAX_OF_ONE(log2) HALIAX_OF_ONE(log1p) HALIAX_OF_ONE(sqrt)
    HALIAX_OF_ONE(cbrt) HALIAX_OF_ONE(sin) HALIAX_OF_ONE(cos) HALIAX_OF_ONE(tan) HALIAX_OF_ONE(asin) HALIAX_OF_ONE(acos)
        HALIAX_OF_ONE(atan) HALIAX_OF_ONE(sinh) HALIAX_OF_ONE(cosh) HALIAX_OF_ONE(tanh) HALIAX_OF_ONE(asinh) HALIAX_OF_ONE(acosh)
            HALIAX_OF_ONE(atanh) HALIAX_OF_ONE(erf) HALIAX_OF_ONE(erfc) HALIAX_OF_ONE(lgamma) HALIAX_OF_ONE(floor)
                HALIAX_OF_ONE(ceil) HALIAX_OF_ONE(rint) HALIAX_OF_ONE(trunc) HALIAX_OF_ONE(fabs) HALIAX_OF_TWO(fmod)
                    HALIAX_OF_TWO(pow) HALIAX_OF_TWO(atan2) HALIAX_OF_TWO(copysign) HALIAX_OF_TWO(nextafter)
#undef HALIAX_OF_ONE
#undef HALIAX_OF_TWO
                        inline float fma(float x, float y, float z) {
  return ::fmaf(x, y, z);
}
inline double fma(double x, double y, double z) { return ::fma(x, y, z); }

}  // namespace std
