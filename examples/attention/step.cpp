// Plans a training step of GPT-2 124M with two score budgets and draws its memory over time.
#include "step.h"

#include <fmt/format.h>

#include <algorithm>

#include "examples/gpt2/train.h"
#include "examples/memory_panel.h"
#include "haliax/haliax.h"

using namespace haliax;

void draw_step(const std::string& path, const std::string& backend) {
  const models::GPT2Config config{.embd_pdrop = 0, .attn_pdrop = 0, .resid_pdrop = 0};
  const Axis Batch("batch", 64);
  const auto optimizer = optim::adamw();
  const auto [model, state, ids, keys] = eval_shape([&] {
    auto m = models::GPT2LMHeadModel::init(config, random::key(0));
    return std::tuple(m, optimizer.init(m), zeros({Batch, config.Pos()}, DType::i32),
                      random::split(random::key(1), Batch));
  });
  std::vector<examples::MemoryPanel> panels;
  for (auto [name, budget] :
       {std::pair<const char*, std::optional<std::int64_t>>{"all scores", most_bytes},
        {"as compiled", {}}}) {
    auto step = jit(gpt2::make_train_step(optimizer, {.policy = Policy("p=f32,c=bf16,o=f32")}),
                    {.donate = {0, 1}, .backend = backend, .scores_budget = budget});
    const auto report = step.plan(model, state, ids, keys);
    auto& curve = report.memory_over_time;
    const double most = double(*std::max_element(curve.begin(), curve.end()));
    panels.push_back({.name = name,
                      .curve = {curve.begin(), curve.end()},
                      .line = most,
                      .above = fmt::format("{:.1f} GiB", most / (1 << 30))});
  }
  examples::write_panels(
      path,
      fmt::format("GPT-2 124M, a training step of {} x {} tokens in bf16, planned for {}",
                  Batch.size, config.n_positions, backend),
      "bytes in use over the steps of the program, arguments included; dashed: the peak", panels);
}
