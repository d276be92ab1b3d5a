// Compares optimizers and schedules with the results of Optax in
// tests/golden/optimizers, which make.py there writes.
#include <doctest/doctest.h>

#include <limits>
#include <span>

#include "haliax/haliax.h"
#include "haliax/optimizers.h"
#include "support/golden_dir.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const TensorFile& recorded() {
  static const TensorFile file = read_safetensors(golden_dir() + "/optimizers/results.safetensors");
  return file;
}
NamedArray values_of(const std::string& name, const AxisSpec& axes) {
  auto& data = recorded().at(name).data;
  return array(std::span(reinterpret_cast<const float*>(data.data()), data.size() / 4), axes);
}

struct Layer {
  NamedArray w;
};
struct Params {
  NamedArray embed, up, down, bias;
  nn::Stacked<Layer> layers;
};
NamedArray number(const AxisSpec& axes) { return astype(arange(axes), DType::f32); }
Params start() {
  auto make = [](const AxisSpec& axes) { return sin(number(axes) + 1.) * 0.5; };
  const Axis Layers("layers", 2);
  return {make({Axis("a", 5), Axis("b", 4)}),
          make({Axis("a", 4), Axis("b", 6)}),
          make({Axis("a", 6), Axis("b", 3)}),
          make(Axis("b", 3)),
          {{make({Layers, Axis("a", 4), Axis("b", 3)})}, Layers}};
}
Params gradients(const Params& params, int step) {
  return tree_map(
      [&](const NamedArray& p) { return cos(0.7 * number(p.axes()) + double(step)) + 0.1 * p; },
      params);
}

// Runs 20 steps. `change(step, state)` may change the state before a step.
template <class Optimizer, class Change>
Params run(const Optimizer& optimizer, const Change& change) {
  auto params = start();
  auto state = optimizer.init(params);
  for (int step = 0; step < 20; ++step) {
    change(step, state);
    auto [updates, next] = optimizer.update(gradients(params, step), state, params);
    params = optim::apply_updates(params, updates);
    state = next;
    Leaves all = flatten(params);
    for (auto& a : flatten(state)) all.push_back(a);
    for (auto& a : all)
      if (!a.empty()) a.eval();
  }
  return params;
}
template <class Optimizer> Params run(const Optimizer& optimizer) {
  return run(optimizer, [](int, auto&) {});
}
void check(const std::string& name, const Params& got, double tolerance = 2e-5,
           const std::string& except = "") {
  CAPTURE(name);
  const std::pair<const char*, NamedArray> leaves[] = {{"embed", got.embed},
                                                       {"up", got.up},
                                                       {"down", got.down},
                                                       {"bias", got.bias},
                                                       {"layers", got.layers.stacked.w}};
  for (auto& [leaf, value] : leaves) {
    CAPTURE(std::string(leaf));
    if (leaf != except)
      CHECK(difference(value, values_of(name + "/" + leaf, value.axes()), tolerance) == "");
  }
}

}  // namespace

TEST_CASE("optimizers: lion, rmsprop and adafactor match Optax over 20 steps") {
  using namespace optim;
  const double inf = std::numeric_limits<double>::infinity();
  check("lion", run(lion({.learning_rate = 0.01, .weight_decay = 0.1})));
  check("lion_scheduled", run(lion({.learning_rate = linear_schedule(0.01, 0, 20)})));
  check("rmsprop", run(rmsprop({.learning_rate = 0.01})));
  check("rmsprop_momentum", run(rmsprop({.learning_rate = 0.01,
                                         .decay = 0.95,
                                         .eps = 1e-6,
                                         .initial_scale = 1,
                                         .momentum = 0.9,
                                         .nesterov = true})));
  check("rmsprop_centered", run(rmsprop({.learning_rate = 0.01, .eps = 1e-3, .centered = true})),
        1e-4);
  check("rmsprop_corrected",
        run(rmsprop({.learning_rate = 0.01, .eps_in_sqrt = false, .bias_correction = true})));
  check("adafactor", run(adafactor({.learning_rate = 0.01, .min_dim_size_to_factor = 4})));
  check("adafactor_momentum", run(adafactor({.learning_rate = 0.01,
                                             .min_dim_size_to_factor = 3,
                                             .multiply_by_parameter_scale = false,
                                             .clipping_threshold = inf,
                                             .momentum = 0.9,
                                             .weight_decay_rate = 0.01})));
  check("adafactor_unfactored", run(adafactor({.learning_rate = 0.01, .factored = false})));
}

TEST_CASE("optimizers: muon matches Optax for matrices, stacked matrices and vectors") {
  check("muon", run(optim::muon({.learning_rate = 0.02})), 1e-4);
  check("muon_plain",
        run(optim::muon({.learning_rate = 0.02,
                         .weight_decay = 0.1,
                         .nesterov = false,
                         .consistent_rms = 0.2,
                         .adam_learning_rate = 0.001})),
        1e-4);
  // Optax adds the dual norms of all matrices of a stack. Here, layers are independent.
  check("muon_adaptive", run(optim::muon({.learning_rate = 0.02, .ns_steps = 3, .adaptive = true})),
        1e-4, "layers");
}

TEST_CASE("optimizers: transformations match Optax over 20 steps") {
  using namespace optim;
  check("adam_nesterov", run(chain(scale_by_adam(0.9, 0.999, 1e-8, true), scale(-0.01))));
  check("clip_by_block_rms", run(chain(clip_by_block_rms(0.5), scale(-0.1))));
  check("clip", run(chain(optim::clip(0.3), scale_by_learning_rate(0.1))));
  check("sign", run(chain(scale_by_sign(), scale(-0.01))));
  check("param_block_rms", run(chain(scale_by_param_block_rms(0.2), scale(-0.1))));
  check("trust_ratio", run(chain(scale_by_trust_ratio(0.1, 0.5, 1e-3), scale(-0.1))));
  check("ema", run(chain(ema(0.8), scale(-0.1))));
  check("trace", run(chain(optim::trace(0.8, true), scale(-0.01))));
  check("scheduled", run(chain(scale_by_rms(), scale_by_learning_rate(warmup_cosine_decay_schedule(
                                                   0.1, 1, 10, 100, 0.05)))));
  check("rmsprop_centered", run(chain(scale_by_stddev(0.9, 1e-3), scale(-0.01))), 1e-4);
  const auto frozen = run(chain(scale_by_adam(), set_to_zero()));
  CHECK(array_equal(frozen.up, start().up));
  auto is_matrix = [](const std::string&, const NamedArray& p) { return p.axes().size() == 2; };
  check("masked", run(masked(lion({.learning_rate = 0.01}), is_matrix)));
}

TEST_CASE("multi_transform: labels select optimizers as in Optax") {
  auto label = [](const std::string&, const NamedArray& p) {
    return std::string(p.axes().size() > 1 ? "lion" : "sgd");
  };
  auto lion = optim::labeled("lion", optim::lion({.learning_rate = 0.01}));
  auto sgd = optim::labeled("sgd", optim::sgd({.learning_rate = 0.1, .momentum = 0.9}));
  check("multi_transform", run(optim::multi_transform(label, lion, sgd)));
  raises([&] { optim::multi_transform(label, lion).init(start()); },
         {"[multi_transform] the label of bias is sgd", "no optimizer"});
}

TEST_CASE("inject_hyperparams: values are read and set in the state, and schedules are computed") {
  auto make = [](const optim::Hyperparams& h) {
    return optim::adamw({.learning_rate = h["learning_rate"], .weight_decay = 0.1});
  };
  auto optimizer = optim::inject_hyperparams(make, {{"learning_rate", 0.01}});
  auto lower_rate = [](int step, auto& state) {
    if (step == 10) state.hyperparams["learning_rate"] = 0.001;
  };
  check("injected", run(optimizer, lower_rate));
  auto scheduled =
      optim::inject_hyperparams(make, {{"learning_rate", optim::linear_schedule(0.1, 1, 90, 10)}});
  check("injected_schedule", run(scheduled));

  auto state = optimizer.init(start());
  CHECK(state.hyperparams["learning_rate"].item() == 0.01f);
  CHECK(tree_paths(state)[1] == "hyperparams.learning_rate");
  raises([&] { state.hyperparams["learning_rat"]; },
         {"[inject_hyperparams] there is no hyperparameter learning_rat",
          "did you mean learning_rate?"});
  raises(
      [&] {
        optim::inject_hyperparams(make, {{"learning_rate", 1.}, {"learning_rate", 2.}})
            .init(start());
      },
      {"the name learning_rate is given twice"});
  // A new value does not trace the step again.
  auto step = jit([&](const Params& p, const optim::State<decltype(optimizer), Params>& s) {
    auto [updates, next] = optimizer.update(gradients(p, 0), s, p);
    return std::pair(optim::apply_updates(p, updates), next);
  });
  auto params = start();
  for (double rate : {0.1, 0.2}) {
    state.hyperparams["learning_rate"] = rate;
    auto [p, next] = step(params, state);
    CHECK(next.hyperparams["learning_rate"].item() == float(rate));
    CHECK(difference(p.bias,
                     optim::apply_updates(
                         params, optimizer.update(gradients(params, 0), state, params).first)
                         .bias,
                     1e-6) == "");
  }
  CHECK(step.report().traces == 1);
  // Other hyperparameters.
  auto clipped = optim::inject_hyperparams(
      [](const optim::Hyperparams& h) {
        return optim::chain(optim::clip_by_global_norm(h["max_norm"]),
                            optim::add_decayed_weights(h["decay"]), optim::scale(-h["rate"]));
      },
      {{"max_norm", 0.5}, {"decay", 0.1}, {"rate", 0.2}});
  auto plain = optim::chain(optim::clip_by_global_norm(0.5), optim::add_decayed_weights(0.1),
                            optim::scale(-0.2));
  CHECK(difference(run(clipped).up, run(plain).up, 1e-6) == "");
}

TEST_CASE("schedules: match Optax at steps before, at and after their boundaries") {
  using namespace optim;
  const std::vector<int> counts{0, 1, 2, 5, 9, 10, 11, 25, 50, 99, 100, 101, 150, 1000};
  const std::pair<const char*, Schedule> all[] = {
      {"constant", constant_schedule(0.25)},
      {"linear", linear_schedule(0.1, 1, 90, 10)},
      {"polynomial", polynomial_schedule(1, 0.1, 2.5, 100, 5)},
      {"cosine", cosine_decay_schedule(0.5, 100, 0.1, 2)},
      {"exponential", exponential_decay(1, 20, 0.5, {.transition_begin = 10})},
      {"staircase", exponential_decay(
                        1, 20, 0.5, {.transition_begin = 10, .staircase = true, .end_value = 0.1})},
      {"piecewise", piecewise_constant_schedule(1, {{10, 0.5}, {100, 0.1}})},
      {"join", join_schedules({linear_schedule(0, 1, 10), cosine_decay_schedule(1, 90),
                               constant_schedule(0.01)},
                              {10, 100})},
      {"warmup_constant", warmup_constant_schedule(0.1, 1, 50)},
      {"warmup_cosine", warmup_cosine_decay_schedule(0.1, 1, 10, 100, 0.05)},
      {"warmup_exponential",
       warmup_exponential_decay_schedule(0, 1, 10, 20, 0.5, {.end_value = 0.01})}};
  for (auto& [name, schedule] : all) {
    CAPTURE(name);
    auto expected =
        values_of(std::string("schedule/") + name, Axis("count", std::int64_t(counts.size())))
            .doubles();
    for (std::size_t k = 0; k < counts.size(); ++k) {
      CAPTURE(counts[k]);
      auto value = schedule(full({}, counts[k], DType::i32));
      CHECK(value.dtype() == DType::f32);
      CHECK(is_near(value.item(), expected[k], 1e-6));
    }
  }
  auto inverse = inv_sqrt_decay_schedule(2, 100, 0, 0.5);
  for (auto [count, value] : {std::pair{0, 2.}, {100, 2.}, {400, 1.}, {10000, 0.5}})
    CHECK(is_near(inverse(NamedArray(double(count))).item(), value, 1e-6));
  raises([] { cosine_decay_schedule(1, 0); }, {"[cosine_decay_schedule] decay_steps is 0"});
  raises([] { join_schedules({constant_schedule(1)}, {3}); }, {"[join_schedules] there are 1"});
  raises([] { warmup_cosine_decay_schedule(0, 1, 10, 10); }, {"decay_steps includes the warmup"});
  raises([] { piecewise_constant_schedule(1, {{3, -1}}); }, {"the factor of step 3 is -1"});
  raises([] { inv_sqrt_decay_schedule(1, 0); }, {"timescale is 0"});
}

TEST_CASE("optimizers: 16-bit states are rounded once, and leaves without a gradient are skipped") {
  struct Mixed {
    NamedArray w;
    NamedArray ids;
    Frozen<NamedArray> scale;
  };
  const Axis A("a", 6), B("b", 4);
  Mixed m{astype(full({A, B}, 1.), DType::bf16), arange(A), {ones({A, B})}};
  Mixed g{astype(full({A, B}, 0.5), DType::bf16), {}, {}};
  auto check_one = [&](const auto& optimizer) {
    auto state = optimizer.init(m);
    auto [u, next] = optimizer.update(g, state, m);
    CHECK(u.w.dtype() == DType::bf16);
    CHECK(u.ids.empty());
    CHECK(u.scale.value.empty());
    CHECK(all(isfinite(u.w)).item() == 1);
    auto p = optim::apply_updates(m, u);
    CHECK(p.w.dtype() == DType::bf16);
    CHECK(difference(p.ids, m.ids, 0) == "");
  };
  check_one(optim::lion());
  check_one(optim::rmsprop());
  check_one(optim::adafactor({.learning_rate = 1e-2, .min_dim_size_to_factor = 4}));
  check_one(optim::muon());
  raises(
      [&] {
        Mixed vector{ones(A), {}, {}};
        auto s = optim::scale_by_muon().init(vector);
        optim::scale_by_muon().update(vector, s, vector);
      },
      {"[scale_by_muon]", "is not a matrix"});
}

TEST_CASE("muon: the weight of a linear layer is a matrix from its inputs to its outputs") {
  const Axis Heads("heads", 2), Size("size", 3), Embed("embed", 4);
  auto key = random::key(0);
  struct Model {
    nn::Linear q;
  };
  Model model{nn::Linear::init(Embed, {Heads, Size}, key, {.use_bias = false})};
  Model g{model};
  g.q.weight = random::normal(key, model.q.weight.axes());
  auto muon = optim::scale_by_muon();
  auto [u, next] = muon.update(g, muon.init(model), model);
  // The same matrix, flattened, as (reduction, output).
  struct Flat {
    NamedArray w;
  };
  Flat flat{rearrange(flatten_axes(g.q.weight, {"heads", "size"}, "out"), {"embed", "out"})};
  auto [v, after] = muon.update(flat, muon.init(flat), flat);
  auto got = rearrange(flatten_axes(u.q.weight, {"heads", "size"}, "out"), {"embed", "out"});
  CHECK(difference(got, v.w, 1e-5) == "");
}
