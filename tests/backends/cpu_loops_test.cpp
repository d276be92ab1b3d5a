// Loops with small steps: the cpu backend runs them as one function, the reference backend element
// by element.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "haliax/debug.h"
#include "haliax/haliax.h"

using namespace haliax;

namespace {

struct Sizes {
  std::int64_t rows, columns, steps;
};
using Step = std::function<NamedArray(const NamedArray& state, const NamedArray& x)>;

// state (rows, columns), xs (time, rows, columns)
struct Inputs {
  NamedArray state, xs;
  explicit Inputs(const Sizes& s)
      : state(random::normal(random::key(0), {Axis("rows", s.rows), Axis("columns", s.columns)})
                  .eval()),
        xs(random::normal(random::key(1),
                          {Axis("time", s.steps), Axis("rows", s.rows), Axis("columns", s.columns)})
               .eval()) {}
};

// Returns the largest relative difference between the backends of a function.
template <class F> double worst(const F& f, const Inputs& in) {
  auto on = [&](const char* backend) {
    auto [a, b] = jit(f, {.backend = backend})(in.state, in.xs);
    auto values = a.astype(DType::f32).doubles();
    for (double v : b.astype(DType::f32).doubles()) values.push_back(v);
    return values;
  };
  auto got = on("cpu"), expected = on("reference");
  REQUIRE(got.size() == expected.size());
  double most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(got[i])) continue;
    const double difference = std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i]));
    most = std::isnan(difference) ? HUGE_VAL : std::max(most, difference);
  }
  return most;
}

// The step in a scan, and the gradient of the sum of all states.
void check(const std::string& name, const Step& step, const Sizes& sizes, bool gradient = true) {
  INFO(name, " rows ", sizes.rows, " columns ", sizes.columns, " steps ", sizes.steps);
  const Inputs in(sizes);
  auto states = [&](const NamedArray& state, const NamedArray& xs) {
    auto body = [&](const NamedArray& s, const NamedArray& x) {
      auto next = step(s, x).rearrange({"rows", "columns"});
      return std::pair{next, next};
    };
    return scan(body, "time")(state, xs);
  };
  CHECK(worst(states, in) < 2e-5);
  if (!gradient) return;
  auto gradients = [&](const NamedArray& state, const NamedArray& xs) {
    auto loss = [&](const std::pair<NamedArray, NamedArray>& p) {
      auto [last, all] = states(p.first, p.second);
      return sum(last) + sum(square(all));
    };
    return grad(loss)(std::pair{state, xs});
  };
  CHECK(worst(gradients, in) < 2e-4);
}

NamedArray weights(const NamedArray& s, const char* from, const char* to, int seed) {
  return random::normal(random::key(std::uint64_t(seed)),
                        {s.resolve_axis(from), s.resolve_axis(from).alias(to)}) *
         (0.5 / std::sqrt(double(s.resolve_axis(from).size)));
}

const std::vector<std::pair<const char*, Step>> steps = {
    {"elementwise", [](auto& s, auto& x) { return tanh(s * 0.5 + x) + nn::sigmoid(s - x); }},
    {"functions without vector code",
     [](auto& s, auto& x) { return sin(s) * cos(x) + log1p(square(s)); }},
    {"sum of columns", [](auto& s, auto& x) { return s * 0.3 + mean(s * x, "columns"); }},
    {"sum of rows", [](auto& s, auto& x) { return s * 0.3 + mean(s * x, "rows"); }},
    {"softmax of columns", [](auto& s, auto& x) { return nn::softmax(s + x, "columns"); }},
    {"softmax of rows", [](auto& s, auto& x) { return nn::softmax(s * 2. + x, "rows"); }},
    {"norm",
     [](auto& s, auto& x) {
       auto centered = s - mean(s, "columns");
       return centered * rsqrt(mean(square(centered), "columns") + 1e-2) + x;
     }},
    {"matmul of columns",
     [](auto& s, auto& x) {
       return tanh(dot(s, weights(s, "columns", "out", 3), "columns").rename({{"out", "columns"}}) +
                   x);
     }},
    {"matmul of rows",
     [](auto& s, auto& x) {
       return tanh(dot(s, weights(s, "rows", "out", 4), "rows").rename({{"out", "rows"}}) + x);
     }},
    {"matmul by the other side",
     [](auto& s, auto& x) {
       auto w = weights(s, "columns", "out", 5).rename({{"columns", "out"}, {"out", "columns"}});
       return tanh(dot(s, w, "columns").rename({{"out", "columns"}}) * 0.5 + x * s);
     }},
    {"matmul of two states",
     [](auto& s, auto& x) {
       auto product = dot(s, x.rename({{"rows", "other"}}), "columns");
       return s * 0.5 + product.rename({{"other", "columns"}}) * 0.1;
     }},
    {"maxima", [](auto& s, auto& x) { return where(s > x, s * 0.9, x) - max(s, "columns") * 0.1; }},
    {"positions",
     [](auto& s, auto& x) {
       const Axis Columns = s.resolve_axis("columns");
       auto at = arange(Columns);
       return where(at < int(Columns.size / 2), s, x * 0.5) + at.astype(DType::f32);
     }},
    {"shifted columns", [](auto& s, auto& x) { return roll(s, 1, "columns") * 0.7 + x; }},
    {"reversed", [](auto& s, auto& x) { return flip(s, "columns") * 0.7 + flip(x, "rows"); }},
};

}  // namespace

TEST_CASE("loops with small steps match the reference") {
  for (auto& [name, step] : steps)
    for (Sizes sizes : {Sizes{1, 1, 9},
                        {3, 8, 12},
                        {2, 17, 9},
                        {16, 16, 8},
                        {5, 33, 10},
                        {1, 150, 9},
                        {130, 3, 8}})
      if (std::string(name) != "matmul of two states" || sizes.rows == sizes.columns)
        check(name, step, sizes);
}

TEST_CASE("loops with steps that are called match the reference") {
  const Sizes sizes{4, 24, 9};
  check(
      "sort", [](auto& s, auto& x) { return sort(s, "columns") * 0.5 + x; }, sizes);
  check(
      "gather",
      [](auto& s, auto& x) {
        auto ids = argsort(x, "columns");
        return take(s, "columns", ids.rename({{"columns", "picked"}}))
                   .rename({{"picked", "columns"}}) *
               0.5;
      },
      sizes, false);
  check(
      "cumsum", [](auto& s, auto& x) { return cumsum(s, "columns") * 0.1 + x; }, sizes);
  check(
      "f64",
      [](auto& s, auto& x) {
        return (s.astype(DType::f64) * 0.5 + x.astype(DType::f64)).astype(DType::f32);
      },
      sizes);
  check(
      "bf16",
      [](auto& s, auto& x) {
        return (s.astype(DType::bf16) * 0.5 + x.astype(DType::bf16)).astype(DType::f32);
      },
      sizes, false);
}

TEST_CASE("loops in loops, and conditions in loops match the reference") {
  const Sizes sizes{3, 20, 11};
  check(
      "inner loop",
      [](auto& s, auto& x) {
        auto inner = [&](const NamedArray& row, const NamedArray& in) {
          return tanh(row * 0.5 + in);
        };
        return s * 0.1 + fold(inner, "rows")(zeros(s.resolve_axis("columns")), x);
      },
      sizes);
  check(
      "condition",
      [](auto& s, auto& x) {
        auto yes = [&](const NamedArray& t) { return tanh(t) + x; };
        auto no = [&](const NamedArray& t) { return t * 0.5 - x; };
        return cond(sum(s) > 0., yes, no)(s);
      },
      sizes);
  check(
      "update of a part",
      [](auto& s, auto& x) {
        auto at = (sum(square(x)) * 10.).astype(DType::i32) % 20;
        auto part = take(x, "columns", arange(Axis("columns", 3)));
        return updated_slice(s, {{"columns", at}}, part);
      },
      sizes, false);
}

TEST_CASE("an error in a step of a loop reaches the caller, and the next call succeeds") {
  const Inputs in({2, 16, 20});
  auto f = jit([](const NamedArray& state, const NamedArray& xs, const NamedArray& limit) {
    auto step = [&](const NamedArray& s, const NamedArray& x) {
      debug::check(max(x) < limit, "x is too large");
      return s * 0.5 + x;
    };
    return fold(step, "time")(state, xs);
  });
  CHECK_THROWS_WITH_AS(f(in.state, in.xs, NamedArray(0.f)).doubles(),
                       doctest::Contains("x is too large"), Error);
  CHECK(f(in.state, in.xs, NamedArray(100.f)).doubles().size() == 32);
}
