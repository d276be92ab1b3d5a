// The random numbers of numpy.random.default_rng(seed), bitwise identical, so that losses here and
// in Python libraries have the same data.
#pragma once
#include <cstdint>

namespace bench {

class NumpyRandom {
 public:
  explicit NumpyRandom(std::uint32_t seed);
  float normal();                           // standard_normal(dtype=float32)
  std::int32_t below(std::uint32_t bound);  // integers(0, bound, dtype=int32)

 private:
  void step();
  std::uint64_t next64();
  std::uint32_t next32();
  float uniform() { return float(next32() >> 8) * (1.0f / 16777216.0f); }

  using u128 = unsigned __int128;
  u128 state_ = 0, increment_ = 0;
  bool has_half_ = false;
  std::uint32_t half_ = 0;
};

}  // namespace bench
