// The training code of the Levanter introduction: the loss of one example, its mean over a batch by vmap, and a step of an
// optimiser.
#pragma once
#include "model.h"

namespace gpt2 {

// The loss of one example: input_ids (position) -> a 0-d array. The model is cast to the policy's compute dtype, its logits to
// its output dtype.
inline NamedArray compute_loss(const Gpt2LMHeadModel& model, const NamedArray& input_ids, const Key& key,
                               const Policy& policy = {}, bool inference = false) {
  auto m = policy.cast_to_compute(model);
  auto logits = policy.cast_to_output(m(input_ids, key, inference));
  return nn::next_token_loss("position", model.Vocab(), logits, input_ids);
}
// The same without ever holding all logits: the positions are walked in chunks.
inline NamedArray compute_chunked_loss(const Gpt2LMHeadModel& model, const NamedArray& input_ids, const Key& key,
                                       const Policy& policy = {}, bool inference = false, ChunkOptions chunks = {}) {
  auto m = policy.cast_to_compute(model);
  auto Pos = input_ids.resolve_axis("position");
  auto losses = nn::chunked_cross_entropy(m.hidden_states(input_ids, key, inference), m.head(), roll(input_ids, -1, Pos), "embed",
                                          model.Vocab(), Pos, {.chunks = chunks, .logit_dtype = policy.output});
  return mean(losses, {}, {.where = arange(Pos) < Pos.size - 1});
}

struct LossOptions {
  static constexpr bool is_static = true;
  Policy policy = {};
  bool chunked = false;
  ChunkOptions chunks = {};
  friend bool operator==(const LossOptions&, const LossOptions&) = default;
};
// The mean over a batch: input_ids (batch, position), one key for each example.
inline NamedArray train_batch_loss(const Gpt2LMHeadModel& model, const NamedArray& input_ids, const Key& keys,
                                   const LossOptions& options = {}) {
  auto one = [&](const Gpt2LMHeadModel& m, const NamedArray& ids, const Key& key) {
    return options.chunked ? compute_chunked_loss(m, ids, key, options.policy, false, options.chunks)
                           : compute_loss(m, ids, key, options.policy);
  };
  return mean(vmap(one, "batch")(model, input_ids, keys), "batch");
}

template <class Optimizer>
using OptState = decltype(std::declval<const Optimizer&>().init(std::declval<const Gpt2LMHeadModel&>()));
template <class Optimizer>
struct Stepped {
  Gpt2LMHeadModel model;
  OptState<Optimizer> opt_state;
  NamedArray loss;
};
// step(model, opt_state, input_ids, keys) -> what comes after it. Model and state are donated.
template <class Optimizer>
auto make_train_step(const Optimizer& optimizer, LossOptions loss_options = {}) {
  auto loss = [=](const Gpt2LMHeadModel& m, const NamedArray& ids, const Key& keys) {
    return train_batch_loss(m, ids, keys, loss_options);
  };
  auto step = [=](const Gpt2LMHeadModel& model, const OptState<Optimizer>& opt_state, const NamedArray& input_ids,
                  const Key& keys) {
    auto [l, grads] = value_and_grad(loss)(model, input_ids, keys);
    auto [updates, next] = optimizer.update(grads, opt_state, model);
    return Stepped<Optimizer>{optim::apply_updates(model, updates), next, l};
  };
  return step;
}

}  // namespace gpt2
