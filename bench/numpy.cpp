// Implements NumPy's SeedSequence, PCG64 and ziggurat sampling of normal numbers.
#include "numpy.h"

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

namespace bench {
namespace {

// SeedSequence (M. O'Neill, "Developing a seed_seq alternative", 2015): hashes the seed into a pool
// of four words, and generates the state from the pool.
std::array<std::uint32_t, 8> seed_state(std::uint32_t seed) {
  std::uint32_t hash = 0x43b0d7e5;
  auto hashed = [&](std::uint32_t v) {
    v ^= hash;
    hash *= 0x931e8875;
    v *= hash;
    return v ^ v >> 16;
  };
  auto mixed = [](std::uint32_t x, std::uint32_t y) {
    std::uint32_t r = 0xca01f9dd * x - 0x4973f715 * y;
    return r ^ r >> 16;
  };
  std::array<std::uint32_t, 4> pool;
  for (auto& word : pool) word = hashed(&word == &pool[0] ? seed : 0);
  for (auto& from : pool)
    for (auto& to : pool)
      if (&from != &to) to = mixed(to, hashed(from));
  std::array<std::uint32_t, 8> out;
  hash = 0x8b51f9dd;
  for (std::size_t i = 0; i < out.size(); ++i) {
    auto v = pool[i % 4] ^ hash;
    hash *= 0x58f38ded;
    v *= hash;
    out[i] = v ^ v >> 16;
  }
  return out;
}

// The ziggurat of 256 strips of equal area under exp(-x^2 / 2) (Marsaglia and Tsang, 2000). The
// tail starts at `r`.
struct Ziggurat {
  static constexpr double r = 3.6541528853610087963519472518;
  std::uint32_t k[256];
  float w[256], f[256];
  Ziggurat() {
    constexpr double scale = 1 << 23;
    auto density = [](double x) { return std::exp(-0.5 * x * x); };
    const double area =
        r * density(r) + std::sqrt(std::numbers::pi / 2) * std::erfc(r / std::numbers::sqrt2);
    const double q = area / density(r);
    double x = r, last = r;
    k[0] = std::uint32_t(std::round(r / q * scale));
    k[1] = 0;
    w[0] = float(q / scale);
    w[255] = float(r / scale);
    f[0] = 1;
    f[255] = float(density(r));
    for (int i = 254; i >= 1; --i) {
      x = std::sqrt(-2 * std::log(area / x + density(x)));
      k[i + 1] = std::uint32_t(std::round(x / last * scale));
      last = x;
      f[i] = float(density(x));
      w[i] = float(x / scale);
    }
  }
};

}  // namespace

// PCG64: 128 bits of state, and 64 bits of output by xor-shift and rotation.
NumpyRandom::NumpyRandom(std::uint32_t seed) {
  auto s = seed_state(seed);
  auto word = [&](int i) {
    return u128(s[std::size_t(2 * i)]) | u128(s[std::size_t(2 * i + 1)]) << 32;
  };
  increment_ = (word(2) << 64 | word(3)) << 1 | 1;
  step();
  state_ += word(0) << 64 | word(1);
  step();
}
void NumpyRandom::step() {
  constexpr u128 multiplier = u128(2549297995355413924ull) << 64 | 4865540595714422341ull;
  state_ = state_ * multiplier + increment_;
}
std::uint64_t NumpyRandom::next64() {
  step();
  return std::rotr(std::uint64_t(state_ >> 64) ^ std::uint64_t(state_), int(state_ >> 122));
}
std::uint32_t NumpyRandom::next32() {  // the low half first
  if (has_half_) {
    has_half_ = false;
    return half_;
  }
  auto v = next64();
  has_half_ = true;
  half_ = std::uint32_t(v >> 32);
  return std::uint32_t(v);
}

float NumpyRandom::normal() {
  static const Ziggurat z;
  constexpr float r = float(Ziggurat::r), inverse = float(1 / Ziggurat::r);
  for (;;) {
    auto bits = next32();
    auto strip = bits & 255, size = bits >> 9;
    float x = float(size) * z.w[strip];
    if (bits >> 8 & 1) x = -x;
    if (size < z.k[strip]) return x;
    if (strip == 0) {
      for (;;) {
        float far = -inverse * std::log1p(-uniform()), height = -std::log1p(-uniform());
        if (height + height > far * far) return size >> 8 & 1 ? -(r + far) : r + far;
      }
    }
    if ((z.f[strip - 1] - z.f[strip]) * uniform() + z.f[strip] < std::exp(-0.5 * x * x)) return x;
  }
}

// Lemire's multiplication, without bias.
std::int32_t NumpyRandom::below(std::uint32_t bound) {
  auto m = std::uint64_t(next32()) * bound;
  if (std::uint32_t(m) < bound)
    for (auto threshold = -bound % bound; std::uint32_t(m) < threshold;)
      m = std::uint64_t(next32()) * bound;
  return std::int32_t(m >> 32);
}

}  // namespace bench
