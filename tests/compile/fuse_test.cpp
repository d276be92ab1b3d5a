// Fusion of nodes into kernels: random programs match the reference, which runs node by node.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "compile/pipeline.h"
#include "haliax/haliax.h"
#include "program/views.h"

using namespace haliax;

namespace {

// Some outputs of a random program over (n, m), (n) and (n, m), where n and m have one size.
class Drawn {
 public:
  explicit Drawn(unsigned seed) : random_(seed), N("n", 3 + below(5)), M("m", N.size) {
    int k = 0;
    for (auto& axes : {Axes{N, M}, Axes{N}, Axes{N, M}})
      inputs.push_back(random::normal(random::key(7 * seed + k++), axes).eval());
  }
  // Deterministic: each call builds the same program.
  std::vector<NamedArray> operator()(const std::vector<NamedArray>& in) const {
    Drawn d = *this;
    auto values = in;
    for (int steps = 4 + d.below(22); steps > 0; --steps) {
      auto &a = values[std::size_t(d.below(int(values.size())))],
           &b = values[std::size_t(d.below(int(values.size())))];
      values.push_back(d.made(a, b));
    }
    std::vector<NamedArray> out;
    for (int n = 1 + d.below(4); n > 0; --n)
      out.push_back(values[values.size() - 1 - std::size_t(d.below(6))]);
    return out;
  }
  std::vector<NamedArray> inputs;

 private:
  int below(int n) { return int(random_() % unsigned(n)); }
  static bool has(const NamedArray& x, const Axis& a) { return x.has_axis(a); }
  NamedArray made(const NamedArray& a, const NamedArray& b) {
    const bool fits = has(a, N) == has(b, N) || a.axes().empty() || b.axes().empty() ||
                      a.axes().size() + b.axes().size() == 3;
    switch (below(14)) {
      case 0:
        return fits ? a + b : a;
      case 1:
        return a * 0.5f;
      case 2:
        return fits ? a - b : a;
      case 3:
        return fits ? maximum(a, b) : a;
      case 4:
        return sin(a);
      case 5:
        return sqrt(abs(a) + 1.f);
      case 6:
        return a.axes().empty() ? a + 1.f
                                : sum(a, a.axes()[std::size_t(below(int(a.axes().size())))]) * 0.3f;
      case 7:
        return has(a, N) ? a[{"n", below(int(N.size))}] : exp(-abs(a));
      case 8:
        return a.axes().size() == 2 ? rename(a, {{"n", "m"}, {"m", "n"}}) : a * a;
      case 9:
        return has(a, M) ? roll(a, 1, "m") : tanh(a);
      case 10:
        return fits ? where(a > 0.f, b, a) : a;
      case 11:
        return has(a, N) ? cumsum(a, "n") * 0.2f : a;
      case 12:
        return has(a, N) ? a + a[{"n", below(int(N.size))}] : a;
      default:
        return has(a, M) ? a - max(a, "m") : a;
    }
  }

  std::mt19937 random_;
  Axis N, M;
};

}  // namespace

// HALIAX_TRIALS=5000 runs 5,000 trials.
TEST_CASE("fuse: random programs match the reference") {
  const char* requested = std::getenv("HALIAX_TRIALS");
  for (int seed = 0, trials = requested ? std::atoi(requested) : 200; seed < trials; ++seed) {
    CAPTURE(seed);
    Drawn f{unsigned(seed)};
    auto expected = jit([&](const std::vector<NamedArray>& in) { return f(in); },
                        {.backend = "reference"})(f.inputs);
    auto got = jit([&](const std::vector<NamedArray>& in) { return f(in); })(f.inputs);
    for (std::size_t k = 0; k < expected.size(); ++k) {
      CAPTURE(k);
      CHECK(max(abs(got[k] - expected[k])).item() <= 1e-5 * (1 + max(abs(expected[k])).item()));
    }
  }
}

TEST_CASE(
    "fuse: a value that is read under its own names and under others, or at another position, is "
    "stored in memory") {
  const Axis N("n", 3), M("m", 3);
  auto x = random::normal(random::key(1), {N, M}).eval();
  auto both = [](const NamedArray& x) {
    auto y = where(x > 0.f, sum(x, "n"), x);
    return y + rename(y, {{"n", "m"}, {"m", "n"}});
  };
  auto near = [&](const NamedArray& a, const NamedArray& b) {
    CHECK(max(abs(a - b)).item() < 1e-6);
  };
  near(jit(both)(x), jit(both, {.backend = "reference"})(x));
  auto shifted = [](const NamedArray& x) {
    auto y = x * 2.f;
    return std::pair(y, y + 1.f + y[{"n", 2}]);
  };
  near(jit(shifted)(x).second, jit(shifted, {.backend = "reference"})(x).second);
}

TEST_CASE("fuse: an optimizer's moments and its parameter are one loop") {
  const Axis N("n", 64);
  auto step = [](const std::array<NamedArray, 3>& s, const NamedArray& g) {
    auto m = 0.9f * s[1] + 0.1f * g, v = 0.999f * s[2] + 0.001f * g * g;
    return std::array<NamedArray, 3>{s[0] - m / (sqrt(v) + 1e-8f), m, v};
  };
  auto x = ones(N).eval();
  auto report = jit(step, {.donate = {0}}).plan(std::array<NamedArray, 3>{x, x, x}, x);
  auto first = report.program.find("fused [");
  CHECK(first != std::string::npos);
  CHECK(report.program.find("fused [", first + 1) == std::string::npos);
  CHECK(report.peak_bytes == 0);
}

TEST_CASE("fuse: the cotangents of the parts of an array are one loop") {
  const Axis B("batch", 64), N("n", 3);
  auto f = [](const NamedArray& x) {
    auto p = unbind(x, "n");
    return sum(p[0] * p[1] * p[2]);
  };
  auto x = random::normal(random::key(0), {B, N}).eval();
  auto product_of_others = [&](const NamedArray& v) {
    auto p = unbind(v, "n");
    return stack("n", {p[1] * p[2], p[0] * p[2], p[0] * p[1]});
  };
  CHECK(max(abs(grad(f)(x) - product_of_others(x))).item() < 1e-6);
  auto program = jit(grad(f)).plan(x).program;
  auto first = program.find("fused [64]");
  CHECK(first != std::string::npos);
  CHECK(program.find("fused [64]", first + 1) == std::string::npos);
}

TEST_CASE("fuse: an expensive function of few elements is computed once, then broadcast") {
  const Axis B("batch", 4), H("heads", 6), P("pos", 32), D("half", 8);
  auto x = random::normal(random::key(0), {B, H, P, D}).eval();
  auto learned = random::normal(random::key(1), {D}).eval();
  // The angles of rotary positions, from an array and from positions alone.
  for (auto& speed : {learned, power(10., arange(D) * -0.1)}) {
    auto angle = broadcast_axis(arange(P), D) * speed;
    auto rotated = x * cos(angle) + flip(x, D) * sin(angle);
    Compilation c{{rotated.node()}, {}};
    run(c);
    std::int64_t evaluations = 0;
    each_step(c.program->steps, [&](auto& s) {
      for (auto& i : s.fused.code)
        if (i.code == program::Code::cos) evaluations += program::points(s.fused.dims);
    });
    CHECK(evaluations == P.size * D.size);
  }
}

TEST_CASE("lower: columns of an array that all iterations read are copied before the loop") {
  const Axis B("batch", 64), N("n", 3);
  const auto start = random::normal(random::key(0), {B}).eval(),
             rates = random::normal(random::key(1), {B, N}).eval();
  auto f = [](std::int64_t steps) {
    return [steps](const NamedArray& state, const NamedArray& table) {
      auto p = unbind(table, "n");
      auto step = [&](const NamedArray& s) { return tanh(s * p[0] + p[1]) * p[2]; };
      return fold(step, Axis("time", steps))(state);
    };
  };
  auto copies = [](const std::string& program) {
    int count = 0;
    for (auto at = program.find("copy [64] arg1"); at != std::string::npos;
         at = program.find("copy [64] arg1", at + 1))
      ++count;
    return count;
  };
  CHECK(copies(jit(f(100)).plan(start, rates).program) == 3);
  CHECK(copies(jit(f(4)).plan(start, rates).program) == 0);
  const auto got = jit(f(100))(start, rates),
             expected = jit(f(100), {.backend = "reference"})(start, rates);
  CHECK(max(abs(got - expected)).item() < 1e-5);
}
