// One element of any dtype, as a value: load, store, compare and cast. For the arithmetic on values
// see arithmetic.h.
#pragma once
#include <cstddef>
#include <cstring>

#include "base/arithmetic.h"
#include "base/half.h"
#include "haliax/dtype.h"

namespace haliax::scalar {

// The value of one element. Floats are in `real`, as a double represents all of them exactly.
// Integers and bools are in `integer`; a u64 is stored by its bits.
struct Value {
  double real = 0;
  std::int64_t integer = 0;
};

// Inline versions of is_float and bytes_of, which run once per element.
static constexpr bool holds_real(DType d) { return d <= DType::f16; }
// bytes per element; dtype.cpp checks this table against its own
static constexpr std::uint8_t kBytes[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1};
static constexpr int bytes_per(DType d) { return kBytes[int(d)]; }
static constexpr bool is_unsigned(DType d) { return d >= DType::u8; }  // bool too
static inline int width_of(DType d) { return 8 * bytes_per(d); }
static inline Value truth(bool b) { return {0, b}; }

// Rounds a float to the dtype. bf16 and f16 are rounded to f32 first.
static inline Value real(DType d, double v) {
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
// Wraps an integer around at the width of the dtype.
static inline Value integer(DType d, std::int64_t v) {
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
  // little-endian, as are all supported platforms
  std::memcpy(&bits, p, std::size_t(bytes_per(d)));
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
// Returns -infinity, the smallest integer, or false.
static inline Value lowest(DType d) {
  if (holds_real(d)) return {-std::numeric_limits<double>::infinity(), 0};
  return {0, is_unsigned(d) ? 0 : std::int64_t(~std::uint64_t(0) << (width_of(d) - 1))};
}
// Returns infinity, the largest integer, or true.
static inline Value highest(DType d) {
  if (holds_real(d)) return {std::numeric_limits<double>::infinity(), 0};
  return integer(d, is_unsigned(d) ? -1 : ~lowest(d).integer);
}

static inline Value cast(Value v, DType from, DType to) {
  if (holds_real(from) && holds_real(to)) return real(to, v.real);
  if (to == DType::boolean) return truth(!equal(from, v, {}));
  if (!holds_real(from)) {
    if (!holds_real(to)) return integer(to, v.integer);
    // directly to f32, since a conversion through double would round twice
    bool u64 = from == DType::u64;
    if (to == DType::f64) return {u64 ? double(std::uint64_t(v.integer)) : double(v.integer), 0};
    return real(to, u64 ? float(std::uint64_t(v.integer)) : float(v.integer));
  }
  if (to == DType::u64) return {0, std::int64_t(saturate<std::uint64_t>(v.real))};
  // NaN becomes 0
  return {0, min(max(saturate<std::int64_t>(v.real), lowest(to).integer), highest(to).integer)};
}

}  // namespace haliax::scalar
