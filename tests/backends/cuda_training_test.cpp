// Training steps of a small GPT-2 on a simulated GPU: scores as tiles, matmuls, a graph, AdamW.
#include <doctest/doctest.h>

#include "backends/cuda/sim/sim.h"
#include "examples/gpt2/train.h"
#include "haliax/haliax.h"
#include "support/gpt2.h"

using namespace haliax;
using namespace haliax::testing;

TEST_CASE("cuda training: steps of GPT-2 in bf16 match the losses of the cpu") {
  const Gpt2 g({.n_positions = 32, .n_embd = 32, .n_layer = 2, .n_head = 2}, 50, 2);
  const auto losses = [&](const char* backend) {
    const auto optimizer = optim::adamw({.learning_rate = 1e-2});
    auto step = jit(gpt2::make_train_step(optimizer, {.policy = Policy("p=f32,c=bf16,o=f32")}),
                    {.donate = {0, 1}, .backend = backend, .scores_budget = 0});
    auto model = jit([&] { return g.init(); }, {.backend = "cpu"})();
    auto state = optimizer.init(model);
    const auto ids = jit([&] { return g.ids(); }, {.backend = "cpu"})();
    const auto keys = random::split(random::key(2), g.Batch);
    std::vector<double> out;
    for (int k = 0; k < 3; ++k) {
      auto next = step(model, state, ids, keys);
      model = std::move(next.model);
      state = std::move(next.opt_state);
      out.push_back(next.loss.item());
    }
    return out;
  };
  const auto before = cuda::simulation_counts();
  const auto got = losses("cuda-sim"), expected = losses("cpu");
  CHECK(cuda::simulation_counts().graphs - before.graphs == 3);
  CHECK(cuda::simulation_counts().products > before.products);
  for (std::size_t k = 0; k < got.size(); ++k)
    CHECK(got[k] == doctest::Approx(expected[k]).epsilon(2e-3));
  CHECK(got[2] < got[0]);
}
