// Plans for meshes that do not exist on this machine: a GPT with 32 layers and 6.9 billion
// parameters on 2048 devices.
#include <doctest/doctest.h>

#include "support/gpt2.h"
#include "support/memory.h"

using namespace haliax;

TEST_CASE("proof: a training step on 2048 devices is planned in seconds, with less than 1 GiB") {
  const testing::Gpt2 gpt({.n_positions = 2048,
                           .n_embd = 4096,
                           .n_layer = 32,
                           .n_head = 32,
                           .gradient_checkpointing = ScanCheckpoint(true)},
                          50304, 512);
  const Mapping parameters{
      {"embed", "data"}, {"mlp", "model"}, {"heads", "model"}, {"vocab", "model"}},
      inside{{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}, {"vocab", "model"}};
  auto chunked = [](const testing::Model& m, const NamedArray& ids) {
    return nn::linear_next_token_loss("pos", m.transformer(ids), m.head(), ids, "embed", "vocab",
                                      {.walked = "pos"})
        .loss;
  };
  JitReport report;
  const auto grown = peak_growth_of([&] {
    report = testing::plan_training(gpt, Mesh{{{"data", 256}, {"model", 8}}}, parameters, inside,
                                    {}, chunked);
  });
  CHECK(report.trace_s + report.compile_s < (sanitized ? 20 : 2));
  CHECK(grown > 0);
  CHECK(grown < std::int64_t(1) << 30);
  CHECK(report.sent_bytes > 0);

  // The arguments of a device: weights and two moments, 12 bytes per parameter, sharded as the
  // mapping specifies, and its rows of ids.
  double bytes = 4;  // the step count
  const auto model = eval_shape([&] { return gpt.init(); });
  Walk w = walk_of(model, {.paths = true});
  for (auto* a : w.arrays) {
    double n = 12 * double(a->size());
    if (a->has_axis("embed")) n /= 256;
    if (a->has_axis("mlp") || a->has_axis("heads") || a->has_axis("vocab")) n /= 8;
    bytes += n;
  }
  bytes += double(gpt.Batch.size / 256 * gpt.config.n_positions * 4);
  CHECK(std::abs(double(report.argument_bytes) - bytes) < 1e-3 * bytes);
  // One layer at a time is unsharded, and the residual stream of each layer is saved.
  const double stream = 2. * 2048 * 4096 * 4;
  CHECK(report.peak_bytes > 32 * stream);
  CHECK(report.peak_bytes < 6e9);
}

TEST_CASE("proof: planning for 4096 devices takes at most 1.5 times as long as for 8") {
  const testing::Gpt2 gpt({.n_positions = 512,
                           .n_embd = 1024,
                           .n_layer = 64,
                           .n_head = 16,
                           .gradient_checkpointing = ScanCheckpoint(true)},
                          50304, 4096);
  const Mapping parameters{{"embed", "data"}, {"mlp", "model"}, {"heads", "model"}},
      inside{{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}};
  auto seconds = [&](int data, int model) {
    const auto r = testing::plan_training(gpt, Mesh{{{"data", data}, {"model", model}}}, parameters,
                                          inside, {});
    return r.trace_s + r.compile_s;
  };
  double many = 1e9,
         few = 1e9;  // measured alternately, so that other load on the machine slows both
  for (int repeat = 0; repeat < 5; ++repeat) {
    few = std::min(few, seconds(4, 2));
    many = std::min(many, seconds(512, 8));
  }

  CHECK(many < (sanitized ? 30 : 3));
  CHECK(many < (sanitized ? 4 : 1.5) * few);
}
