// Low-rank adapters of linear layers.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Embed("embed", 6), Heads("heads", 2), Size("head_size", 3),
    Layers("layers", 3);

struct Block {
  nn::Linear q_proj, out;
  static Block init(const Key& key) {
    auto [k_q, k_out] = random::split<2>(key);
    return {nn::Linear::init(Embed, {Heads, Size}, k_q),
            nn::Linear::init({Heads, Size}, Embed, k_out, {.out_first = false})};
  }
  NamedArray operator()(const NamedArray& x) const { return x + out(tanh(q_proj(x))); }
};
struct Model {
  nn::Stacked<Block> blocks;
  nn::Linear head;
  static Model init(const Key& key) {
    auto [k_blocks, k_head] = random::split<2>(key);
    return {nn::Stacked<Block>::init(Layers, Block::init, random::split(k_blocks, Layers)),
            nn::Linear::init(Embed, Size, k_head)};
  }
  NamedArray operator()(const NamedArray& x) const { return head(blocks.fold(x)); }
};
double difference(const NamedArray& a, const NamedArray& b) { return max(abs(a - b)).item(); }

}  // namespace

TEST_CASE("lora: adapters change no result at first, train alone, and merge into their weights") {
  const auto model = Model::init(random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto tuned = nn::with_lora(model, {"q_proj", "blocks.*t"}, 2, random::key(2), {.alpha = 8});
  CHECK(tuned.blocks.stacked.q_proj.lora->A.axes() == Axes{Layers, Axis("lora_rank", 2), Embed});
  CHECK(tuned.blocks.stacked.out.lora->B.axes() == Axes{Layers, Embed, Axis("lora_rank", 2)});
  CHECK(!tuned.head.lora);
  CHECK(difference(tuned(x), model(x)) == 0);

  auto loss = [&](const Model& m) { return mean(square(m(x) - 1.)); };
  auto optimizer = optim::adamw({.learning_rate = 1e-2});
  auto state = optimizer.init(trainable(tuned, "lora"));
  auto step = jit([&](const Model& m, const decltype(state)& s) {
    auto grads = grad(loss, "lora")(m);
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::pair(optim::apply_updates(m, updates), next);
  });
  for (int k = 0; k < 5; ++k) std::tie(tuned, state) = step(tuned, state);
  CHECK(loss(tuned).item() < loss(model).item());
  CHECK(difference(tuned.blocks.stacked.q_proj.weight, model.blocks.stacked.q_proj.weight) == 0);

  auto merged = nn::merge_lora(tuned);
  CHECK(!merged.blocks.stacked.q_proj.lora);
  CHECK(difference(merged(x), tuned(x)) < 1e-6);
  CHECK(difference(nn::without_lora(tuned)(x), model(x)) == 0);

  // Adapters of a 16-bit model keep its dtype.
  auto half = tree_map([](const NamedArray& a) { return a.astype(DType::bf16); }, model);
  auto half_tuned = nn::with_lora(half, {"head"}, 1, random::key(3));
  CHECK(half_tuned(x.astype(DType::bf16)).dtype() == DType::bf16);
}

TEST_CASE("lora: adapters are saved under the names of PEFT, one matrix per layer") {
  auto tuned = nn::with_lora(Model::init(random::key(0)), {"q_proj"}, 2, random::key(1));
  tuned = tree_map([](const NamedArray& a) { return a + 0.5f; }, tuned);
  const auto file = to_state_dict(filter(tuned, "lora"), {}, {.prefix = "base_model.model"});
  CHECK(file.tensors.size() == 6);
  using Sizes = std::vector<std::int64_t>;
  CHECK(file.at("base_model.model.blocks.2.q_proj.lora_A.weight").shape == Sizes{2, 6});
  CHECK(file.at("base_model.model.blocks.0.q_proj.lora_B.weight").shape == Sizes{6, 2});
  auto empty = nn::with_lora(Model::init(random::key(0)), {"q_proj"}, 2, random::key(5));
  auto loaded = from_state_dict(file, filter(empty, "lora"), {.prefix = "base_model.model"});
  CHECK(array_equal(loaded.blocks.stacked.q_proj.lora->B, tuned.blocks.stacked.q_proj.lora->B));
}

TEST_CASE("lora: layers that do not exist, or have an adapter, raise") {
  const auto model = Model::init(random::key(0));
  raises([&] { nn::with_lora(model, {"k_proj"}, 2, random::key(1)); },
         {"[with_lora] k_proj selects no Linear; the model has blocks.q_proj, blocks.out, head",
          "lora_test.cpp"});
  raises([&] { nn::with_lora(model, {"q_proj"}, 0, random::key(1)); }, {"rank is 0"});
  auto tuned = nn::with_lora(model, {"head"}, 2, random::key(1));
  raises([&] { nn::with_lora(tuned, {"head"}, 2, random::key(1)); },
         {"layer head has an adapter already"});
}
