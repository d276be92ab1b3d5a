// Loops with small steps: the cpu backend runs them as one function, the reference backend element
// by element.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
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
                        {2, 100, 9},
                        {4, 70, 9},
                        {130, 3, 8},
                        {300, 2, 9}})
      if (std::string(name) != "matmul of two states" || sizes.rows == sizes.columns)
        check(name, step, sizes);
}

TEST_CASE("loops: equal rows of a state have equal results") {
  for (std::int64_t rows : {3, 9, 11})
    for (std::int64_t columns : {20, 33, 40}) {
      const Axis Rows("rows", rows), Columns("columns", columns), Time("time", 5);
      const auto row = random::normal(random::key(0), {Columns}).eval();
      auto f = jit([&](const NamedArray& start) {
        auto step = [&](const NamedArray& s) {
          auto product = dot(s, weights(s, "columns", "out", 3), "columns");
          return tanh(product.rename({{"out", "columns"}}) + s);
        };
        return fold(step, Time)(start);
      });
      const auto last = f(broadcast_axis(row, Rows).eval()).rearrange({"rows", "columns"});
      INFO("rows ", rows, " columns ", columns);
      CHECK(max(abs(last - last[{"rows", 0}])).item() == 0);
    }
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

TEST_CASE("loops of bf16 are bitwise identical to the reference") {
  auto f = [](const NamedArray& state, const NamedArray& xs) {
    auto step = [](const NamedArray& s, const NamedArray& x) {
      auto y = s * 0.3 + x * x[{"columns", 0}];
      return where(y > 0.7, maximum(y, x) - 1, -y) * x.astype(DType::f32).astype(DType::bf16);
    };
    auto [last, all] = scan(
        [&](const NamedArray& s, const NamedArray& x) {
          auto next = step(s, x);
          return std::pair{next, next + 1};
        },
        "time")(state.astype(DType::bf16), xs.astype(DType::bf16));
    return std::pair{last, all};
  };
  for (std::int64_t columns : {1, 2, 3, 4, 7, 8, 13, 16, 18, 40}) {
    INFO("columns ", columns);
    CHECK(worst(f, Inputs({2, columns, 9})) == 0);
  }
}

TEST_CASE("loops of bf16 elements that are far apart are bitwise identical to the reference") {
  auto f = [](const NamedArray& state, const NamedArray& xs) {
    auto step = [](const NamedArray& s, const NamedArray& x) {
      auto next = s * 0.5 + x;
      return std::pair{next, next * x};
    };
    auto [last, all] = scan(step, "time")(state, xs);
    return std::pair{last, all.rearrange({"rows", "columns", "time"})};
  };
  for (std::int64_t columns : {1, 2, 3, 8, 9, 16, 18, 40}) {
    INFO("columns ", columns);
    Inputs in({2, columns, 9});
    in.state = in.state.astype(DType::bf16).eval();
    in.xs = in.xs.rearrange({"rows", "columns", "time"}).astype(DType::bf16).eval();
    CHECK(worst(f, in) == 0);
  }
}

TEST_CASE("functions, roundings and tests of floats in loops match the reference") {
  auto f = [](const NamedArray& state, const NamedArray& xs) {
    auto step = [](const NamedArray& s, const NamedArray& x) {
      auto y = s * 0.5 + x * 4;
      auto rounded = floor(y) + ceil(y * 3) * 0.5 + round(y * 5) * 0.25 + trunc(y * 7) * 0.125;
      auto odd = where(isnan(sqrt(y)), sign(y), where(isinf(exp(y * 40)), 3, isfinite(y) * 2));
      auto curve = sin(y * 1e4) + cos(y * 1e9) + power(square(y), 0.75) + arctan2(y, x) + y % 1.5;
      return rounded * 0.1 + odd + curve;
    };
    auto out = step(state, xs[{"time", 0}]);
    auto loop = fold([&](const NamedArray& s, const NamedArray& x) { return step(s * 0, x); },
                     "time")(state, xs);
    return std::pair{out, loop};
  };
  for (std::int64_t columns : {1, 2, 4, 5, 8, 16, 19}) {
    INFO("columns ", columns);
    CHECK(worst(f, Inputs({2, columns, 9})) < 1e-5);
  }
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

namespace {

// state (rows, columns), level (rows), counts (columns), which are integers
using Carry = std::tuple<NamedArray, NamedArray, NamedArray>;

// Draws the step of a scan: expressions of the state, of the input and of positions.
class RandomStep {
 public:
  RandomStep(std::uint64_t seed, const Sizes& sizes, int ops)
      : seed_(seed), ops_(ops), sizes_(sizes) {}

  // Each call builds the same expressions. Always: the floats are in [-1, 1].
  Carry operator()(const Carry& carry, const NamedArray& x) {
    auto& [state, level, counts] = carry;
    draw_.seed(seed_);
    values_ = {{state, false}, {level, false}, {counts, true}, {x, true}};
    for (int k = 0; k < ops_; ++k) add_value();
    const auto next_state = tanh(fitted(sum_of_values()) + state * 0.25);
    const auto next_level = tanh(mean(fitted(sum_of_values()) + level * 0.25, "columns"));
    const auto drawn = max(fitted(integer_value().array), "rows");
    return {next_state, next_level, bitwise_and(counts + drawn, 1023)};
  }

 private:
  // A value is exact if all backends compute bitwise identical results. Only exact values are
  // compared and rounded, because these functions have jumps.
  struct Drawn {
    NamedArray array;
    bool exact;
  };
  std::size_t below(std::size_t n) { return std::size_t(draw_() % n); }
  Drawn value_of(const std::function<bool(const Drawn&)>& fits) {
    std::vector<std::size_t> all;
    for (std::size_t k = 0; k < values_.size(); ++k)
      if (fits(values_[k])) all.push_back(k);
    return values_[all[below(all.size())]];
  }
  Drawn float_value() {
    return value_of([](auto& v) { return v.array.dtype() == DType::f32; });
  }
  NamedArray sum_of_values() {
    NamedArray total = float_value().array * 0.5;
    for (std::size_t k = below(3); k > 0; --k) {
      const auto more = float_value().array;
      total = fitted(total) + more * 0.5;
    }
    return total;
  }
  Drawn exact_value() {
    return value_of([](auto& v) { return v.exact && v.array.dtype() == DType::f32; });
  }
  Drawn value_with(const std::string& axis) {
    return value_of([&](auto& v) { return v.array.dtype() == DType::f32 && has(v.array, axis); });
  }
  Drawn integer_value() {
    const auto chosen =
        value_of([](auto& v) { return v.exact && v.array.dtype() != DType::boolean; });
    if (chosen.array.dtype() == DType::i32) return chosen;
    return {clip(floor(chosen.array * 8.), -100., 100.).astype(DType::i32), true};
  }
  Drawn test_value() {
    const auto a = exact_value().array, b = beside(a, exact_value()).array;
    switch (below(6)) {
      case 0:
        return {a < b, true};
      case 1:
        return {a <= 0.25, true};
      case 2:
        return {fitted(integer_value().array) == integer_value().array, true};
      case 3:
        return {logical_or(a > b, logical_not(b > 0.)), true};
      case 4:
        return {logical_xor(fitted(a != b), integer_value().array % 3 == 0), true};
      default:
        return {integer_value().array.astype(DType::boolean), true};
    }
  }
  static bool has(const NamedArray& x, const std::string& axis) {
    for (auto& a : x.axes())
      if (a.name == axis) return true;
    return false;
  }
  std::string axis() { return below(2) ? "rows" : "columns"; }
  Axis sized(const std::string& name) const {
    return Axis(name, name == "rows" ? sizes_.rows : sizes_.columns);
  }
  NamedArray fitted(const NamedArray& x) const {
    return broadcast_axis(x, {sized("rows"), sized("columns")}).rearrange({"rows", "columns"});
  }
  NamedArray weights(const std::string& from, const std::string& to) {
    NamedArray w =
        random::normal(random::key(draw_()), {sized(from), Axis("out", sized(to).size)}) *
        (0.5 / std::sqrt(double(sized(from).size)));
    return below(2) ? w : w.rearrange({"out", from});
  }

  // Returns b with all axes if an elementwise op of a and b requires them.
  Drawn beside(const NamedArray& a, const Drawn& b) const {
    const bool fits = has(a, "rows") + has(a, "columns") != 1 ||
                      has(b.array, "rows") + has(b.array, "columns") != 1;
    return fits ? b : Drawn{fitted(b.array), b.exact};
  }

  void add_value() {
    switch (below(9)) {
      case 0:
      case 1:
        return add_unary();
      case 2:
      case 3:
        return add_binary();
      case 4:
        return add_integer();
      case 5:
        return add_reduction();
      case 6:
        return add_moved();
      case 7:
        return add_matmul();
      default:
        return add_control();
    }
  }
  void add(const NamedArray& x, bool exact = false) { values_.push_back({x, exact}); }
  void add_unary() {
    const auto [x, exact] = float_value();
    switch (below(12)) {
      case 0:
        return add(tanh(x));
      case 1:
        return add(nn::sigmoid(x));
      case 2:
        return add(exp(minimum(x, 1.)));
      case 3:
        return add(sqrt(abs(x) + 0.1));
      case 4:
        return add(-x, exact);
      case 5:
        return add(abs(x), exact);
      case 6:
        return add(sin(x));
      case 7:
        return add(log1p(square(x)));
      case 8:
        return add(rsqrt(square(x) + 0.5));
      case 9:
        return add(floor(exact_value().array), true);
      case 10:
        return add(x * 0.5, exact);
      default:
        return add(exact_value().array.astype(DType::bf16).astype(DType::f32), true);
    }
  }
  void add_binary() {
    const auto a = float_value(), b = beside(a.array, float_value());
    const bool exact = a.exact && b.exact;
    switch (below(8)) {
      case 0:
        return add(a.array + b.array);
      case 1:
        return add(a.array - b.array);
      case 2:
        return add(tanh(a.array) * b.array);
      case 3:
        return add(a.array / (abs(b.array) + 0.5));
      case 4:
        return add(maximum(a.array, b.array), exact);
      case 5:
        return add(minimum(a.array, b.array), exact);
      default:
        return add(where(fitted(test_value().array), a.array, b.array), exact);
    }
  }
  void add_integer() {
    const auto a = integer_value().array, b = beside(a, integer_value()).array;
    const auto bounded = [&](const NamedArray& x) { add(bitwise_and(x, 1023), true); };
    switch (below(11)) {
      case 0:
        return bounded(a + b);
      case 1:
        return bounded(a - b);
      case 2:
        return bounded(a * b);
      case 3:
        return add(maximum(a, -b), true);
      case 4:
        return add(a % 7, true);
      case 5:
        return add(floor_divide(a, 3), true);
      case 6:
        return bounded(left_shift(a, bitwise_and(b, 7)));
      case 7:
        return add(right_shift(a, bitwise_and(b, 7)), true);
      case 8:
        return add(where(fitted(test_value().array), a, b), true);
      case 9:
        return add(arange(sized(axis())), true);
      default:
        return add(bitwise_and(a, 15).astype(DType::f32) * 0.125, true);
    }
  }
  void add_reduction() {
    const std::string along = axis();
    const auto [x, exact] = value_with(along);
    switch (below(8)) {
      case 0:
        return add(mean(x, along));
      case 1:
        return add(max(x, along), exact);
      case 2:
        return add(min(x, along), exact);
      case 3:
        return add(nn::softmax(x, along));
      case 4:
        return add(x - mean(x, along));
      case 5:
        return add(mean(fitted(x), {"rows", "columns"}));
      case 6:
        return add(cumsum(x, along) * (1. / double(sized(along).size)));
      default:
        return add(x * rsqrt(mean(square(x), along) + 0.1));
    }
  }
  void add_moved() {
    const std::string along = axis();
    const auto [x, exact] = value_with(along);
    const std::int64_t n = sized(along).size, part = 1 + std::int64_t(below(std::size_t(n)));
    switch (below(5)) {
      case 0:
        return add(roll(x, int(below(3)) - 1, along), exact);
      case 1:
        return add(flip(x, along), exact);
      case 2: {
        if (part == n) return add(x, exact);
        const auto y = value_with(along).array;
        const bool same_axes = x.axes().size() == y.axes().size();
        const auto first = (same_axes ? x : fitted(x)).slice(along, 0, part),
                   second = (same_axes ? y : fitted(y)).slice(along, 0, n - part);
        return add(concatenate(along, {first, second * 0.5}));
      }
      case 3:
        return add(x.slice(along, n - part, 1).sum(along), exact);
      default:
        if (sizes_.rows != sizes_.columns) return add(flip(x, along), exact);
        return add(fitted(x).rename({{"rows", "columns"}, {"columns", "rows"}}), exact);
    }
  }
  void add_matmul() {
    const std::string along = axis(), other = along == "rows" ? "columns" : "rows";
    const auto x = value_with(along).array;
    if (below(4) == 0 && has(x, other)) {
      const auto y = value_with(along).array;
      if (has(y, other)) return add(tanh(dot(x, y, {"rows", "columns"}) * 0.1));
    }
    add(tanh(dot(x, weights(along, along), along).rename({{"out", along}})));
  }
  void add_control() {
    const auto x = fitted(float_value().array), y = fitted(float_value().array);
    const std::string along = axis(), other = along == "rows" ? "columns" : "rows";
    switch (below(3)) {
      case 0: {
        const auto body = [&](const NamedArray& s, const NamedArray& row) {
          return tanh(s * 0.5 + row);
        };
        return add(fold(body, along)(zeros(sized(other)), x));
      }
      case 1: {
        const auto body = [&](const NamedArray& s, const NamedArray& row) {
          const auto next = tanh(s * 0.5 + row).rearrange({other});
          return std::pair{next, next * 0.5 + max(next)};
        };
        return add(scan(body, along)(zeros(sized(other)), x).second);
      }
      default: {
        const auto yes = [&](const NamedArray& t) { return tanh(t) + y; };
        const auto no = [&](const NamedArray& t) { return t * 0.5 - y; };
        return add(cond(max(exact_value().array) > 1., yes, no)(x));
      }
    }
  }

  const std::uint64_t seed_;
  const int ops_;
  const Sizes sizes_;
  std::mt19937_64 draw_;
  std::vector<Drawn> values_;
};

// A scan of random steps, and for some seeds its gradient.
void check_random(std::uint64_t seed) {
  std::mt19937_64 draw{seed};
  const auto size = [&] { return 1 + std::int64_t(draw() % (draw() % 4 ? 20 : 40)); };
  Sizes sizes{size(), size(), 3 + std::int64_t(draw() % 5)};
  if (draw() % 3 == 0) sizes.rows = sizes.columns;
  RandomStep step(seed, sizes, 1 + int(draw() % 12));
  INFO("seed ", seed, " rows ", sizes.rows, " columns ", sizes.columns, " steps ", sizes.steps);
  const Inputs in(sizes);
  const auto states = [&](const NamedArray& state, const NamedArray& xs) {
    const auto body = [&](const Carry& carry, const NamedArray& x) {
      auto next = step(carry, x);
      return std::pair{next, std::get<0>(next) + std::get<1>(next)};
    };
    const NamedArray level = max(state, "columns"),
                     counts = zeros(Axis("columns", sizes.columns), DType::i32);
    auto [last, all] = scan(body, "time")(Carry{state, level, counts}, xs);
    auto& [last_state, last_level, last_counts] = last;
    return std::pair{last_state + last_level + last_counts.astype(DType::f32), all};
  };
  CHECK(worst(states, in) < 2e-5);
  if (seed % 3 != 0) return;
  const auto gradients = [&](const NamedArray& state, const NamedArray& xs) {
    const auto loss = [&](const std::pair<NamedArray, NamedArray>& p) {
      auto [last, all] = states(p.first, p.second);
      return sum(last) + sum(square(all));
    };
    return grad(loss)(std::pair{state, xs});
  };
  CHECK(worst(gradients, in) < 1e-3);
}

}  // namespace

TEST_CASE("loops of random steps match the reference") {
  for (int seed = 0; seed < 300; ++seed) check_random(std::uint64_t(seed));
}
