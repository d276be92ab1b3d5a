// Parametrizations of layers (muP), and layers with a matmul of their own. The cases are those of
// the tests of Haliax, with values computed by hand.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "haliax/lora.h"
#include "haliax/mup.h"
#include "haliax/state_dict.h"
#include "support/near.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 2), I("i", 3), J("j", 2), O("o", 4), Vocab("vocab", 8), Embed("embed", 4),
    Layers("layers", 2);

bool same(const NamedArray& a, const NamedArray& b) { return difference(a, b, 1e-6) == ""; }

// A matmul of operands in bf16.
NamedArray in_bf16(Arr x, Arr weight, const AxisSelection& In) {
  return dot(astype(x, DType::bf16), astype(weight, DType::bf16), In,
             {.preferred_element_type = DType::f32});
}

struct Head {
  nn::Embedding tokens;
  nn::Linear hidden, out;
  nn::Stacked<nn::Linear> heads;
  static Head init(const Key& key) {
    auto head = [](const Key& k) {
      return nn::Linear::init({I, J}, O, k, {.reparam_cls = nn::output_linear_mup});
    };
    return {nn::Embedding::init(Vocab, Embed, key, {.reparam_cls = nn::embedding_mup}),
            nn::Linear::init(Embed, I, key, {.reparam_cls = nn::hidden_linear_mup}),
            nn::Linear::init(I, O, key, {.reparam_cls = nn::output_linear_mup}),
            nn::Stacked<nn::Linear>::init(Layers, head, random::split(key, Layers))};
  }
};

}  // namespace

TEST_CASE("mup: the scales of each parametrization") {
  using nn::Reparam;
  CHECK(nn::linear_standard_param({Embed}, {O}) == Reparam{.init_scale = 0.5});
  CHECK(nn::input_linear_mup({Embed}, {O}) == Reparam{});
  CHECK(nn::hidden_linear_mup({Embed}, {O}) == Reparam{.init_scale = 0.5, .lr_scale = 0.25});
  CHECK(nn::output_linear_mup({J, Embed}, {O}) == Reparam{.active_scale = 0.125});
  CHECK(nn::embedding_standard_param({Vocab}, {Embed}) == Reparam{.init_scale = 0.25});
  CHECK(nn::embedding_mup({Vocab}, {Embed}) == Reparam{.unembed_active_scale = 0.25});
}

TEST_CASE("mup: initial weights have the scale of the parametrization") {
  const auto key = random::key(0);
  const auto plain = nn::Linear::init({I, J}, O, key);
  const auto input = nn::Linear::init({I, J}, O, key, {.reparam_cls = nn::input_linear_mup});
  const auto hidden =
      nn::Linear::init({I, J}, O, key, {.init_scale = 2, .reparam_cls = nn::hidden_linear_mup});
  CHECK(same(input.weight, plain.weight * std::sqrt(6.)));
  CHECK(same(hidden.weight, plain.weight * 2.));
  const auto table = nn::Embedding::init(Vocab, Embed, key, {.init_scale = 0.5});
  const auto mup =
      nn::Embedding::init(Vocab, Embed, key, {.init_scale = 0.5, .reparam_cls = nn::embedding_mup});
  CHECK(same(mup.weight, table.weight * 4.));
}

TEST_CASE("mup: an output layer and a tied head scale their weight, also with an adapter") {
  auto layer = nn::Linear::init(I, O, random::key(2),
                                {.use_bias = false, .reparam_cls = nn::output_linear_mup});
  layer.weight = ones_like(layer.weight);
  CHECK(same(layer(full({Batch, I}, 2.)), full({Batch, O}, 2.)));

  auto table =
      nn::Embedding::init(Vocab, Embed, random::key(0), {.reparam_cls = nn::embedding_mup});
  table.weight = ones_like(table.weight);
  CHECK(same(table.unembed(ones({Batch, Embed})), ones({Batch, Vocab})));
  CHECK(same(table.embed(zeros({Batch}, DType::i32)), ones({Batch, Embed})));

  layer.lora = nn::Lora{ones({Axis("lora_rank", 1), I}), ones({O, Axis("lora_rank", 1)}), 0.5};
  const auto x = random::normal(random::key(3), {Batch, I});
  CHECK(same(nn::merge_lora(layer)(x), layer(x)));
}

TEST_CASE("mup: a state dict holds the scaled weight of an output layer") {
  auto model = Head::init(random::key(1));
  model.heads.stacked.weight = random::normal(random::key(4), {Layers, O, I, J});
  const auto file = to_state_dict(model);
  auto stored = [&](const char* name, const AxisSpec& axes) {
    return from_tensor(file.at(name), axes);
  };
  CHECK(same(stored("out.weight", {O, I}), model.out.weight / 3.));
  CHECK(same(stored("out.bias", O), *model.out.bias));
  CHECK(same(stored("hidden.weight", {I, Embed}), model.hidden.weight));
  CHECK(same(stored("tokens.weight", {Vocab, Embed}), model.tokens.weight));
  CHECK(file.at("heads.1.weight").shape == std::vector<std::int64_t>{4, 6});
  const auto second = flatten_axes(model.heads.get_layer(1).weight, {"i", "j"}, "in");
  CHECK(same(stored("heads.1.weight", {O, Axis("in", 6)}), second / 6.));

  const auto loaded = from_state_dict(file, Head::init(random::key(5)));
  CHECK(same(loaded.out.weight, model.out.weight));
  CHECK(loaded.out.reparam == model.out.reparam);
  CHECK(same(loaded.heads.stacked.weight, model.heads.stacked.weight));
  CHECK(loaded.heads.stacked.weight.axes() == model.heads.stacked.weight.axes());
  CHECK(same(*loaded.heads.stacked.bias, *model.heads.stacked.bias));
}

TEST_CASE("mup: the learning rate of a hidden layer is divided by its width") {
  const auto model = Head::init(random::key(1));
  const auto optimizer = optim::chain(optim::scale_by_mup_lr(), optim::Scale{-0.1});
  auto grads = tree_map([](const NamedArray& a) { return ones_like(a); }, model);
  grads.tokens.weight = {};
  const auto updates = optimizer.update(grads, optimizer.init(model), model).first;
  CHECK(same(updates.hidden.weight, full({I, Embed}, -0.025)));
  CHECK(same(*updates.hidden.bias, full(I, -0.025)));
  CHECK(same(updates.out.weight, full({O, I}, -0.1)));
  CHECK(updates.tokens.weight.empty());
}

TEST_CASE("linear: a layer may compute its matmul with a function of its own") {
  const auto key = random::key(6);
  const auto exact = nn::Linear::init({I, J}, O, key);
  const auto rounded = nn::Linear::init({I, J}, O, key, {.dot_general = in_bf16});
  const auto x = random::normal(key, {Batch, I, J});
  CHECK(same(rounded.weight, exact.weight));
  const auto expected = in_bf16(x, exact.weight, {"i", "j"});
  CHECK(difference(rounded(x), expected, 0) == "");
  CHECK(difference(rounded(x), exact(x), 1e-6) != "");
  CHECK(difference(rounded(x), exact(x), 0.05) == "");

  // The function is static: it is part of the signature of `jit`.
  auto call = jit([](const nn::Linear& l, const NamedArray& x) { return l(x); });
  CHECK(difference(call(exact, x), exact(x), 1e-6) == "");
  CHECK(difference(call(rounded, x), expected, 1e-6) == "");
  // Gradients are those of the function.
  auto loss = [&](const nn::Linear& l) { return sum(l(x)); };
  auto by_hand = grad([&](const NamedArray& w) { return sum(in_bf16(x, w, {"i", "j"})); });
  CHECK(same(grad(loss)(rounded).weight, by_hand(exact.weight)));
}
