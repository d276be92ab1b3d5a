// One element of any dtype, as a value: how it is read, written, compared and cast. What codes do
// with numbers: arithmetic.h.
#pragma once
#include <cstddef>
#include <cstring>

#include "base/arithmetic.h"
#include "base/half.h"
#include "haliax/dtype.h"

namespace haliax::scalar {

// Floats are in `real` (a double holds each of them exactly), integers and bools in `whole` (a u64
// by its bits).
struct Value {
  double real = 0;
  std::int64_t integer = 0;
};

// is_float and bytes_of, asked for each element: no calls.
static constexpr bool holds_real(DType d) { return d <= DType::f16; }
// as dtype.cpp has them, which compares
static constexpr std::uint8_t kBytes[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
static constexpr int bytes_per(DType d) { return kBytes[int(d)]; }
static constexpr bool is_unsigned(DType d) { return d >= DType::u8; }  // bool too
static inline int width_of(DType d) { return 8 * bytes_per(d); }
static inline Value truth(bool b) { return {0, b}; }

static inline Value real(DType d, double v) {  // rounded to the dtype: bf16 and f16 by way of f32
  switch (d) {
    case DType::f64:
      return {v, 0};
    case DType::bf16:
      return {from_bf16(to_bf16(float(v))), 0};
    case DType::f16:
      return {from_f16(to_f16(float(v))), 0};
    default:
      return {float(v), 0};
  }
}
static inline Value integer(DType d, std::int64_t v) {  // wrapped around at the width of the dtype
  if (d == DType::boolean) return truth(v != 0);
  int unused = 64 - width_of(d);
  auto high = std::uint64_t(v) << unused;
  return {0, is_unsigned(d) ? std::int64_t(high >> unused) : std::int64_t(high) >> unused};
}
static inline Value rounded(DType d, Value v) {
  return holds_real(d) ? real(d, v.real) : integer(d, v.integer);
}

template <class T> static inline T read(const std::byte* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
template <class T> static inline void write(std::byte* p, T x) { std::memcpy(p, &x, sizeof x); }
static inline Value load(DType d, const std::byte* p) {
  switch (d) {
    case DType::f64:
      return {read<double>(p), 0};
    case DType::f32:
      return {read<float>(p), 0};
    case DType::bf16:
      return {from_bf16(read<std::uint16_t>(p)), 0};
    case DType::f16:
      return {from_f16(read<std::uint16_t>(p)), 0};
    default:
      break;
  }
  std::uint64_t bits = 0;
  std::memcpy(&bits, p, std::size_t(bytes_per(d)));  // little-endian, as is all that this runs on
  return integer(d, std::int64_t(bits));
}
static inline void store(DType d, std::byte* p, Value v) {
  switch (d) {
    case DType::f64:
      return write(p, v.real);
    case DType::f32:
      return write(p, float(v.real));
    case DType::bf16:
      return write(p, std::uint16_t(to_bf16(float(v.real))));
    case DType::f16:
      return write(p, std::uint16_t(to_f16(float(v.real))));
    default:
      break;
  }
  const auto bits = std::uint64_t(integer(d, v.integer).integer);
  std::memcpy(p, &bits, std::size_t(bytes_per(d)));
}

static inline bool is_nan(DType d, Value v) { return holds_real(d) && v.real != v.real; }
static inline bool equal(DType d, Value x, Value y) {
  return holds_real(d) ? x.real == y.real : x.integer == y.integer;
}
static inline bool less(DType d, Value x, Value y) {
  if (holds_real(d)) return x.real < y.real;
  return is_unsigned(d) ? std::uint64_t(x.integer) < std::uint64_t(y.integer)
                        : x.integer < y.integer;
}
static inline Value lowest(DType d) {  // -infinity, the least integer, false
  if (holds_real(d)) return {-std::numeric_limits<double>::infinity(), 0};
  return {0, is_unsigned(d) ? 0 : std::int64_t(~std::uint64_t(0) << (width_of(d) - 1))};
}
static inline Value highest(DType d) {
  if (holds_real(d)) return {std::numeric_limits<double>::infinity(), 0};
  return integer(d, is_unsigned(d) ? -1 : ~lowest(d).integer);
}

static inline Value cast(Value v, DType from, DType to) {
  if (holds_real(from) && holds_real(to)) return real(to, v.real);
  if (to == DType::boolean) return truth(!equal(from, v, {}));
  if (!holds_real(from)) {
    if (!holds_real(to)) return integer(to, v.integer);
    bool u64 = from == DType::u64;  // straight to f32: by way of double it would be rounded twice
    if (to == DType::f64) return {u64 ? double(std::uint64_t(v.integer)) : double(v.integer), 0};
    return real(to, u64 ? float(std::uint64_t(v.integer)) : float(v.integer));
  }
  if (to == DType::u64) return {0, std::int64_t(saturate<std::uint64_t>(v.real))};
  // of NaN: 0
  return {0, min(max(saturate<std::int64_t>(v.real), lowest(to).integer), highest(to).integer)};
}

}  // namespace haliax::scalar
