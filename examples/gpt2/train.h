// The training code of the Levanter introduction: the loss of one example, its mean over a batch by
// vmap, and an optimizer step.
#pragma once
#include "examples/models/gpt2.h"

namespace gpt2 {

using namespace haliax;
using Model = models::GPT2LMHeadModel;

struct LossOptions {
  static constexpr bool is_static = true;
  Policy policy = {};
  bool full_logits = false;  // materialize the logits of all positions
  ChunkOptions chunks = {};  // otherwise: the chunks of positions
  friend bool operator==(const LossOptions&, const LossOptions&) = default;
};
// Returns the loss of one example: input_ids (pos) -> (). The model is cast to the policy's
// compute dtype, and its logits to the output dtype. Unless `full_logits` is set, logits are not
// materialized: the head is part of the loss, which iterates over chunks of positions.
inline NamedArray compute_loss(const Model& model, const NamedArray& input_ids, const Key& key,
                               const LossOptions& options = {}) {
  auto m = options.policy.cast_to_compute(model);
  auto Vocab = model.config.Vocab();
  if (options.full_logits) {
    auto logits = options.policy.cast_to_output(m(input_ids, key));
    return nn::next_token_loss("pos", Vocab, logits, input_ids);
  }
  auto x = m.transformer(input_ids, key);
  return nn::linear_next_token_loss(
             "pos", x, m.head(), input_ids, "embed", Vocab,
             {.chunks = options.chunks, .logit_dtype = options.policy.output})
      .loss;
}
// Returns the mean over a batch: input_ids (batch, pos), one key for each example.
inline NamedArray train_batch_loss(const Model& model, const NamedArray& input_ids, const Key& keys,
                                   const LossOptions& options = {}) {
  auto one = [&](const Model& m, const NamedArray& ids, const Key& key) {
    return compute_loss(m, ids, key, options);
  };
  return mean(vmap(one, "batch")(model, input_ids, keys), "batch");
}

template <class Optimizer> using OptState = optim::State<Optimizer, Model>;
template <class Optimizer> struct Stepped {
  Model model;
  OptState<Optimizer> opt_state;
  NamedArray loss;
};
// step(model, opt_state, input_ids, keys) -> the updated model and state, and the loss. Model and
// state are donated.
template <class Optimizer>
auto make_train_step(const Optimizer& optimizer, LossOptions loss_options = {}) {
  auto loss = [=](const Model& m, const NamedArray& ids, const Key& keys) {
    return train_batch_loss(m, ids, keys, loss_options);
  };
  auto step = [=](const Model& model, const OptState<Optimizer>& opt_state,
                  const NamedArray& input_ids, const Key& keys) {
    auto [l, grads] = value_and_grad(loss)(model, input_ids, keys);
    auto [updates, next] = optimizer.update(grads, opt_state, model);
    return Stepped<Optimizer>{optim::apply_updates(model, updates), next, l};
  };
  return step;
}

}  // namespace gpt2
