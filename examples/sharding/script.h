// The training script of the Levanter introduction: one model, one loss, and five layouts on
// devices.
#pragma once
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "examples/models/gpt2.h"

namespace sharding {

using namespace haliax;
using Model = models::GPT2LMHeadModel;

// ---- layouts ----
struct Layout {
  std::string name;
  std::optional<Mesh> mesh = {};  // none: one device
  // Sharding of parameters and optimizer state; none: replicated.
  std::optional<Mapping> params = {};
  std::optional<Mapping> compute = {};        // entered inside the loss
  std::optional<Mappings> in = {}, out = {};  // mappings of a step, if they differ from `params`
  Policy policy = {};

  JitOptions options() const { return {.mesh = mesh, .axis_resources = params}; }
  JitOptions step_options() const {
    return {.donate = {0, 1},
            .mesh = mesh,
            .axis_resources = params,
            .in = in,
            .out = out,
            .reduce_dtype = policy.reduce};
  }
};
inline Layout one_device() { return {.name = "one device"}; }
// Uses all devices; the size -1 means as many as there are.
inline Layout data_parallel() {
  const Mapping replicated, by_batch{{"batch", "data"}};
  return {.name = "data parallel",
          .mesh = Mesh{{{"data", -1}}},
          .in = Mappings::of_each({replicated, replicated, by_batch, by_batch}),
          .out = replicated};
}
inline Layout fully_sharded() {
  return {.name = "fully sharded",
          .mesh = Mesh{{{"data", -1}}},
          .params = Mapping{{"embed", "data"}},
          .compute = Mapping{{"batch", "data"}}};
}
inline Layout mixed_precision(const char* policy = "compute=bfloat16,parameter=f32,output=f32") {
  auto layout = fully_sharded();
  layout.name = "mixed precision";
  layout.policy = Policy(policy);
  return layout;
}
inline Layout wider_sums() {  // gradients are reduced in f32
  auto layout = mixed_precision("compute=bfloat16,parameter=f32,output=f32,reduce=f32");
  layout.name = "mixed, sums in f32";
  return layout;
}
inline Layout tensor_parallel(int model_axis_size = 2) {
  return {.name = "tensor parallel",
          .mesh = Mesh{{{"data", -1}, {"model", model_axis_size}}},
          .params = Mapping{{"embed", "data"}, {"mlp", "model"}, {"heads", "model"}},
          .compute = Mapping{{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}}};
}

// ---- the script: equal for all layouts ----
// Returns the loss of one example: input_ids (pos) -> ().
inline NamedArray compute_loss(const Layout& layout, const Model& model,
                               const NamedArray& input_ids, const Key& key) {
  std::optional<axis_mapping> scope;
  if (layout.compute) scope.emplace(*layout.compute);
  auto m = layout.policy.cast_to_compute(model);
  auto pred_y = layout.policy.cast_to_output(m(input_ids, key));
  return nn::next_token_loss("pos", model.config.Vocab(), pred_y, input_ids);
}
// Returns the mean over a batch: input_ids (batch, pos), a key for each example.
inline NamedArray train_batch_loss(const Layout& layout, const Model& model,
                                   const NamedArray& input_ids, const Key& keys) {
  auto one = [&](const Model& m, const NamedArray& ids, const Key& key) {
    return compute_loss(layout, m, ids, key);
  };
  auto per_ex_loss = vmap(one, "batch")(model, input_ids, keys);
  return mean(per_ex_loss, "batch").scalar();
}
using BatchLoss = NamedArray (*)(const Layout&, const Model&, const NamedArray&, const Key&);

inline optim::AdamW optimizer() { return optim::adamw({.learning_rate = 1e-2}); }
using OptState = optim::State<optim::AdamW, Model>;
struct Stepped {
  NamedArray loss;
  Model model;
  OptState opt_state;
};

struct Sizes {
  models::GPT2Config config;
  Axis Batch;

  Model init_model(const Policy& policy, const Key& key) const {
    return policy.cast_to_param(Model::init(config, key));
  }
  NamedArray some_ids() const {
    return random::randint(random::key(100), {Batch, config.Pos()}, 0, int(config.vocab_size));
  }
};
inline auto jitted_step(const Layout& layout, BatchLoss batch_loss) {
  auto train_step = [=](const Model& model, const OptState& opt_state, const NamedArray& input_ids,
                        const Key& keys) {
    auto loss_of = [&](const Model& m) { return batch_loss(layout, m, input_ids, keys); };
    auto [loss, grads] = value_and_grad(loss_of)(model);
    auto [updates, next] = optimizer().update(grads, opt_state, model);
    return Stepped{loss, optim::apply_updates(model, updates), next};
  };
  return named_jit(train_step, layout.step_options());
}

// A few steps on one batch, with the reports of their plans.
struct RunResult {
  std::vector<double> losses;
  Model model;
  JitReport init, state, step;
};
inline RunResult run(const Layout& layout, const Sizes& sizes, int steps,
                     BatchLoss batch_loss = train_batch_loss) {
  auto [model_key, training_key] = random::split<2>(random::key(0));
  // Parameters and optimizer state are initialized sharded: each device initializes only its own
  // shard.
  auto init_model =
      named_jit([=](const Key& k) { return sizes.init_model(layout.policy, k); }, layout.options());
  auto init_state = named_jit([](const Model& m) { return optimizer().init(m); }, layout.options());
  auto model = init_model(model_key);
  auto opt_state = init_state(model);

  auto step = jitted_step(layout, batch_loss);
  RunResult out;
  for (int i = 0; i < steps; ++i) {
    auto [my_key, next_key] = random::split<2>(training_key);
    training_key = next_key;
    auto batch_key = random::split(my_key, sizes.Batch);
    auto after = step(model, opt_state, sizes.some_ids(), batch_key);
    model = after.model;
    opt_state = after.opt_state;
    out.losses.push_back(after.loss.item());
  }
  out.model = model;
  out.init = init_model.report();
  out.state = init_state.report();
  out.step = step.report();
  return out;
}
// Plans the same step with shapes instead of arrays, on a mesh of any size.
inline JitReport plan(const Layout& layout, const Sizes& sizes) {
  auto [model, opt_state, ids, keys] = eval_shape([&] {
    auto m = sizes.init_model(layout.policy, random::key(0));
    return std::tuple(m, optimizer().init(m), sizes.some_ids(),
                      random::split(random::key(0), sizes.Batch));
  });
  return jitted_step(layout, train_batch_loss).plan(model, opt_state, ids, keys);
}

}  // namespace sharding
