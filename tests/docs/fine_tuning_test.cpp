// The code of docs/how-to/fine-tuning.md that is not in tests/nn/parts_test.cpp, compiled and run.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "haliax/haliax.h"
#include "haliax/state_dict.h"
#include "printed.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 4), Embed("embed", 6), Hidden("hidden", 8), Out("out", 3);

struct Model {
  nn::Linear encoder;
  Frozen<NamedArray> shift;
  nn::Linear head;

  static Model init(const Key& key) {
    auto [k_encoder, k_head] = random::split<2>(key);
    return {nn::Linear::init(Embed, Hidden, k_encoder),
            {ones(Hidden)},
            nn::Linear::init(Hidden, Out, k_head)};
  }
  NamedArray operator()(const NamedArray& x) const { return head(tanh(encoder(x) + *shift)); }
};
using State = optim::State<optim::AdamW, Model>;
NamedArray loss(const Model& model, const NamedArray& x, const NamedArray& y) {
  return mean(square(model(x) - y));
}

struct Folder {
  std::string path;
  Folder() {
    auto name = (std::filesystem::temp_directory_path() / "haliax-fine-tuning-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

double difference(const NamedArray& a, const NamedArray& b) { return max(abs(a - b)).item(); }

}  // namespace

TEST_CASE("fine-tuning: only the chosen part has gradients, states and updates") {
  auto model = Model::init(random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed}), y = zeros({Batch, Out});

  auto optimizer = optim::adamw({.learning_rate = 1e-2});
  State state = optimizer.init(trainable(model, "head"));
  auto step = jit(
      [=](const Model& model, const State& state, const NamedArray& x, const NamedArray& y) {
        auto [value, grads] = value_and_grad(loss, "head")(model, x, y);
        auto [updates, next] = optimizer.update(grads, state, model);
        return std::tuple(optim::apply_updates(model, updates), next, value);
      },
      {.donate = {0, 1}});

  auto before = tree_map([](const NamedArray& a) { return a + 0.; }, model);
  eval(flatten(before));
  NamedArray value;
  for (int i = 0; i < 10; ++i) std::tie(model, state, value) = step(model, state, x, y);
  CHECK(value.item() < loss(before, x, y).item());
  CHECK(difference(model.encoder.weight, before.encoder.weight) == 0);
  CHECK(difference(model.head.weight, before.head.weight) > 0);
  Printed printed;
  printed.start();
  std::cout << trainable(model, "head");
  CHECK(printed.text() ==
        R"(encoder.weight  empty
encoder.bias    empty
shift           empty
head.weight     f32 (out=3, hidden=8)  24           96 B
head.bias       f32 (out=3)            3            12 B
2 arrays                               27 elements  108 B)");
}

TEST_CASE("fine-tuning: adapters of layers by path train alone, and are merged") {
  auto model = Model::init(random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed}), y = zeros({Batch, Out});
  auto optimizer = optim::adamw({.learning_rate = 1e-2});

  auto tuned = nn::with_lora(model, {"encoder"}, 2, random::key(1), {.alpha = 4});

  State state = optimizer.init(trainable(tuned, "lora"));
  auto step = jit(
      [=](const Model& model, const State& state, const NamedArray& x, const NamedArray& y) {
        auto [value, grads] = value_and_grad(loss, "lora")(model, x, y);
        auto [updates, next] = optimizer.update(grads, state, model);
        return std::tuple(optim::apply_updates(model, updates), next, value);
      },
      {.donate = {0, 1}});

  NamedArray value;
  for (int i = 0; i < 10; ++i) std::tie(tuned, state, value) = step(tuned, state, x, y);
  CHECK(value.item() < loss(model, x, y).item());
  CHECK(difference(tuned.encoder.weight, model.encoder.weight) == 0);

  auto merged = nn::merge_lora(tuned);
  Folder folder;
  const auto adapter = folder.path + "/adapter_model.safetensors";
  write_safetensors(adapter,
                    to_state_dict(filter(tuned, "lora"), {}, {.prefix = "base_model.model"}));

  auto like = nn::with_lora(model, {"encoder"}, 2, random::key(2), {.alpha = 4});
  auto part = from_state_dict(read_safetensors(adapter), filter(like, "lora"),
                              {.prefix = "base_model.model"});
  auto loaded = combine(part, like);
  CHECK(read_safetensors(adapter).find("base_model.model.encoder.lora_A.weight"));
  CHECK(loaded(x).floats() == tuned(x).floats());

  CHECK(difference(merged(x), tuned(x)) < 1e-6);
}

TEST_CASE("fine-tuning: groups have learning rates of their own") {
  auto model = Model::init(random::key(0));
  auto x = random::normal(random::key(1), {Batch, Embed}), y = zeros({Batch, Out});
  auto grads = grad(loss)(model, x, y);

  auto optimizer = optim::groups(
      optim::group("head", optim::adamw({.learning_rate = 1e-3, .weight_decay = 0.1})),
      optim::group("encoder", optim::sgd({.learning_rate = 1e-5})));

  auto updates = optimizer.update(grads, optimizer.init(model), model).first;
  CHECK(difference(updates.encoder.bias.value(), grads.encoder.bias.value() * -1e-5) < 1e-9);
  CHECK(updates.shift->empty());
}

TEST_CASE("fine-tuning: a part is saved and loaded by itself") {
  Folder folder;
  const auto path = folder.path + "/head.safetensors";
  auto model = Model::init(random::key(0)), other = Model::init(random::key(1));

  write_safetensors(path, to_state_dict(filter(model, "head")));

  auto part = from_state_dict(read_safetensors(path), filter(other, "head"));
  auto combined = combine(part, other);

  CHECK(read_safetensors(path).tensors.size() == 2);
  CHECK(difference(combined.head.weight, model.head.weight) == 0);
  CHECK(difference(combined.encoder.weight, other.encoder.weight) == 0);
}

TEST_CASE("fine-tuning: an adapter is merged into its weight") {
  const Axis Rank("rank", 2);
  auto base = nn::Linear::init(Embed, Out, random::key(0));
  auto lora_a = nn::Linear::init(Embed, Rank, random::key(1), {.use_bias = false});
  auto lora_b = nn::Linear::init(Rank, Out, random::key(2), {.use_bias = false});
  auto x = random::normal(random::key(3), {Batch, Embed});
  auto expected = base(x) + lora_b(lora_a(x));

  auto merged = base;
  merged.weight += dot(lora_b.weight, lora_a.weight, "rank");

  CHECK(difference(merged(x), expected) < 1e-5);
}
