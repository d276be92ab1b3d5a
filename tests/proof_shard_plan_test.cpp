// Planning for meshes that are not here: a GPT of 32 layers and 6.9 billion parameters on 2048 devices.
#include <doctest/doctest.h>

#include "examples/gpt2/model.h"
#include "haliax/jit.h"
#include "haliax/optim.h"

using namespace haliax;
using Model = gpt2::Gpt2LMHeadModel;

TEST_CASE("proof: a training step on 2048 devices is planned in a moment") {
  const gpt2::Gpt2Config config{.seq_len = 2048,
                                .hidden_dim = 4096,
                                .num_layers = 32,
                                .num_heads = 32,
                                .embed_pdrop = 0,
                                .attn_pdrop = 0,
                                .resid_pdrop = 0,
                                .gradient_checkpointing = ScanCheckpoint(true)};
  const Axis Vocab("vocab", 50304), Batch("batch", 512);
  const Mapping parameters{{"embed", "data"}, {"mlp", "model"}, {"heads", "model"}, {"vocab", "model"}},
      inside{{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}, {"vocab", "model"}};
  const auto optimizer = optim::adamw();
  auto start = eval_shape([&] {
    auto m = Model::init(Vocab, config, random::key(0));
    return std::pair(m, optimizer.init(m));
  });
  const auto& [model, state] = start;
  const auto ids = eval_shape([&] { return zeros({Batch, config.Pos()}, DType::i32); });

  auto step = [&](const Model& m, const auto& s, const NamedArray& ids) {
    auto loss = [&](const Model& m, const NamedArray& ids) {
      axis_mapping scope(inside);
      return nn::linear_next_token_loss("position", m.hidden_states(ids), m.head(), ids, "embed", "vocab", {.walked = "position"})
          .loss;
    };
    auto [l, grads] = value_and_grad(loss)(m, ids);
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::tuple(l, optim::apply_updates(m, updates), next);
  };
  JitOptions options{.donate = {0, 1}, .mesh = Mesh{{{"data", 256}, {"model", 8}}}, .axis_resources = parameters};
  options.in = Mappings::of_each({parameters, parameters, inside});
  options.out = Mappings::of_each({std::nullopt, parameters, parameters});
  const auto f = named_jit(step, options);
  const auto report = f.plan(model, state, ids);

  CHECK(report.trace_s + report.compile_s < 2);
  CHECK(report.sent_bytes > 0);

  // What a device holds: weights and the two moments, 12 bytes each, cut as far as they are mapped; its rows of ids.
  double bytes = 4;  // the number of the step
  Walk w = walk_of(model, {.paths = true});
  for (auto* a : w.arrays) {
    double n = 12 * double(a->size());
    if (a->has_axis("embed")) n /= 256;
    if (a->has_axis("mlp") || a->has_axis("heads") || a->has_axis("vocab")) n /= 8;
    bytes += n;
  }
  bytes += double(Batch.size / 256 * config.seq_len * 4);
  CHECK(std::abs(double(report.argument_bytes) - bytes) < 1e-3 * bytes);
  // One layer at a time is whole, and the residual stream of each layer is kept.
  const double stream = 2. * 2048 * 4096 * 4;
  CHECK(report.peak_bytes > 32 * stream);
  CHECK(report.peak_bytes < 6e9);
}
