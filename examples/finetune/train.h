// A training step with gradient accumulation, for all parameters or for adapters.
#pragma once
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "examples/models/layout.h"
#include "haliax/haliax.h"

namespace finetune {

using namespace haliax;

struct TrainOptions {
  std::int64_t steps = 100, batch = 4, length = 128, accumulate = 1, rank = 0, warmup = 10;
  std::vector<std::string> modules;  // layers with an adapter, by path
  double learning_rate = 1e-4, weight_decay = 0, clip = 1;
  std::optional<Mesh> mesh = {};
};

inline auto optimizer_of(const TrainOptions& o) {
  auto rate = optim::warmup_cosine_decay_schedule(0, o.learning_rate, o.warmup,
                                                  std::max(o.steps, o.warmup + 1));
  return optim::chain(optim::clip_by_global_norm(o.clip),
                      optim::adamw(rate, {.weight_decay = o.weight_decay}));
}

// Returns the mean loss of packed sequences: ids and segments (batch, pos).
template <class Model> auto batch_loss(const TrainOptions& o) {
  return [mesh = o.mesh](const Model& m, const NamedArray& ids, const NamedArray& segments) {
    std::optional<axis_mapping> scope;
    if (mesh) scope.emplace(models::compute_mapping(*mesh));
    return m.loss(ids, segments).astype(DType::f32);
  };
}

// Returns step(model, state, ids, segments) -> the updated model and state, the loss, and the norm
// of the gradients. ids and segments (accumulate, batch, pos): the gradients are the mean over
// `accumulate`, one after the other. Model and state are donated.
template <class Model, class Optimizer>
auto make_step(const TrainOptions& o, const Optimizer& optimizer) {
  using State = optim::State<Optimizer, Model>;
  const LeafFilter trained = o.rank > 0 ? LeafFilter("lora") : LeafFilter();
  auto step = [=, loss = batch_loss<Model>(o)](const Model& m, const State& s,
                                               const NamedArray& ids, const NamedArray& segments) {
    using Sums = std::pair<NamedArray, Model>;
    auto add = [&](const Sums& sums, const NamedArray& part, const NamedArray& documents) {
      auto [l, grads] = value_and_grad(loss, trained)(m, part, documents);
      auto plus = [](const NamedArray& a, const NamedArray& b) { return a + b; };
      return Sums(sums.first + l, tree_map(plus, sums.second, grads));
    };
    auto zero = [](const NamedArray& a) { return zeros_like(a); };
    auto sums = fold(add, "accumulate")(Sums(zeros({}), tree_map(zero, trainable(m, trained))), ids,
                                        segments);
    const double parts = double(ids.axis_size("accumulate"));
    auto grads = tree_map([&](const NamedArray& a) { return a / parts; }, sums.second);
    auto norm = optim::global_norm(grads);
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::tuple(optim::apply_updates(m, updates), next, sums.first / parts, norm);
  };
  JitOptions options{.donate = {0, 1}};
  if (o.mesh) {
    options.mesh = o.mesh;
    options.axis_resources = models::parameter_mapping(*o.mesh);
  }
  return named_jit(step, options);
}

}  // namespace finetune
