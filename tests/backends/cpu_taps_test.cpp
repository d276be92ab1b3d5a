// Matmul kernels of the CPU backend that sum several taps, compared with sums in f64.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "backends/cpu/kernels.h"

using namespace haliax;
using cpu::Matmul;
using cpu::MatmulTap;

namespace {

// Small integers: exact in bf16, and so are their sums in f32.
class Numbers {
 public:
  explicit Numbers(unsigned seed) : random_(seed) {}
  std::int64_t below(std::int64_t n) { return std::int64_t(random_() % std::uint64_t(n)); }
  std::vector<float> array(std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (auto& x : out) x = float(below(7) - 3);
    return out;
  }

 private:
  std::mt19937 random_;
};
std::vector<std::uint16_t> as_bf16(const std::vector<float>& x) {
  std::vector<std::uint16_t> out;
  for (float v : x) {
    std::uint32_t bits;
    std::memcpy(&bits, &v, sizeof bits);
    out.push_back(std::uint16_t(bits >> 16));
  }
  return out;
}
struct Layout {
  bool a_by_rows, near;
  std::int64_t b_n;  // distance of columns of b
};

// Returns the largest difference of the kernel from the sums, which are exact.
double worst_difference(DType type, const Layout& layout, std::int64_t taps, bool accumulate,
                        bool has_mask, unsigned seed) {
  Numbers numbers(seed);
  Matmul p{};
  p.m = 8 + numbers.below(60);
  p.n = 16 + numbers.below(130);
  p.k = 8 + numbers.below(seed % 4 == 0 && taps < 10 ? 600 : 60);
  p.type = type;
  p.b_n = layout.b_n;
  p.b_k = p.n * layout.b_n + 30 * taps;
  p.a_m = layout.a_by_rows ? p.k : taps;
  p.a_k = layout.a_by_rows ? 1 : p.m * taps;
  p.c_m = p.n + 3;
  p.out = DType::f32;
  p.accumulate = accumulate;
  std::vector<MatmulTap> all;
  for (std::int64_t t = 0; t < taps; ++t)
    all.push_back({layout.a_by_rows ? t * p.m * p.k : t,
                   layout.near ? numbers.below(p.n / 4) : t * p.b_k * p.k});
  // blocks of 32 rows and columns, all of which are computed
  const std::vector<unsigned char> flags(64, 1);
  if (has_mask) {
    p.block_mask.flags = flags.data();
    p.block_mask.m.shift = p.block_mask.n.shift = 5;
    p.block_mask.m.stride = 8;
    p.block_mask.n.stride = 1;
  }
  p.taps = all.data();
  p.tap_count = taps;
  const auto a = numbers.array(p.m * p.k * taps), b = numbers.array((taps + 1) * p.b_k * p.k);
  auto c = numbers.array(p.m * p.c_m);
  auto expected = c;
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      double sum = accumulate ? c[std::size_t(i * p.c_m + j)] : 0;
      for (auto& tap : all)
        for (std::int64_t k = 0; k < p.k; ++k)
          sum += double(a[std::size_t(tap.a + i * p.a_m + k * p.a_k)]) *
                 b[std::size_t(tap.b + k * p.b_k + j * p.b_n)];
      expected[std::size_t(i * p.c_m + j)] = float(sum);
    }
  const auto a16 = as_bf16(a), b16 = as_bf16(b);
  p.a = type == DType::f32 ? static_cast<const void*>(a.data()) : a16.data();
  p.b = type == DType::f32 ? static_cast<const void*>(b.data()) : b16.data();
  p.c = c.data();
  const auto* kernel = cpu::vector_kernel(type);
  const auto bytes = std::size_t(kernel->scratch_bytes(p) + 63) / 64 * 64;
  void* scratch = std::aligned_alloc(64, std::max<std::size_t>(bytes, 64));
  std::memset(scratch, 0xff, bytes);  // NaN
  kernel->run(p, scratch);
  std::free(scratch);
  double worst = 0;
  for (std::size_t i = 0; i < c.size(); ++i) {
    const double difference = std::abs(double(c[i]) - expected[i]);
    worst = difference <= worst ? worst : difference;  // NaN counts
  }
  return worst;
}

}  // namespace

TEST_CASE("cpu: a matmul of several taps sums all of them") {
  for (DType type : {DType::f32, DType::bf16}) {
    const auto* kernel = cpu::vector_kernel(type);
    if (!kernel) continue;  // the baseline instruction set
    for (bool a_by_rows : {true, false})
      for (bool near : {true, false})
        for (std::int64_t b_n : {1, 2, 3, 4, 5})
          for (std::int64_t taps : {1, 2, 3, 9, 70})
            for (bool accumulate : {false, true}) {
              const bool has_mask = (taps + b_n) % 3 == 0;
              const auto seed = unsigned(taps * 10 + b_n);
              INFO(std::string(name_of(type)), " a by rows ", a_by_rows, " near ", near,
                   " columns ", b_n, " taps ", taps, " accumulate ", accumulate);
              CHECK(worst_difference(type, {a_by_rows, near, b_n}, taps, accumulate, has_mask,
                                     seed) == 0);
            }
  }
}

TEST_CASE("cpu: the bits of a matmul of several taps do not depend on its blocks") {
  for (DType type : {DType::f32, DType::bf16}) {
    const auto* kernel = cpu::vector_kernel(type);
    if (!kernel) continue;  // the baseline instruction set
    for (std::int64_t n : {63, 168, 784})
      for (std::int64_t taps : {2, 9})
        for (std::int64_t block : {16, 32, 48, 64}) {
          std::mt19937 random(1);
          std::normal_distribution<float> normal;
          const std::int64_t m = 20, k = 100, b_k = n + 40;
          std::vector<float> a(std::size_t(m * k * taps)), b(std::size_t(k * b_k + 100));
          for (auto* array : {&a, &b})
            for (auto& x : *array) x = normal(random);
          const auto a16 = as_bf16(a), b16 = as_bf16(b);
          std::vector<MatmulTap> all;
          for (std::int64_t t = 0; t < taps; ++t) all.push_back({t * m * k, t / 3 * 30 + t % 3});
          const bool is_f32 = type == DType::f32;
          auto run = [&](std::vector<float>& c, std::int64_t first, std::int64_t columns) {
            const auto at = is_f32 ? reinterpret_cast<const std::byte*>(b.data() + first)
                                   : reinterpret_cast<const std::byte*>(b16.data() + first);
            Matmul p{};
            p.m = m;
            p.n = columns;
            p.k = k;
            p.type = type;
            p.a = is_f32 ? static_cast<const void*>(a.data()) : a16.data();
            p.a_m = k;
            p.a_k = 1;
            p.b = at;
            p.b_k = b_k;
            p.b_n = 1;
            p.c = c.data() + first;
            p.c_m = n;
            p.out = DType::f32;
            p.taps = all.data();
            p.tap_count = taps;
            p.all_n = n;
            const auto bytes = std::size_t(kernel->scratch_bytes(p) + 63) / 64 * 64;
            void* scratch = std::aligned_alloc(64, std::max<std::size_t>(bytes, 64));
            kernel->run(p, scratch);
            std::free(scratch);
          };
          std::vector<float> unsplit(std::size_t(m * n)), parts(std::size_t(m * n));
          run(unsplit, 0, n);
          for (std::int64_t j = 0; j < n; j += block) run(parts, j, std::min(block, n - j));
          INFO(std::string(name_of(type)), " columns ", n, " taps ", taps, " block ", block);
          CHECK(std::memcmp(unsplit.data(), parts.data(), unsplit.size() * sizeof(float)) == 0);
        }
  }
}
