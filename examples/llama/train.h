// Trains a Llama on sequences that follow a rule, on one device or a mesh, with several layouts of
// its hidden states.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "model.h"

namespace llama {

// The use of a mesh: `data` shards the batch and each weight; `model` shards the heads, the MLP and
// the vocabulary. Between layers, `model` shards nothing (all-reduce) or the positions
// (reduce-scatter).
struct Mode {
  std::string name;
  bool scatters = false, saves_activations = false;  // see Stream
  bool overlap = false;                              // see JitOptions
};

struct Run {
  Config config;
  int steps = 100;
  double learning_rate = 3e-3;
  std::string policy = "f32";
  std::optional<Mesh> mesh = {};  // none: one device, and the mode is ignored
  Mode mode = {};
  bool verbose = false;  // prints the loss occasionally
};
struct Trained {
  std::vector<double> losses;  // one for each step
  double seconds = 0;          // the fastest step
  JitReport report;
};
using State = optim::State<optim::AdamW, Llama>;

struct Layout {
  Mapping parameters, inside;
};
inline Layout layout_of(const Mesh& mesh) {
  std::vector<Mapping::Entry> parameters, inside;
  for (auto& [name, size] : mesh.axes())
    if (name == "data") {
      parameters.emplace_back("embed", "data");
      inside.emplace_back("batch", "data");
    } else {
      for (const char* axis : {"kv_heads", "mlp", "vocab"}) {
        parameters.emplace_back(axis, "model");
        inside.emplace_back(axis, "model");
      }
    }
  return {Mapping::of(parameters), Mapping::of(inside)};
}
inline Stream stream_of(const Run& run) {
  if (!run.mesh) return {};
  Stream stream{.saves_activations = run.mode.saves_activations};
  if (!run.mode.scatters) return stream;
  std::vector<Mapping::Entry> entries;
  for (auto& [name, size] : run.mesh->axes())
    name == "data" ? entries.emplace_back("batch", "data") : entries.emplace_back("pos", "model");
  stream.mapping = Mapping::of(entries);
  return stream;
}

inline auto step_of(const Run& run, const optim::AdamW& optimizer) {
  const auto layout = layout_of(run.mesh.value_or(Mesh()));
  const Policy policy(run.policy);
  auto batch_loss = [=, stream = stream_of(run), on_mesh = run.mesh.has_value()](
                        const Llama& m, const NamedArray& ids) {
    std::optional<axis_mapping> scope;
    if (on_mesh) scope.emplace(layout.inside);
    return loss(policy.cast_to_compute(m), stream, ids);
  };
  auto step = [=](const Llama& m, const State& s, const NamedArray& ids) {
    auto [l, grads] = value_and_grad(batch_loss)(m, ids);
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::tuple(optim::apply_updates(m, updates), next, l);
  };
  JitOptions options{.donate = {0, 1}};
  if (policy.compute != DType::f32) options.reduce_dtype = policy.reduce;
  if (run.mesh) {
    options.mesh = run.mesh;
    options.axis_resources = layout.parameters;
    options.overlap = run.mode.overlap;
  }

  return named_jit(step, options);
}
inline auto sharded_init(const Run& run) {
  JitOptions options;
  if (run.mesh) {
    options.mesh = run.mesh;
    options.axis_resources = layout_of(*run.mesh).parameters;
  }

  return options;
}

inline std::vector<Mode> modes() {
  std::vector<Mode> all;
  for (bool scatters : {false, true})
    for (bool saves_activations : {false, true})
      for (bool overlap : {false, true})
        all.push_back({std::string(scatters ? "reduce-scatter" : "all-reduce") +
                           (saves_activations ? ", kept" : ", again") +
                           (overlap ? ", overlapped" : ""),
                       scatters, saves_activations, overlap});
  return all;
}

inline Trained train(const Run& run) {
  const auto& config = run.config;
  const auto optimizer = optim::adamw({.learning_rate = run.learning_rate});
  auto model =
      named_jit([config = config.model](const Key& key) { return Llama::init(config, key); },
                sharded_init(run))(random::key(0));
  auto state =
      named_jit([=](const Llama& m) { return optimizer.init(m); }, sharded_init(run))(model);
  auto step = step_of(run, optimizer);
  Trained out;
  for (int i = 0; i < run.steps; ++i) {
    const auto ids = rows(config, random::fold_in(random::key(1), i)).eval();
    const auto begin = std::chrono::steady_clock::now();
    NamedArray l;
    std::tie(model, state, l) = step(model, state, ids);
    out.losses.push_back(l.item());
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    out.seconds = i == 0 ? took : std::min(out.seconds, took);
    if (run.verbose && (i % 20 == 0 || i == run.steps - 1))
      std::printf("step %d: loss %.3f\n", i, out.losses.back());
  }
  out.report = step.report();
  return out;
}
// Returns the plan of a step without running it.
inline JitReport planned(const Run& run) {
  const auto& config = run.config;
  const auto optimizer = optim::adamw({.learning_rate = run.learning_rate});
  auto model = eval_shape([&] { return Llama::init(config.model, random::key(0)); });
  auto state = eval_shape([&] { return optimizer.init(model); });
  auto ids = eval_shape([&] { return rows(config, random::key(1)); });
  return step_of(run, optimizer).plan(model, state, ids);
}

}  // namespace llama
