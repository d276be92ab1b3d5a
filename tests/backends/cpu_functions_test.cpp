// The f32 functions of all instruction sets of this machine match f64 over the range of f32.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/kernels.h"
#include "base/scalar.h"

namespace {

using namespace haliax;
using program::Code;
using Floats = std::vector<float>;

constexpr float inf = std::numeric_limits<float>::infinity();

// Returns the distance of a result from the exact value, in units of the last place of f32.
double ulps(float got, double exact) {
  const float nearest = float(exact);
  if (exact != exact || got != got) return exact != exact && got != got ? 0 : inf;
  if (got == nearest)
    return std::signbit(got) == std::signbit(nearest) ? std::abs(got - exact) > 0 ? 0.5 : 0 : inf;
  if (std::isinf(got) || std::isinf(nearest)) {
    const float finite = std::isinf(got) ? nearest : got;
    const bool same_sign = std::signbit(got) == std::signbit(nearest);
    return same_sign && std::abs(finite) == std::numeric_limits<float>::max() ? 1 : inf;
  }
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(got - exact) / std::ldexp(1.0, std::max(exponent, -125) - 24);
}

Floats specials() {
  return {0.f,        -0.f,       inf,        -inf,     std::nanf(""), 1.f,        -1.f,
          0.5f,       -0.5f,      2.f,        -2.f,     3.f,           -3.f,       1e-45f,
          -1e-45f,    1.17e-38f,  3.4e38f,    -3.4e38f, 0.99999994f,   1.0000001f, -0.99999994f,
          127.f,      128.f,      -149.f,     -150.f,   88.72284f,     -87.33655f, -103.97f,
          16777216.f, 33554432.f, 33554430.f, 1e10f,    2.5f,          -1.5f};
}
// Special values, values around multiples of pi/2, and samples of all bit patterns.
Floats arguments() {
  Floats x = specials();
  std::mt19937 bits(1);
  for (int i = 0; i < 4000; ++i) {
    const auto multiple = i < 1000 ? i : bits() >> (i % 32);
    const float near = float(multiple * std::numbers::pi / 2);
    for (float v : {near, std::nextafter(near, 0.f), std::nextafter(near, inf)}) {
      x.push_back(v);
      x.push_back(-v);
    }
  }
  for (std::uint64_t b = 0; b < std::uint64_t(1) << 32; b += 16411)
    x.push_back(std::bit_cast<float>(std::uint32_t(b)));
  return x;
}

// Calls f with the kernels of each instruction set.
template <class F> void each_isa(const F& f) {
  for (const char* isa : {"baseline", "avx2", "avx512"})
    if (auto* kernels = cpu::kernels_of(isa)) {
      CAPTURE(std::string(isa));
      f(*kernels);
    }
}
Floats apply(const cpu::Kernels& kernels, Code code, const Floats& x) {
  Floats out = x;  // the result may replace an operand
  const void* in[] = {out.data()};
  kernels.map(code, cpu::LaneType::f32, cpu::Shape::vector_vector)(out.data(), in,
                                                                   std::int64_t(x.size()));
  return out;
}
Floats apply(const cpu::Kernels& kernels, Code code, const Floats& x, const Floats& y) {
  Floats out(x.size());
  const void* in[] = {x.data(), y.data()};
  kernels.map(code, cpu::LaneType::f32, cpu::Shape::vector_vector)(out.data(), in,
                                                                   std::int64_t(x.size()));
  return out;
}
double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}
double exact_pow(double x, double y) { return std::pow(x, y); }
double exact_atan2(double y, double x) { return std::atan2(y, x); }

struct Unary {
  Code code;
  double (*exact)(double);
  double limit;  // in ulp
};
const Unary unary[] = {
    {Code::exp, std::exp, 2},           {Code::exp2, std::exp2, 2},   {Code::expm1, std::expm1, 2},
    {Code::log, std::log, 2},           {Code::log2, std::log2, 2},   {Code::log1p, std::log1p, 1},
    {Code::cbrt, std::cbrt, 2},         {Code::sin, std::sin, 2},     {Code::cos, std::cos, 2},
    {Code::tan, std::tan, 2},           {Code::asin, std::asin, 2},   {Code::acos, std::acos, 2},
    {Code::atan, std::atan, 2},         {Code::sinh, std::sinh, 2},   {Code::cosh, std::cosh, 2},
    {Code::tanh, std::tanh, 2.5},       {Code::asinh, std::asinh, 2}, {Code::acosh, std::acosh, 2},
    {Code::atanh, std::atanh, 2},       {Code::erf, std::erf, 2},     {Code::lgamma, log_gamma, 4},
    {Code::digamma, scalar::digamma, 4}};

TEST_CASE("cpu: f32 functions of one value are within their limits of f64 over the full range") {
  const Floats x = arguments();
  each_isa([&](const cpu::Kernels& kernels) {
    for (auto& f : unary) {
      const Floats got = apply(kernels, f.code, x);
      double worst = 0;
      float at = 0;
      for (std::size_t i = 0; i < x.size(); ++i)
        if (const double e = ulps(got[i], f.exact(x[i])); e > worst) {
          worst = e;
          at = x[i];
        }
      INFO(std::string(program::code_names[int(f.code)]), " of ", at);
      CHECK(worst <= f.limit);
    }
  });
}

// Pairs of special values, and random ones.
std::pair<Floats, Floats> pairs() {
  std::pair<Floats, Floats> p;
  for (float x : specials())
    for (float y : specials()) {
      p.first.push_back(x);
      p.second.push_back(y);
    }
  std::mt19937 bits(2);
  std::uniform_real_distribution<float> base(0, 4), exponent(-60, 60);
  for (int i = 0; i < 100000; ++i) {
    const bool random_bits = i % 2 == 0;
    p.first.push_back(random_bits ? std::bit_cast<float>(std::uint32_t(bits())) : base(bits));
    p.second.push_back(random_bits ? std::bit_cast<float>(std::uint32_t(bits())) : exponent(bits));
  }
  return p;
}

TEST_CASE("cpu: pow and atan2 of f32 are within their limits of f64 over the full range") {
  const auto [x, y] = pairs();
  each_isa([&, &x = x, &y = y](const cpu::Kernels& kernels) {
    for (Code code : {Code::pow, Code::atan2}) {
      const Floats got = apply(kernels, code, x, y);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double exact = (code == Code::pow ? exact_pow : exact_atan2)(x[i], y[i]);
        const double e = ulps(got[i], exact), limit = code == Code::pow ? 4 : 2;
        if (e > limit)
          FAIL_CHECK(std::string(program::code_names[int(code)]), " of ", x[i], " and ", y[i], ": ",
                     got[i]);
      }
    }
  });
}

bool same_bits(float a, float b) {
  return (a != a && b != b) || std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

TEST_CASE("cpu: remainders of f32 are bitwise identical to the scalar ones") {
  auto [x, y] = pairs();
  for (int a = -100; a <= 100; ++a)  // exact quotients
    for (int b = -20; b <= 20; ++b) {
      x.push_back(float(a));
      y.push_back(float(b));
    }
  each_isa([&, &x = x, &y = y](const cpu::Kernels& kernels) {
    const Floats rem = apply(kernels, Code::rem, x, y), mod = apply(kernels, Code::mod, x, y),
                 div = apply(kernels, Code::floor_div, x, y);
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      wrong += !same_bits(rem[i], scalar::rem(x[i], y[i])) +
               !same_bits(mod[i], scalar::mod(x[i], y[i])) +
               !same_bits(div[i], scalar::floor_div(x[i], y[i]));
    CHECK(wrong == 0);
  });
}

TEST_CASE("cpu: the functions of random numbers are bitwise identical to the scalar ones") {
  const Floats x = arguments();
  each_isa([&](const cpu::Kernels& kernels) {
    const Floats log1p = apply(kernels, Code::log1p, x), erfinv = apply(kernels, Code::erfinv, x);
    int wrong = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      wrong +=
          !same_bits(log1p[i], scalar::log1p(x[i])) + !same_bits(erfinv[i], scalar::erfinv(x[i]));
    CHECK(wrong == 0);
  });
}

TEST_CASE("cpu: remainders of i32 are the scalar ones, for all signs, zeros and extremes") {
  using Ints = std::vector<std::int32_t>;
  Ints a, b;
  const std::int32_t least = INT32_MIN, most = INT32_MAX;
  const Ints special{0, 1, -1, 2, -2, 3, -3, 46341, -46341, least, least + 1, most, most - 1};
  for (auto x : special)
    for (auto y : special) a.push_back(x), b.push_back(y);
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    a.push_back(std::int32_t(random()));
    b.push_back(std::int32_t(random()) >> (random() % 32));
    if (i % 2 && b.back() != 0)  // close to an exact quotient
      a.back() = std::int32_t(std::int64_t(a.back()) / b.back() * b.back() + (i % 3 - 1));
  }
  each_isa([&](const cpu::Kernels& kernels) {
    for (Code code : {Code::rem, Code::mod, Code::floor_div}) {
      Ints got(a.size());
      const void* in[] = {a.data(), b.data()};
      kernels.map(code, cpu::LaneType::i32, cpu::Shape::vector_vector)(got.data(), in,
                                                                       std::int64_t(a.size()));
      int wrong = 0;
      for (std::size_t i = 0; i < a.size(); ++i)
        wrong += got[i] != (code == Code::rem   ? scalar::rem(a[i], b[i])
                            : code == Code::mod ? scalar::mod(a[i], b[i])
                                                : scalar::floor_div(a[i], b[i]));
      CHECK(wrong == 0);
    }
  });
}

template <class T> void check_neighbors(const cpu::Kernels& kernels, cpu::LaneType lane) {
  const auto [x, y] = pairs();
  std::vector<T> a(x.begin(), x.end()), b(y.begin(), y.end());
  using Limits = std::numeric_limits<T>;
  for (T v : {T(0), T(-0.), Limits::denorm_min(), Limits::min(), Limits::max(), Limits::infinity()})
    for (T w : {v, -v, T(0), T(-0.), T(1), -Limits::infinity(), Limits::quiet_NaN()}) {
      a.insert(a.end(), {v, -v, w});
      b.insert(b.end(), {w, w, v});
    }
  std::vector<T> got(a.size());
  const void* in[] = {a.data(), b.data()};
  kernels.map(Code::nextafter, lane, cpu::Shape::vector_vector)(got.data(), in,
                                                                std::int64_t(a.size()));
  int wrong = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const T expected = std::nextafter(a[i], b[i]);
    wrong += !(got[i] == expected || (got[i] != got[i] && expected != expected)) ||
             (got[i] == got[i] && std::signbit(got[i]) != std::signbit(expected));
  }
  CHECK(wrong == 0);
}

TEST_CASE("cpu: nextafter returns the neighbor, also of zeros, subnormals and infinities") {
  each_isa([&](const cpu::Kernels& kernels) {
    check_neighbors<float>(kernels, cpu::LaneType::f32);
    check_neighbors<double>(kernels, cpu::LaneType::f64);
  });
}

}  // namespace
