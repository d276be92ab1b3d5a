// Compares optimizers on a small tree of parameters with the formulas for scalars.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/jit.h"
#include "haliax/optim.h"
#include "haliax/transforms.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis A{"a", 2};

struct Params {
  NamedArray w, b;
  Frozen<NamedArray> scale;
  NamedArray ids;
};
Params start() { return {array({1, -2}, A), array({0.5}, {}), {array({3}, {})}, arange(A)}; }
// The gradients are (2, -1) * scale for `w` and 2 b for `b`. The frozen leaf and the integers have
// none.
NamedArray loss(const Params& p) { return sum(p.w * array({2, -1}, A)) * *p.scale + square(p.b); }

void close(const NamedArray& a, const std::vector<double>& expected, double tolerance = 1e-6) {
  auto values = a.doubles();
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(std::abs(values[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i])));
}

// AdamW of one scalar.
struct Scalar {
  double p, m = 0, v = 0;
  void step(double g, int t, double lr, double b1, double b2, double eps, double decay) {
    m = b1 * m + (1 - b1) * g;
    v = b2 * v + (1 - b2) * g * g;
    p -=
        lr * (m / (1 - std::pow(b1, t)) / (std::sqrt(v / (1 - std::pow(b2, t))) + eps) + decay * p);
  }
};

}  // namespace

TEST_CASE("adamw with clipping: matches the formulas and skips frozen and integer leaves") {
  auto optimizer =
      optim::chain(optim::clip_by_global_norm(1),
                   optim::adamw({.learning_rate = 0.1, .b2 = 0.95, .weight_decay = 0.01}));
  auto p = start();
  auto state = optimizer.init(p);
  auto& adam = std::get<0>(std::get<1>(state));
  CHECK(adam.mu.w.axes() == make_axes(A));
  CHECK(adam.mu.scale.value.empty());
  CHECK(adam.nu.ids.empty());
  CHECK(adam.count.dtype() == DType::i32);

  Scalar w0{1}, w1{-2}, b{0.5};
  for (int t = 1; t <= 5; ++t) {
    auto g = grad(loss)(p);
    double gb = 2 * b.p, norm = std::sqrt(36 + 9 + gb * gb), clip = std::min(1.0, 1 / norm);
    close(optim::global_norm(g), {norm});
    auto [updates, next] = optimizer.update(g, state, p);
    p = optim::apply_updates(p, updates);
    state = next;
    w0.step(6 * clip, t, 0.1, 0.9, 0.95, 1e-8, 0.01);
    w1.step(-3 * clip, t, 0.1, 0.9, 0.95, 1e-8, 0.01);
    b.step(gb * clip, t, 0.1, 0.9, 0.95, 1e-8, 0.01);
    close(p.w, {w0.p, w1.p});
    close(p.b, {b.p});
  }
  close(*p.scale, {3});
  close(p.ids, {0, 1});
  CHECK(std::get<0>(std::get<1>(state)).count.item() == 5);
}

TEST_CASE("optim: a small norm is not clipped, and a mask selects the leaves that decay") {
  Params g{array({0.3, 0}, A), array({0.4}, {}), {}, {}};
  auto clipped = optim::clip_by_global_norm(1).update(g, {}, start()).first;
  close(clipped.w, {0.3f, 0}, 1e-7);
  clipped = optim::clip_by_global_norm(0.25).update(g, {}, start()).first;
  close(clipped.w, {0.15, 0});
  auto decay = optim::add_decayed_weights(
      0.1, [](std::string_view path, const NamedArray&) { return path == "w"; });
  auto decayed = decay.update(g, {}, start()).first;
  close(decayed.w, {0.4, -0.2});
  close(decayed.b, {0.4});
  CHECK(decayed.scale.value.empty());
}

TEST_CASE("optim: sgd, momentum and schedules match the formulas") {
  auto p = start();
  auto sgd = optim::sgd({.learning_rate = 0.1, .momentum = 0.5});
  auto state = sgd.init(p);
  for (int t = 0; t < 2; ++t) {
    auto [u, next] = sgd.update(grad(loss)(p), state, p);
    p = optim::apply_updates(p, u);
    state = next;
  }
  close(p.w, {1 - 0.1 * 6 - 0.1 * 9, -2 + 0.1 * 3 + 0.1 * 4.5});

  optim::WarmupCosine rate{.peak = 2, .warmup = 10, .total = 30, .final = 1};
  auto count = [](std::int32_t n) { return array(std::span<const std::int32_t>(&n, 1), {}); };
  close(rate(count(0)), {0});
  close(rate(count(5)), {1});
  close(rate(count(10)), {2});
  close(rate(count(20)), {1.5});
  close(rate(count(99)), {1});

  auto scheduled =
      optim::adamw(optim::WarmupCosine{.peak = 0.1, .warmup = 2, .total = 4}, {.weight_decay = 0});
  auto s = scheduled.init(p);
  auto before = p.w.doubles();
  auto first = scheduled.update(grad(loss)(p), s, p);
  close(first.first.w, {0, 0});  // the schedule starts at 0
  auto second = scheduled.update(grad(loss)(p), first.second, p);
  close(second.first.w, {-0.05, 0.05});
}

TEST_CASE("optim: parameters keep their dtype, and a step runs under jit") {
  Params p{array({1, 2}, A).astype(DType::bf16), array({1}, {}), {array({3}, {})}, arange(A)};
  auto adam = optim::adam({.learning_rate = 0.5});
  auto step = jit([=](const Params& p, const decltype(adam.init(p))& state) {
    auto [updates, next] = adam.update(grad(loss)(p), state, p);
    return std::pair{optim::apply_updates(p, updates), next};
  });
  auto [after, state] = step(p, adam.init(p));
  CHECK(after.w.dtype() == DType::bf16);
  close(after.w, {0.5, 2.5}, 0.01);
  CHECK(std::get<0>(state).count.item() == 1);
  auto [second, last] = step(after, state);
  CHECK(std::get<0>(last).count.item() == 2);
  CHECK(step.report().traces == 1);
}

TEST_CASE("optim: updates and states of bf16 parameters are rounded once") {
  auto adam = optim::adam({.learning_rate = 3e-3});
  auto sgd = optim::sgd({.learning_rate = 3e-3, .momentum = 0.9});
  const Axis many("many", 512);
  auto draw = [&](int seed) {
    return random::normal(random::key(std::uint64_t(seed)), many).astype(DType::bf16).eval();
  };
  auto check = [&](const auto& optimizer) {
    auto p = draw(0);
    auto state = optimizer.init(p);
    for (int step = 1; step < 4; ++step) {
      auto wide = [](const auto& tree) {
        return tree_map(
            [](const NamedArray& a) { return is_float(a.dtype()) ? a.astype(DType::f32) : a; },
            tree);
      };
      auto g = draw(step);
      auto [expected, wide_next] = optimizer.update(wide(g), wide(state), wide(p));
      auto [got, next] = optimizer.update(g, state, p);
      CHECK(got.dtype() == DType::bf16);
      // Each step of the chain rounds by 1 / 256.
      auto near = [](const NamedArray& x, const NamedArray& y, float steps) {
        CHECK(max(abs(x.astype(DType::f32) - y) - abs(y) * steps / 256.f).item() <= 1e-7);
      };
      near(got, expected, 2.01f);
      auto a = flatten(next), b = flatten(wide_next);
      REQUIRE(a.size() == b.size());
      for (std::size_t k = 0; k < a.size(); ++k)
        if (is_float(a[k].dtype())) near(a[k], b[k], 1.01f);
      state = next;
    }
  };
  check(adam);
  check(sgd);

  auto state = optim::scale_by_adam().init(draw(0));  // each moment keeps its dtype
  state.nu = state.nu.astype(DType::f32);
  auto next = optim::scale_by_adam().update(draw(1), state, draw(0)).second;
  CHECK(next.mu.dtype() == DType::bf16);
  CHECK(next.nu.dtype() == DType::f32);
}

TEST_CASE("optim: updates whose axes differ from the parameters raise") {
  const auto p = start();
  auto u = grad(loss)(p);
  u.w = array({1}, {});  // would broadcast over `a`
  raises([&] { return optim::apply_updates(p, u).w; },
         {"[optim] array 0 of the params is (a=2), "
          "but that of the updates is (); their axes must be the same",
          "optim_test.cpp"});
  auto adam = optim::adam({.learning_rate = 0.5});
  raises([&] { return adam.update(u, adam.init(p), p).first.w; },
         {"[optim] array 0 of the moments is (a=2), but that of the gradients is ()"});
}
