// Evaluations of graphs with equal structure: planned once, and run with their own arrays, scalars
// and source lines.
#include <doctest/doctest.h>

#include <random>
#include <thread>

#include "haliax/haliax.h"
#include "runtime/eval_cache.h"

using namespace haliax;

namespace {

const Axis N{"n", 6}, M{"m", 4};

// Returns the number of graphs that were planned during `f`.
template <class F> std::uint64_t planned(const F& f) {
  auto before = planned_evaluations();
  f();
  return planned_evaluations() - before;
}
NamedArray step(const NamedArray& x, const NamedArray& w, double by) {
  return dot(x * by, w, "m") + sum(x, "m");
}
NamedArray draw(int seed, const Axes& axes) {
  return random::normal(random::key(seed), axes).eval();
}

}  // namespace

TEST_CASE("eval cache: a graph with other arrays is planned once") {
  auto w = draw(1, {M, N});
  std::vector<NamedArray> xs;
  for (int i = 0; i < 5; ++i) xs.push_back(draw(2 + i, {M}));
  auto wanted = jit([](const NamedArray& x, const NamedArray& w) { return step(x, w, 2.); });
  CHECK(planned([&] {
          for (auto& x : xs) {
            auto y = step(x, w, 2.).eval();
            CHECK(max(abs(y - wanted(x, w))).item() < 1e-6);
          }
        }) <= 2);  // one plan is for the check
}

TEST_CASE("eval cache: other scalars, axes, dtypes or array identities are another graph") {
  auto x = draw(1, {N}), y = draw(2, {N});
  auto added = [](const NamedArray& a, const NamedArray& b, double by) {
    return (a * by + b).doubles();
  };
  auto first = x.doubles(), second = y.doubles();
  auto agree = [&](const std::vector<double>& got, auto expected) {
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected(i)));
  };
  for (int repeat = 0; repeat < 2; ++repeat) {
    agree(added(x, y, 2.), [&](auto i) { return 2 * first[i] + second[i]; });
    agree(added(y, x, 2.), [&](auto i) { return 2 * second[i] + first[i]; });
    agree(added(x, x, 2.), [&](auto i) { return 3 * first[i]; });
    agree(added(y, y, 2.), [&](auto i) { return 3 * second[i]; });
    agree(added(x, y, 3.), [&](auto i) { return 3 * first[i] + second[i]; });
    agree(added(x.astype(DType::f64), y, 2.), [&](auto i) { return 2 * first[i] + second[i]; });
    agree(added(rename(x, "n", "m"), rename(y, "n", "m"), 2.),
          [&](auto i) { return 2 * first[i] + second[i]; });
  }
}

// The cache compares the values of constants and iotas, not their addresses.
TEST_CASE("eval cache: constants and positions that were read before keep their values") {
  auto x = draw(1, {N});
  const auto was = x.doubles();
  for (double by : {1., 2., 3.}) {
    NamedArray rate = by;
    CHECK(rate.item() == by);
    auto y = (x * rate).doubles();
    for (std::size_t i = 0; i < was.size(); ++i) CHECK(y[i] == doctest::Approx(by * was[i]));
  }
  for (std::int64_t start : {0, 3, 7}) {
    auto at = arange(N, {.start = double(start)}).eval();
    CHECK((at + 1).integers() == std::vector<std::int64_t>{start + 1, start + 2, start + 3,
                                                           start + 4, start + 5, start + 6});
  }
}

// Applies random ops that depend only on `shape`, with constants that depend on `shape` and
// `numbers`. `read` may evaluate intermediates.
template <class Read> NamedArray random_values(int shape, int numbers, const Read& read) {
  std::mt19937 ops(shape), drawn(shape + 1000 * numbers);
  auto pick = [&](std::size_t count) { return std::size_t(ops() % count); };
  auto number = [&] { return double(drawn() % 7) - 2; };
  auto positions = [&] {
    return read(arange(N, {.start = number(), .step = 1 + number() * number()}));
  };
  auto scalar = [&] { return read(NamedArray(number())); };
  std::vector<NamedArray> all{positions().astype(DType::f32), read(full(N, number()))};
  for (int i = 0; i < 8; ++i) {
    auto &x = all[pick(all.size())], &y = all[pick(all.size())];
    auto made = [&] {
      switch (pick(8)) {
        case 0: {
          auto by = scalar();  // drawn first, since the evaluation order of operands is unspecified
          return x * by + scalar();
        }
        case 1:
          return x + positions();
        case 2:
          return take(x, "n", read(clip(positions(), 0, 5)));
        case 3: {
          auto at = positions();
          return where(at < scalar(), x, y);
        }
        case 4:
          return sin(x * y);
        case 5:
          return x + random::normal(random::key(std::uint64_t(number() + 3)), {N});
        case 6:
          return grad([&, k = scalar()](const NamedArray& t) { return sum(sin(t * k) * y); })(x);
        default:
          return maximum(x, read(full(N, number())));
      }
    };
    auto z = made();
    all.push_back(read(z));
  }
  return sum(broadcast_axis(sin(all.back()), M), "m") + all[4].astype(DType::f32);
}
TEST_CASE("eval cache: random ops match jit, with and without evaluated intermediates") {
  for (int shape = 0; shape < 60; ++shape)
    for (int numbers = 0; numbers < 3; ++numbers)
      for (unsigned often : {1u, 2u}) {
        std::mt19937 which(shape);
        auto got = random_values(shape, numbers, [&](NamedArray x) {
          if (which() % often == 0) x.eval();
          return x;
        });
        auto expected = jit([&](const NamedArray& none) {
          return random_values(shape, numbers, [](const NamedArray& x) { return x; }) + none;
        })(zeros({}));
        CAPTURE(shape);
        CHECK(max(abs(got - expected)).item() <= 1e-4 * (1 + max(abs(expected)).item()));
      }
}

TEST_CASE("eval cache: gradients and vmap are planned once") {
  auto w = draw(1, {M, N});
  auto loss = [](const NamedArray& w, const NamedArray& x) { return sum(sin(dot(w, x, "m"))); };
  auto agree = [&](auto f) {
    auto jitted = jit(f);
    std::vector<NamedArray> xs, got;
    for (int i = 0; i < 10; ++i) xs.push_back(draw(2 + i, {M}));
    CHECK(planned([&] {
            for (auto& x : xs) got.push_back(f(w, x).eval());
          }) == 1);
    for (std::size_t i = 0; i < xs.size(); ++i)
      CHECK(max(abs(got[i] - jitted(w, xs[i]))).item() < 1e-6);
  };
  agree([=](const NamedArray& w, const NamedArray& x) { return grad(loss)(w, x); });
  agree([=](const NamedArray& w, const NamedArray& x) {
    return value_and_grad(loss)(w, x).second * 2.f;
  });
  agree([=](const NamedArray& w, const NamedArray& x) {
    return grad([=](const NamedArray& w) { return sum(square(grad(loss)(w, x))); })(w);
  });
  agree([](const NamedArray& w, const NamedArray& x) {
    return vmap([&](const NamedArray& row) { return softmax(row * x, "m"); }, "n")(w);
  });
  // Hidden axis names of two depths, in either order.
  agree([=](const NamedArray& w, const NamedArray& x) {
    auto inner = [&](const NamedArray& row) {
      return vmap([&](const NamedArray& e) { return e * sum(row); }, "m")(row) * x;
    };
    return vmap(inner, "n")(w) + grad(loss)(w, x);
  });
}

TEST_CASE(
    "eval cache: C++ scalars and source lines are part of the program, and scalar arrays are not") {
  auto x = draw(1, {N});
  CHECK(planned([&] {
          for (int i = 2; i < 12; ++i) (x * double(i)).eval();
        }) == 10);
  CHECK(planned([&] {
          for (int i = 2; i < 12; ++i) (x * array({double(i)}, {})).eval();
        }) == 1);
  auto on_two_lines = [&] {  // outside of CHECK, which is one source line
    for (int i = 0; i < 5; ++i) {
      exp(x).eval();
      exp(x).eval();
    }
  };
  CHECK(planned(on_two_lines) == 2);
}

TEST_CASE("eval cache: a computed value is read, not recomputed") {
  auto x = draw(1, {N});
  auto twice = [&](bool known) {
    auto middle = exp(x);
    if (known) middle.eval();
    return (middle * 2.).doubles();
  };
  auto expected = twice(false);
  CHECK(twice(true) == expected);
  CHECK(twice(false) == expected);
  CHECK(twice(true) == expected);
}

TEST_CASE(
    "eval cache: custom functions and loops evaluate correctly, "
    "and so do more graphs than the cache holds") {
  auto x = draw(1, {M, N});
  for (int repeat = 0; repeat < 2; ++repeat) {
    auto total = fold([](const NamedArray& sum, const NamedArray& row) { return sum + row; }, M)(
        zeros(N), x);
    CHECK(max(abs(total - sum(x, "m"))).item() < 1e-5);
  }
  auto row = take(x, "n", 0);
  auto one = row.doubles();
  for (int i = 0; i < 200; ++i)
    CHECK((row * double(i)).doubles()[1] == doctest::Approx(one[1] * i));
}

TEST_CASE("eval cache: several threads evaluate at once") {
  std::vector<std::thread> all;
  std::vector<double> got(4);
  for (int t = 0; t < 4; ++t)
    all.emplace_back([&, t] {
      auto w = full({M, N}, float(t));
      for (int i = 0; i < 50; ++i) got[std::size_t(t)] = double(sum(step(ones(M), w, 1.)).item());
    });
  for (auto& t : all) t.join();
  for (int t = 0; t < 4; ++t) CHECK(got[std::size_t(t)] == doctest::Approx(6 * (4 * t + 4)));
}
