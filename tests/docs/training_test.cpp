// The code of docs/how-to/training.md, compiled and run.
#include <doctest/doctest.h>

#include <cmath>
#include <iomanip>
#include <sstream>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 64), In("in", 1), Hidden("hidden", 32), Out("out", 1);

struct Model {
  nn::Linear up, down;

  static Model init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::Linear::init(In, Hidden, k_up), nn::Linear::init(Hidden, Out, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return down(tanh(up(x))); }
};

NamedArray loss(const Model& model, const NamedArray& x, const NamedArray& y) {
  return mean(square(model(x) - y));
}

const auto optimizer =
    optim::chain(optim::clip_by_global_norm(1.0),
                 optim::adamw(optim::WarmupCosine{.peak = 3e-2, .warmup = 20, .total = 300},
                              {.weight_decay = 1e-4, .mask = "weight"}));

struct Training {
  Model model;
  optim::State<decltype(optimizer), Model> state;
  Key key;

  static Training init(const Key& key) {
    auto [k_model, k_data] = random::split<2>(key);
    auto model = Model::init(k_model);
    return {model, optimizer.init(model), k_data};
  }
};

std::pair<Training, NamedArray> train_step(const Training& t) {
  auto [k_batch, k_next] = random::split<2>(t.key);
  auto x = random::uniform(k_batch, {Batch, In}, -3., 3.);
  auto y = sin(x).rename(In, Out);
  auto [l, grads] = value_and_grad(loss)(t.model, x, y);
  auto [updates, state] = optimizer.update(grads, t.state, t.model);
  return {{optim::apply_updates(t.model, updates), state, k_next}, l};
}

// A schedule of one's own: linear decay from `peak` to 0.
struct LinearDecay {
  double peak;
  std::int64_t total;
  NamedArray operator()(const NamedArray& count) const {
    return peak * maximum(1. - count / double(total), 0.);
  }
};

}  // namespace

TEST_CASE("training: a loop with warmup, clipping and decay fits a sine") {
  std::ostringstream out;
  auto training = jit(Training::init)(random::key(0));
  auto step = jit(train_step, {.donate = {0}});
  std::vector<double> losses;
  for (int k = 1; k <= 300; ++k) {
    NamedArray l;
    std::tie(training, l) = step(training);
    losses.push_back(l.item());
    if (k % 100 == 0) out << "step " << k << ": loss " << std::setprecision(2) << l.item() << "\n";
  }
  CHECK(out.str() ==
        "step 100: loss 0.011\n"
        "step 200: loss 0.0061\n"
        "step 300: loss 0.0037\n");
  CHECK(step.report().traces == 1);
}

TEST_CASE("training: schedules are functions of the step") {
  const optim::WarmupCosine schedule{.peak = 1e-3, .warmup = 100, .total = 1000, .final = 1e-4};
  std::ostringstream out;
  for (int count : {0, 50, 100, 550, 1000, 2000})
    out << count << ": " << schedule(NamedArray(double(count))).item() << "\n";
  CHECK(out.str() ==
        "0: 0\n"
        "50: 0.0005\n"
        "100: 0.001\n"
        "550: 0.00055\n"
        "1000: 0.0001\n"
        "2000: 0.0001\n");

  auto linear = optim::adamw(LinearDecay{.peak = 1e-3, .total = 1000}, {});
  auto drops = [](const NamedArray& count) { return where(count < 500, -1e-2, -1e-3); };
  auto momentum = optim::chain(optim::Momentum{.decay = 0.9}, optim::scale_by_schedule(drops));

  const auto model = Model::init(random::key(0));
  const auto grads = tree_map([](const NamedArray& a) { return ones(a.axes()); }, model);
  auto first = [&](const auto& o) {
    auto [updates, state] = o.update(grads, o.init(model), model);
    return updates.up.weight;
  };
  CHECK(mean(first(linear)).item() == doctest::Approx(-1e-3).epsilon(1e-3));
  CHECK(mean(first(momentum)).item() == doctest::Approx(-1e-2));
  CHECK(optim::global_norm(grads).item() == doctest::Approx(std::sqrt(97.)));

  const auto by_argument = [](const Model& m, const Model& grads, const NamedArray& rate) {
    auto sgd = optim::sgd({.learning_rate = 1});
    auto [updates, state] = sgd.update(grads, sgd.init(m), m);
    auto scaled = tree_map([&](const NamedArray& u) { return rate * u; }, updates);
    return optim::apply_updates(m, scaled);
  };
  auto step = jit(by_argument);
  for (double rate : {0.1, 0.05, 0.025}) step(model, grads, rate);
  CHECK(step.report().traces == 1);
}

TEST_CASE("training: gradient accumulation over microbatches") {
  const auto model = Model::init(random::key(0));
  const auto x = random::uniform(random::key(1), {Batch, In}, -3., 3.);
  const auto y = sin(x).rename(In, Out);

  const Axis Micro("micro", 4), Part("batch", Batch.size / Micro.size);
  auto split = [=](const NamedArray& a) { return unflatten_axis(a, Batch, {Part, Micro}); };

  struct Sums {
    NamedArray loss;
    Model grads;
  };
  auto accumulate = [=](const Model& m, const NamedArray& x, const NamedArray& y) {
    auto plus = [](const NamedArray& a, const NamedArray& b) { return a + b; };
    auto add = [&](const Sums& sums, const NamedArray& x, const NamedArray& y) {
      auto [l, grads] = value_and_grad(loss)(m, x, y);  // x, y (batch=16, ...)
      return Sums{sums.loss + l, tree_map(plus, sums.grads, grads)};
    };
    auto zero = [](const NamedArray& a) { return zeros(a.axes(), a.dtype()); };
    auto sums = fold(add, Micro)(Sums{NamedArray(0.), tree_map(zero, m)}, split(x), split(y));
    auto mean = [=](const NamedArray& a) { return a / double(Micro.size); };
    return std::pair(mean(sums.loss), tree_map(mean, sums.grads));
  };
  auto [l, grads] = jit(accumulate)(model, x, y);

  auto mean_loss = [=](const Model& m, const NamedArray& x, const NamedArray& y) {
    auto add = [&](const NamedArray& sum, const NamedArray& x, const NamedArray& y) {
      return sum + loss(m, x, y);
    };
    auto total = fold(add, Micro, {.checkpoint = "carries"})(NamedArray(0.), split(x), split(y));
    return total / double(Micro.size);
  };
  auto [l2, grads2] = jit(value_and_grad(mean_loss))(model, x, y);

  auto [expected, all] = value_and_grad(loss)(model, x, y);
  CHECK(l.item() == doctest::Approx(expected.item()));
  CHECK(l2.item() == doctest::Approx(expected.item()));
  auto minus = [](const NamedArray& a, const NamedArray& b) { return a - b; };
  CHECK(optim::global_norm(tree_map(minus, grads, all)).item() < 1e-6);
  CHECK(optim::global_norm(tree_map(minus, grads2, all)).item() < 1e-6);
}

TEST_CASE("training: mixed precision") {
  auto model = Model::init(random::key(0));
  auto x = random::uniform(random::key(1), {Batch, In}, -3., 3.);
  auto y = sin(x).rename(In, Out);
  const Policy policy("p=f32,c=bf16,o=f32");
  auto mixed = [=](const Model& m, const NamedArray& x, const NamedArray& y) {
    auto prediction = policy.cast_to_compute(m)(policy.cast_to_compute(x));
    return mean(square(policy.cast_to_output(prediction) - y));
  };
  auto [l, grads] = value_and_grad(mixed)(model, x, y);
  CHECK(grads.up.weight.dtype() == DType::f32);
  CHECK(l.dtype() == DType::f32);
  CHECK(l.item() == doctest::Approx(loss(model, x, y).item()).epsilon(0.02));
}
