// Subnormal numbers: zeros for kernels of matmuls, as in the bf16 instructions of processors, and
// numbers for other kernels.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

constexpr double tiny = 1e-40;  // a subnormal f32

NamedArray filled(const Axes& axes, double value) {
  std::int64_t count = 1;
  for (auto& a : axes) count *= a.size;
  return array(std::vector<float>(std::size_t(count), float(value)), axes);
}

bool all_are(const NamedArray& x, double value) {
  const auto values = x.doubles();
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == value; });
}

// rows, columns and depth, for each kernel of matmuls
struct Sizes {
  std::int64_t m, n, k;
};
const std::vector<Sizes> all_sizes = {{1, 4, 4},     {4, 4, 4},    {1, 100, 100},
                                      {1, 300, 700}, {64, 70, 80}, {40, 300, 1}};

}  // namespace

TEST_CASE("cpu: elementwise ops, sums and copies compute with subnormals") {
  const double stored = double(float(tiny));
  const Axis X("x", 37);
  const auto x = filled({X}, tiny);
  CHECK(all_are(x, stored));
  CHECK(all_are(x * 1., stored));
  CHECK(all_are(max(x, X), stored));
  CHECK(sum(x, X).item() > 36 * stored);
  // in a loop, after a matmul
  auto f = jit([&](const NamedArray& start, const NamedArray& weights) {
    auto step = [&](const NamedArray& s) {
      return where(dot(s, weights, "x").rename({{"out", "x"}}) > 0., 1., s * 1.);
    };
    return fold(step, Axis("time", 5))(start);
  });
  CHECK(all_are(f(x, filled({X, X.alias("out")}, 1)), stored));
  // in a step that the loop calls, which reads the result of a matmul: the sum of two normal
  // numbers
  const Axis Two("x", 2);
  const auto pair = array(std::vector<float>{2e-38f, -1.95e-38f}, {Two}),
             identity = array(std::vector<float>{1, 0, 0, 1}, {Two, Two.alias("out")});
  auto called = jit([&](const NamedArray& first, const NamedArray& w) {
    auto step = [&](const NamedArray& s) {
      return std::pair(s * 1.5, cumsum(dot(s, w, "x"), "out"));
    };
    return scan(step, Axis("time", 3))(first).second;
  });
  CHECK(min(called(pair, identity)[{"out", 1}]).item() > 4e-40);
}

#if defined(__SSE2__)
TEST_CASE("cpu: matmuls treat subnormals as zeros") {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (auto& size : all_sizes) {
      INFO(int(dtype), " ", size.m, " x ", size.n, " x ", size.k);
      const Axis M("m", size.m), N("n", size.n), K("k", size.k);
      const auto a = filled({M, K}, tiny).astype(dtype).eval(),
                 b = filled({K, N}, 1).astype(dtype).eval();
      CHECK(all_are(dot(a, b, K), 0));
      auto in_loop = jit([&](const NamedArray& x, const NamedArray& y) {
        auto step = [&](const NamedArray& s) { return dot(x + max(s), y, "k"); };
        return fold(step, Axis("time", 3))(zeros({M, N}, dtype));
      });
      CHECK(all_are(in_loop(a, b), 0));
    }
}
#endif
