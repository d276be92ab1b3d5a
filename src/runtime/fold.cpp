#include "runtime/fold.h"

#include <algorithm>

#include "base/scalar.h"

namespace haliax {
namespace {

using program::Monoid;

template <class T, class Load> void take_in(Monoid m, T* acc, Load load, std::int64_t n) {
  auto each = [&](auto op) { for (std::int64_t i = 0; i < n; ++i) acc[i] = op(acc[i], T(load(i))); };
  switch (m) {
    case Monoid::sum: return each([](T a, T b) { return folded(Monoid::sum, a, b); });
    case Monoid::prod: return each([](T a, T b) { return folded(Monoid::prod, a, b); });
    case Monoid::max: return each([](T a, T b) { return folded(Monoid::max, a, b); });
    case Monoid::min: return each([](T a, T b) { return folded(Monoid::min, a, b); });
  }
}
template <class Stored> auto elements(const std::byte* p) {   // as they are stored
  return [p](std::int64_t i) {
    Stored v;
    std::memcpy(&v, p + i * std::int64_t(sizeof v), sizeof v);
    return v;
  };
}
// In blocks that stay in registers' reach: each part is read once. load(part) gives elements; put(i, value) stores one.
template <class T, class Load, class Put>
void fold_as(Monoid m, const std::vector<const std::byte*>& parts, std::int64_t width, std::int64_t n, Load load, Put put) {
  constexpr std::int64_t block = 1024;
  T acc[block];
  for (std::int64_t from = 0; from < n; from += block) {
    auto size = std::min(block, n - from);
    for (std::size_t k = 0; k < parts.size(); ++k) {
      auto element = load(parts[k] + from * width);
      if (k == 0) for (std::int64_t i = 0; i < size; ++i) acc[i] = T(element(i));
      else take_in(m, acc, element, size);
    }
    for (std::int64_t i = 0; i < size; ++i) put(from + i, acc[i]);
  }
}

}  // namespace

void fold(Monoid m, DType dtype, const std::vector<const std::byte*>& parts, std::byte* out, std::int64_t n) {
  const std::int64_t width = bytes_of(dtype);
  auto put = [&](std::int64_t i, auto v) { std::memcpy(out + i * width, &v, sizeof v); };
  auto as = [&]<class Stored>(Stored) {
    fold_as<Stored>(m, parts, width, n, elements<Stored>, put);
  };
  auto narrow = [&](auto wide, auto stored) {
    fold_as<float>(m, parts, width, n, [&](const std::byte* p) {
      return [&, e = elements<std::uint16_t>(p)](std::int64_t i) { return wide(e(i)); };
    }, [&](std::int64_t i, float v) { put(i, stored(v)); });
  };
  switch (dtype) {
    case DType::f32: return as(float());
    case DType::f64: return as(double());
    case DType::u64: return as(std::uint64_t());   // more than i64 holds
    case DType::bf16: return narrow([](std::uint16_t v) { return from_bf16(v); }, [](float v) { return to_bf16(v); });
    case DType::f16: return narrow([](std::uint16_t v) { return from_f16(v); }, [](float v) { return to_f16(v); });
    default:
      fold_as<std::int64_t>(m, parts, width, n, [&](const std::byte* p) {
        return [&, p](std::int64_t i) { return scalar::load(dtype, p + i * width).whole; };
      }, [&](std::int64_t i, std::int64_t v) { scalar::store(dtype, out + i * width, {0, v}); });
  }
}

}  // namespace haliax
