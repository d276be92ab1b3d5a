// The GPT-2 of examples/gpt2 without dropout, and its training step, for tests that plan it or
// train it on meshes.
#pragma once
#include <utility>
#include <vector>

#include "examples/models/gpt2.h"
#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/optim.h"

namespace haliax::testing {

using Model = models::GPT2LMHeadModel;

struct Gpt2 {
  models::GPT2Config config = {};
  Axis Batch;

  Gpt2(models::GPT2Config c, std::int64_t vocab, std::int64_t batch)
      : config(c), Batch("batch", batch) {
    config.vocab_size = vocab;
    config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  }
  Model init() const { return Model::init(config, random::key(0)); }
  NamedArray ids() const {
    return random::randint(random::key(1), {Batch, config.Pos()}, 0, int(config.vocab_size));
  }
};

inline NamedArray next_token_loss(const Model& m, const NamedArray& ids) {
  return nn::next_token_loss("pos", "vocab", m(ids), ids);
}
// Wraps loss(model, ids) in an `axis_mapping` of its own.
template <class Loss> auto under(const Mapping& inside, Loss loss) {
  return [=](const Model& m, const NamedArray& ids) {
    axis_mapping compute(inside);
    return loss(m, ids);
  };
}
// Plans a training step with AdamW. `params` shards the parameters and the optimizer state, and the
// loss is computed under `inside`.
template <class Loss = decltype(&next_token_loss)>
JitReport plan_training(const Gpt2& g, const Mesh& mesh, const Mapping& params,
                        const Mapping& inside, JitOptions options = {},
                        Loss loss = next_token_loss) {
  const auto optimizer = optim::adamw();
  auto step = [=](const Model& model, const auto& state, const NamedArray& ids) {
    auto [l, grads] = value_and_grad(under(inside, loss))(model, ids);
    auto [updates, next] = optimizer.update(grads, state, model);
    return std::tuple(l, optim::apply_updates(model, updates), next);
  };
  const auto [model, state, ids] = eval_shape([&] {
    auto m = g.init();
    return std::tuple(m, optimizer.init(m), g.ids());
  });
  options.donate = {0, 1};
  options.mesh = mesh;
  options.axis_resources = params;
  options.in = Mappings::of_each({params, params, inside});
  options.out = Mappings::of_each({std::nullopt, params, params});
  return named_jit(step, options).plan(model, state, ids);
}

}  // namespace haliax::testing
