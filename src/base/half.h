// Conversions between f32 and the 16-bit floats f16 and bf16, rounded to nearest even.
//
// The functions here and in scalar.h have internal linkage. The header is compiled for several
// instruction sets, and the linker must not merge their copies.
#pragma once
#include <bit>
#include <cstdint>

namespace haliax {

static inline float from_bf16(std::uint16_t h) {
  return std::bit_cast<float>(std::uint32_t(h) << 16);
}

static inline std::uint16_t to_bf16(float f) {
  auto x = std::bit_cast<std::uint32_t>(f);
  std::uint32_t rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16;
  std::uint32_t nan = x >> 16 | 0x40;  // a NaN becomes quiet instead of being rounded
  return std::uint16_t((x & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

static inline float from_f16(std::uint16_t h) {
  std::uint32_t sign = std::uint32_t(h & 0x8000) << 16, magnitude = std::uint32_t(h & 0x7fff) << 13;
  constexpr std::uint32_t bias = std::uint32_t(127 - 15) << 23;
  float subnormal = float(h & 0x3ff) * 0x1p-24f;
  // infinity and NaN need the bias twice
  std::uint32_t normal = magnitude + bias + (magnitude >= 0x0f800000 ? bias : 0);
  return std::bit_cast<float>(
      sign | (magnitude < 0x00800000 ? std::bit_cast<std::uint32_t>(subnormal) : normal));
}

static inline std::uint16_t to_f16(float f) {
  auto x = std::bit_cast<std::uint32_t>(f);
  std::uint32_t sign = x >> 16 & 0x8000, magnitude = x & 0x7fffffff;
  std::uint32_t normal =
      (magnitude - (std::uint32_t(127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // The last bit of 0.5f has the value of the smallest f16, so adding 0.5f rounds to it.
  std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  std::uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
  return std::uint16_t(sign | (magnitude > 0x7f800000    ? nan
                               : magnitude >= 0x47800000 ? 0x7c00  // 2^16 and more
                               : magnitude < 0x38800000  ? subnormal
                                                         : normal));
}

}  // namespace haliax
