// exp of the tile kernels (backends/cuda/device/tile.h), simulated with exact powers of 2: the
// error of the remaining computation, against the C library in double.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/programs.h"
#include "support/simulated.h"

using namespace haliax;
using namespace haliax::program;
using namespace haliax::testing;

namespace {

std::vector<float> quick_exp(const std::vector<float>& x) {
  Case c(1);
  const auto n = std::int64_t(x.size());
  auto& f = c.add(Kind::fused).fused;
  f.dims = {n};
  f.outer = 1;
  f.code = {load({c.slot(false, DType::f32, n), DType::f32, 0, {1}, {}}),
            op(Code::exp, DType::f32, {0}),
            store({c.slot(true, DType::f32, n), DType::f32, 0, {1}, {}}, 1)};
  c.arguments[0] = bytes_of_floats(x);
  return floats_of(
      planted(c, [](auto text) { return changed(text, "std::exp(", "quick_exp("); }).first.at(0));
}

}  // namespace

TEST_CASE("cuda: exp in tiles is accurate, and most accurate for large results") {
  std::vector<float> x;
  Random random(3);
  for (int k = 0; k < 200000; ++k)
    x.push_back(float(88 - 175 * double(random.below(1 << 30)) / (1 << 30)));
  for (int k = 0; k < 20000; ++k)
    x.push_back(
        -float(std::ldexp(1. + double(random.below(1 << 20)) / (1 << 20), -int(random.below(24)))));
  const auto got = quick_exp(x);
  double worst = 0, worst_of_weights = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double right = std::exp(double(x[i])), error = std::fabs(got[i] - right);
    worst = std::max(worst, error / right / (0x1p-23 + std::fabs(x[i]) * 0x1p-23));
    if (x[i] <= 0) worst_of_weights = std::max(worst_of_weights, error);
  }
  CHECK(worst < 1);
  CHECK(worst_of_weights < 0x1p-23);  // in a row whose maximum has exp 1
}
TEST_CASE("cuda: exp in tiles is right at the ends of its range") {
  constexpr float inf = std::numeric_limits<float>::infinity(),
                  most = std::numeric_limits<float>::max();
  const auto got = quick_exp({0.f, -0.f, -inf, inf, -most, most, -87.4f, 89.f, std::nanf("")});
  const std::vector<float> right{1, 1, 0, inf, 0, inf, 0, inf};
  for (std::size_t k = 0; k < right.size(); ++k) CHECK(got[k] == right[k]);
  CHECK(std::isnan(got[8]));
}
