// Reductions of parts, in blocks, for each dtype and monoid.
#include "devices/reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/half.h"

namespace haliax {
namespace {

using program::Monoid;

// The stored type of an element, and the type in which it is reduced.
template <class T> struct AsIs {
  using Stored = T;
  using Number = T;
  static T load(T v) { return v; }
  static T store(T v) { return v; }
};
struct Bf16 {
  using Stored = std::uint16_t;
  using Number = float;
  static float load(Stored v) { return from_bf16(v); }
  static Stored store(float v) { return to_bf16(v); }
};
struct F16 {
  using Stored = std::uint16_t;
  using Number = float;
  static float load(Stored v) { return from_f16(v); }
  static Stored store(float v) { return to_f16(v); }
};
// The sum of bools is "any".
struct Bool {
  using Stored = std::uint8_t;
  using Number = std::uint32_t;
  static Number load(Stored v) { return v != 0; }
  static Stored store(Number v) { return v != 0; }
};

template <Monoid M, class T> T folded(T a, T b) {
  if constexpr (M == Monoid::max)
    return a != a || a > b ? a : b;
  else if constexpr (M == Monoid::min)
    return a != a || a < b ? a : b;
  else if constexpr (std::is_floating_point_v<T>)
    return M == Monoid::sum ? a + b : a * b;
  else
    return M == Monoid::sum ? T(std::uint64_t(a) + std::uint64_t(b))
                            : T(std::uint64_t(a) * std::uint64_t(b));
}
// Elements are reduced in blocks that fit in the cache, so that each part is read once. The size of
// a full block is a compile-time constant.
constexpr std::int64_t kBlock = 1024;
template <class F> void each_element(std::int64_t n, F f) {
  if (n == kBlock)
    for (std::int64_t i = 0; i < kBlock; ++i) f(i);
  else
    for (std::int64_t i = 0; i < n; ++i) f(i);
}
template <class As, Monoid M>
void fold_as(const std::vector<const std::byte*>& parts, std::byte* out, std::int64_t n) {
  using Stored = typename As::Stored;
  using Number = typename As::Number;
  constexpr std::int64_t width = sizeof(Stored);
  Number sum[kBlock];
  for (std::int64_t from = 0; from < n; from += kBlock) {
    auto size = std::min(kBlock, n - from);
    for (std::size_t k = 0; k < parts.size(); ++k) {
      auto* part = parts[k] + from * width;
      auto element = [part](std::int64_t i) {
        Stored v;
        std::memcpy(&v, part + i * width, width);
        return As::load(v);
      };
      if (k == 0)
        each_element(size, [&](std::int64_t i) { sum[i] = element(i); });
      else
        each_element(size, [&](std::int64_t i) { sum[i] = folded<M>(sum[i], element(i)); });
    }
    auto* to = out + from * width;
    each_element(size, [&](std::int64_t i) {
      Stored v = As::store(sum[i]);
      std::memcpy(to + i * width, &v, width);
    });
  }
}
template <class As>
void fold_by(Monoid m, const std::vector<const std::byte*>& parts, std::byte* out, std::int64_t n) {
  switch (m) {
    case Monoid::sum:
      return fold_as<As, Monoid::sum>(parts, out, n);
    case Monoid::prod:
      return fold_as<As, Monoid::prod>(parts, out, n);
    case Monoid::max:
      return fold_as<As, Monoid::max>(parts, out, n);
    case Monoid::min:
      return fold_as<As, Monoid::min>(parts, out, n);
  }
}

}  // namespace

void reduce_parts(Monoid m, DType dtype, const std::vector<const std::byte*>& parts, std::byte* out,
                  std::int64_t n) {
  switch (dtype) {
    case DType::boolean:
      return fold_by<Bool>(m, parts, out, n);
    case DType::u8:
      return fold_by<AsIs<std::uint8_t>>(m, parts, out, n);
    case DType::i8:
      return fold_by<AsIs<std::int8_t>>(m, parts, out, n);
    case DType::u16:
      return fold_by<AsIs<std::uint16_t>>(m, parts, out, n);
    case DType::i16:
      return fold_by<AsIs<std::int16_t>>(m, parts, out, n);
    case DType::u32:
      return fold_by<AsIs<std::uint32_t>>(m, parts, out, n);
    case DType::i32:
      return fold_by<AsIs<std::int32_t>>(m, parts, out, n);
    case DType::u64:
      return fold_by<AsIs<std::uint64_t>>(m, parts, out, n);
    case DType::i64:
      return fold_by<AsIs<std::int64_t>>(m, parts, out, n);
    case DType::f16:
      return fold_by<F16>(m, parts, out, n);
    case DType::bf16:
      return fold_by<Bf16>(m, parts, out, n);
    case DType::f32:
      return fold_by<AsIs<float>>(m, parts, out, n);
    case DType::f64:
      return fold_by<AsIs<double>>(m, parts, out, n);
  }
}
void reduce_parts(Monoid m, const Patches& parts, const Patch& out) {
  each_block(out, parts, [&](std::byte* to, const auto& from, std::int64_t n) {
    reduce_parts(m, out.dtype, from, to, n);
  });
}

}  // namespace haliax
