// Sines, cosines and tangents of the kernels (backends/cuda/device/std.h), simulated: over the full
// range, against the C library in long double.
#include <doctest/doctest.h>

#include <array>
#include <bit>
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

constexpr Code codes[] = {Code::sin, Code::cos, Code::tan};

// Returns sine, cosine and tangent of each x, in T.
template <class T> std::array<std::vector<T>, 3> on_cards(const std::vector<T>& x, DType d) {
  Case c(1);
  const auto n = std::int64_t(x.size());
  auto& f = c.add(Kind::fused).fused;
  f.dims = {n};
  f.outer = 1;
  f.code.push_back(load({c.slot(false, d, n), d, 0, {1}, {}}));
  for (auto code : codes) {
    f.code.push_back(op(code, d, {0}));
    f.code.push_back(store({c.slot(true, d, n), d, 0, {1}, {}}, int(f.code.size()) - 1));
  }
  std::memcpy(c.arguments[0].data(), x.data(), x.size() * sizeof(T));
  const auto got = c.run(*cuda::make_simulated_device());
  std::array<std::vector<T>, 3> out;
  for (std::size_t k = 0; k < 3; ++k) {
    out[k].resize(x.size());
    std::memcpy(out[k].data(), got[k].data(), got[k].size());
  }
  return out;
}
template <class T> std::array<long double, 3> exact(T x) {
  return {std::sin((long double)x), std::cos((long double)x), std::tan((long double)x)};
}
// Returns the error in units of the last digit of the right value.
template <class T> double error(T got, long double right) {
  const auto size = std::fabs(T(right));
  return double(std::fabs((long double)got - right) /
                (std::nextafter(size, std::numeric_limits<T>::infinity()) - size));
}
// Returns some angles of each exponent, neighbors of small and large multiples of pi/2, and angles
// where the methods of range reduction meet.
template <class T> std::vector<T> angles() {
  std::vector<T> out;
  Random random(7);
  constexpr int least = std::numeric_limits<T>::min_exponent,
                most = std::numeric_limits<T>::max_exponent;
  for (int e = least; e < most; ++e)
    for (int k = 0; k < 20; ++k)
      out.push_back(std::ldexp(T(1 + double(random.below(1 << 30)) / (1 << 30)), e - 1) *
                    (k % 2 ? 1 : -1));
  for (int k = 0; k < 4000; ++k) {
    const auto quarter =
        T((k < 1000 ? k : random.below(std::int64_t(1) << 24)) * 1.57079632679489661923L);
    for (auto x : {quarter, std::nextafter(quarter, T(0)), std::nextafter(quarter, T(1e30))})
      out.push_back(x);
  }
  for (T x : {T(1 << 20), std::nextafter(T(1 << 20), T(0)), std::numeric_limits<T>::max(),
              std::numeric_limits<T>::denorm_min()}) {
    out.push_back(x);
    out.push_back(-x);
  }

  return out;
}
template <class T> void compare(DType d, double most_sin, double most_tan) {
  const auto x = angles<T>();
  const auto got = on_cards(x, d);
  double worst[3] = {};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto right = exact(x[i]);
    for (std::size_t k = 0; k < 3; ++k) worst[k] = std::max(worst[k], error(got[k][i], right[k]));
  }
  CHECK(worst[0] < most_sin);
  CHECK(worst[1] < most_sin);
  CHECK(worst[2] < most_tan);
}

}  // namespace

TEST_CASE(
    "cuda: sines, cosines and tangents of all angles "
    "are accurate to the last digit, in f32 and f64") {
  compare<float>(DType::f32, 0.5001, 0.5001);
  compare<double>(DType::f64, 1, 2.5);
}
TEST_CASE("cuda: the double that is nearest to a multiple of pi/2 keeps its digits") {
  const double x = std::ldexp(6381956970095103.0, 797);
  const auto got = on_cards<double>({x}, DType::f64);
  CHECK(got[1][0] == doctest::Approx(-4.68716592425462761112e-19).epsilon(1e-15));
}
TEST_CASE("cuda: sine and tangent keep the sign of zero, and infinite angles yield NaN") {
  const double inf = std::numeric_limits<double>::infinity();
  const auto got = on_cards<double>(
      {0.0, -0.0, inf, -inf, std::numeric_limits<double>::quiet_NaN()}, DType::f64);
  for (std::size_t k : {0, 2}) {
    CHECK(std::bit_cast<std::uint64_t>(got[k][0]) == std::bit_cast<std::uint64_t>(0.0));
    CHECK(std::bit_cast<std::uint64_t>(got[k][1]) == std::bit_cast<std::uint64_t>(-0.0));
  }
  CHECK(got[1][0] == 1);
  CHECK(got[1][1] == 1);
  for (auto& all : got)
    for (std::size_t i = 2; i < 5; ++i) CHECK(std::isnan(all[i]));
}
