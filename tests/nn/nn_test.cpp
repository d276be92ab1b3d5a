// Tests of layers, masks, losses and stacked blocks with small values computed by hand.
// tests/golden has larger cases.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/losses.h"
#include "haliax/nn.h"
#include "haliax/policy.h"
#include "haliax/state_dict.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 2}, Pos{"pos", 3}, Embed{"embed", 4}, Out{"out", 2}, Heads{"heads", 2},
    Size{"size", 2}, Layers{"layers", 3};

void close(const NamedArray& a, const std::vector<double>& expected, double tolerance = 1e-5) {
  auto values = a.doubles();
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(values[i] - expected[i]) <= tolerance);
  }
}
NamedArray counted(const AxisSpec& axes) { return arange(axes).astype(DType::f32); }

// Returns the message of the error that a call raises, or "" if the call returns.
template <class F> std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

struct Affine {
  NamedArray w;
  int power = 1;
  NamedArray operator()(const NamedArray& x, const NamedArray& shift) const {
    return x * w + shift;
  }
};

}  // namespace

TEST_CASE("linear: several input and output axes, and either axis order of the weight") {
  auto x = counted({Batch, Heads, Size});
  auto weight = counted({Heads, Size, Out});
  nn::Linear in_first{weight, array({10, 20}, Out), {Heads, Size}, Out};
  close(in_first(x), {10 + 28, 20 + 34, 10 + 76, 20 + 98});
  CHECK(in_first(x).axes() == make_axes(Batch, Out));
  nn::Linear out_first{rearrange(weight, Names{"out", "heads", "size"}), {}, {Heads, Size}, Out};
  close(out_first(x), {28, 34, 76, 98});

  auto made = nn::Linear::init({Heads, Size}, Out, random::key(0));
  CHECK(made.weight.axes() == make_axes(Out, Heads, Size));
  close(*made.bias, {0, 0});
  CHECK(nn::Linear::init(Embed, Out, random::key(0), {.out_first = false}).weight.axes() ==
        make_axes(Embed, Out));
  CHECK(!nn::Linear::init(Embed, Out, random::key(0), {.use_bias = false}).bias);
  auto wide =
      nn::Linear::init(Axis("in", 100), Axis("out", 200), random::key(1), {.init_scale = 2}).weight;
  CHECK(max(abs(wide)).item() <= 0.6);
  CHECK(std_dev(wide).item() == doctest::Approx(0.2 * 0.9866).epsilon(0.02));
}

TEST_CASE("linear: an axis that is missing, has another size or exists already raises") {
  auto l = nn::Linear::init(Embed, Out, random::key(0));
  CHECK(has(message([&] { l(ones({Batch, Axis("embd", 4)})); }), "did you mean embd?"));
  CHECK(has(message([&] { l(ones(Axis("embed", 5))); }), "embed has size 5"));
  CHECK(has(message([&] { l(ones({Batch, Embed, Out})); }), "already has the output axis out"));
  // The line of the call, not the line of the library.
  CHECK(has(message([&] { l(ones(Batch)); }), "nn_test.cpp"));
  CHECK(message([&] { nn::Linear::init(Embed, Embed, random::key(0)); }) != "");
}

TEST_CASE("norms: layer norm and RMS norm match values computed by hand") {
  auto x = array({1, 2, 3, 6}, Embed);
  close(nn::LayerNorm::init(Embed, {.eps = 0})(x),
        {-2 / std::sqrt(3.5), -1 / std::sqrt(3.5), 0, 3 / std::sqrt(3.5)});
  nn::LayerNorm with{Embed, array({1, 1, 1, 2}, Embed), array({0, 0, 5, 0}, Embed), 0};
  close(with(x), {-2 / std::sqrt(3.5), -1 / std::sqrt(3.5), 5, 6 / std::sqrt(3.5)});
  close(nn::RmsNorm::init(Embed, {.eps = 0, .use_bias = false})(x),
        {1 / std::sqrt(12.5), 2 / std::sqrt(12.5), 3 / std::sqrt(12.5), 6 / std::sqrt(12.5)});
  // The parameters are f32.
  CHECK(nn::RmsNorm::init(Embed)(x.astype(DType::bf16)).dtype() == DType::f32);
  CHECK(nn::LayerNorm{Embed, {}, {}}(x.astype(DType::bf16)).dtype() == DType::bf16);
  CHECK(has(message([&] { nn::LayerNorm::init(Pos)(x); }), "axis pos"));
}

TEST_CASE(
    "dropout: scales the retained elements, depends on the key, and is the identity in inference") {
  auto x = ones({Batch, Axis("embed", 1000)});
  nn::Dropout half{.pdrop = 0.5};
  auto y = half(x, random::key(0));
  CHECK(std::abs(mean(y).item() - 1) < 0.1);
  CHECK(any(y == 2.).item() == 1);
  CHECK(all((y == 2.) | (y == 0.)).item() == 1);
  CHECK(half(x, {}, true).node() == x.node());
  CHECK(nn::Dropout{.pdrop = 0}(x).node() == x.node());
  CHECK(max(nn::Dropout{.pdrop = 1}(x)).item() == 0);
  auto shared = nn::Dropout{.pdrop = 0.5, .broadcast_axes = {"batch"}}(x, random::key(0));
  CHECK(all(at(shared, "batch", 0) == at(shared, "batch", 1)).item() == 1);
  CHECK(has(message([&] { half(x); }), "a key is required"));
  CHECK(has(message([&] { nn::Dropout{.pdrop = 1.5}(x); }), "1.5"));
  CHECK(has(
      message([&] { nn::Dropout{.pdrop = 0.5, .broadcast_axes = {"btch"}}(x, random::key(0)); }),
      "did you mean batch?"));
}

TEST_CASE("embedding and mlp: lookups, logits and layers match values computed by hand") {
  nn::Embedding e{counted({Pos, Embed}), Pos, Embed};
  std::vector<std::int32_t> ids{2, 0};
  close(e(array(std::span<const std::int32_t>(ids), Batch)), {8, 9, 10, 11, 0, 1, 2, 3});
  close(e.unembed(array({1, 0, 0, 1}, Embed)), {3, 11, 19});
  CHECK(has(message([&] { e(ones(Batch)); }), "f32"));
  CHECK(max(abs(nn::Embedding::init(Pos, Embed, random::key(0), {.init_scale = 0.1}).weight))
            .item() <= 0.075);

  auto mlp = nn::Mlp::init(Embed, Out, 5, 2, random::key(0), {.use_final_bias = false});
  REQUIRE(mlp.layers.size() == 3);
  CHECK(mlp.layers[1].weight.axes() == make_axes(Axis("mlp2", 5), Axis("mlp", 5)));
  CHECK(!mlp.layers[2].bias);
  CHECK(mlp(ones({Batch, Embed})).axes() == make_axes(Batch, Out));
  CHECK(nn::Mlp::init(Embed, Out, 5, 0, random::key(0)).layers.size() == 1);
}

TEST_CASE("activations match values computed by hand, also far from zero") {
  auto x = array({-20, -1, 0, 1}, Embed);
  close(nn::relu(x), {0, 0, 0, 1});
  close(grad([](const NamedArray& a) { return sum(nn::relu(a)); })(x), {0, 0, 0, 1});
  close(nn::sigmoid(x), {0, 0.268941, 0.5, 0.731059});
  close(grad([](const NamedArray& a) { return sum(nn::sigmoid(a * 100.)); })(x), {0, 0, 25, 0});
  // Small results keep their relative precision.
  auto low = array({-20, -50, -80, -200}, Embed),
       of_low = array({2.0611537e-9, 1.9287499e-22, 1.8048514e-35, 0}, Embed);
  CHECK(max(abs(nn::sigmoid(low) - of_low) / (of_low + 1e-37)).item() < 1e-5);
  for (double side : {1., -1.})  // the gradient keeps it on both sides too
    CHECK(max(abs(grad([](const NamedArray& a) { return sum(nn::sigmoid(a)); })(low * side) -
                  of_low) /
              (of_low + 1e-37))
              .item() < 1e-5);
  CHECK(max(abs(nn::silu(low) - low * of_low) / (of_low + 1e-37)).item() < 1e-3);
  close(nn::softplus(x), {0, 0.313262, 0.693147, 1.313262});
  close(nn::gelu(x), {0, -0.158808, 0, 0.841192});
  close(nn::gelu_exact(x), {0, -0.158655, 0, 0.841345});
  close(nn::elu(x), {-1, -0.632121, 0, 1});
  close(grad([](const NamedArray& a) { return sum(nn::elu(a)); })(array({-1, 1, 200, 0.5}, Embed)),
        {0.367879, 1, 1, 1});
  CHECK((nn::activation("gelu_new") == nn::Activation(nn::gelu)));
  CHECK((nn::activation("gelu") == nn::Activation(nn::gelu_exact)));
  CHECK(has(message([] { nn::activation("gelu_nw"); }), "did you mean gelu_new?"));
}

TEST_CASE("attention: masks select keys, and bad arguments raise") {
  Axis KPos{"key_pos", 3};
  close(nn::causal_mask(Pos, KPos), {1, 0, 0, 1, 1, 0, 1, 1, 1});
  close(nn::causal_mask(Pos.resize(2), KPos, 1), {1, 1, 0, 1, 1, 1});
  close(nn::prefix_lm_mask(Pos, KPos, 2), {1, 1, 0, 1, 1, 0, 1, 1, 1});
  auto padding = array({1, 1, 0}, KPos) > 0.;
  close(nn::combine_masks_and(nn::causal_mask(Pos, KPos), padding), {1, 0, 0, 1, 1, 0, 1, 1, 0});
  CHECK(nn::combine_masks_or(NamedArray(), padding).node() == padding.node());

  auto q = zeros({Heads, Pos, Size}), k = ones({Heads, KPos, Size}),
       v = counted({Heads, KPos, Size});
  auto y = nn::dot_product_attention(KPos, Size, q, k, v, {.mask = nn::causal_mask(Pos, KPos)});
  CHECK(y.axes() == make_axes(Heads, Pos, Size));
  close(y, {0, 1, 1, 2, 2, 3, 6, 7, 7, 8, 8, 9});
  CHECK(has(message([&] { nn::dot_product_attention(Pos, Size, q, q, q); }),
            "pos is also in the query"));
}

TEST_CASE("cross entropy: ids and probabilities give the same loss, -1 is ignored") {
  Axis Vocab{"vocab", 2};
  auto logits = array({0, 0, 0, std::log(3.0), 0, std::log(3.0)}, {Pos, Vocab});
  std::vector<std::int32_t> values{0, 1, 0};
  auto ids = array(std::span<const std::int32_t>(values), Pos);
  const double a = std::log(2.0), b = std::log(4.0 / 3), c = std::log(4.0);
  close(nn::cross_entropy_loss(logits, Vocab, ids, {.reduction = nn::Reduction::none}), {a, b, c});
  close(nn::cross_entropy_loss(logits, Vocab, ids), {(a + b + c) / 3});
  close(
      nn::cross_entropy_loss(logits, Vocab, one_hot(ids, Vocab), {.reduction = nn::Reduction::sum}),
      {a + b + c});
  close(nn::cross_entropy_loss(logits, Vocab, ids, {.where = arange(Pos) < 2}), {(a + b) / 2});
  close(nn::cross_entropy_loss(logits, Vocab, ids,
                               {.reduction = nn::Reduction::none, .where = arange(Pos) < 2}),
        {a, b, 0});
  close(nn::cross_entropy_loss(logits, Vocab, ids - 1, {.reduction = nn::Reduction::none}),
        {0, std::log(4.0), 0});  // -1 is not an id
  CHECK(has(message([&] { nn::cross_entropy_loss(logits, "vocb", ids); }), "did you mean vocab?"));
  CHECK(has(message([&] { nn::cross_entropy_loss(logits, Vocab, astype(logits, DType::i32)); }),
            "i32"));
  CHECK(has(message([&] { nn::cross_entropy_loss(logits, Vocab, ones(Pos)); }), "vocab"));

  close(nn::next_token_loss(Pos, Vocab, logits, ids), {(std::log(2.0) + c) / 2});  // targets 1, 0
  CHECK(has(message([&] {
              nn::next_token_loss(Pos, Vocab, zeros({Pos.resize(1), Vocab}),
                                  zeros(Pos.resize(1), DType::i32));
            }),
            "pos=1"));
  close(nn::binary_cross_entropy_loss(array({0, 2, -2}, Pos), array({1, 1, 0}, Pos),
                                      {.reduction = nn::Reduction::none}),
        {a, 0.126928, 0.126928});
}

TEST_CASE("cross entropy: the chunked loss and its gradients equal the unchunked ones") {
  Axis Vocab{"vocab", 5}, Long{"pos", 7};
  auto x = random::normal(random::key(0), {Batch, Long, Embed}),
       w = random::normal(random::key(1), {Vocab, Embed});
  auto ids = random::randint(random::key(2), {Batch, Long}, 0, 5);
  auto unchunked = [&](const NamedArray& x, const NamedArray& w) {
    return nn::cross_entropy_loss(dot(x, w, Embed), Vocab, ids);
  };
  auto parts = [&](const NamedArray& x, const NamedArray& w) {
    return mean(nn::chunked_cross_entropy(x, w, ids, Embed, Vocab, Long, {.chunks = {.chunk = 3}}));
  };
  close(parts(x, w), unchunked(x, w).doubles());
  close(grad(parts)(x, w), grad(unchunked)(x, w).doubles());
  auto by_weight = [&](auto f) { return grad([&](const NamedArray& w) { return f(x, w); })(w); };
  close(by_weight(parts), by_weight(unchunked).doubles());
}

TEST_CASE("stacked blocks: init, fold and scan match a loop over single layers") {
  auto make = [](const Key& key) { return Affine{random::uniform(key, {})}; };
  auto keys = random::split(random::key(0), Layers);
  auto s = nn::Stacked<Affine>::init(Layers, make, keys);
  CHECK(s.stacked.w.axes() == make_axes(Layers));
  auto one_by_one = random::split(random::key(0), 3);
  for (int i = 0; i < 3; ++i)
    CHECK(s.get_layer(i).w.item() == random::uniform(one_by_one[i], {}).item());

  s.stacked.w = array({2, 3, 5}, Layers);
  auto x = array({1, 2}, Batch), per_layer = array({1, 0, 10}, Layers);
  // One shift for each layer.
  close(s.fold(x, per_layer), {(1 * 2 + 1) * 15 + 10., (2 * 2 + 1) * 15 + 10.});
  close(s.fold(x, array({1, 0}, Batch)),
        {((1 * 2 + 1) * 3 + 1) * 5 + 1., 60});  // one shift for all layers
  NamedArray by_hand = x;
  auto blocks = s.unstacked();
  for (int i = 0; i < 3; ++i) by_hand = blocks[i](by_hand, at(per_layer, Layers, i));
  close(s.fold(x, per_layer), by_hand.doubles());
  CHECK(has(message([&] { s.get_layer(3); }), "layers=3"));

  struct Emitting {
    NamedArray w;
    std::pair<NamedArray, NamedArray> operator()(const NamedArray& x) const { return {x * w, x}; }
  };
  auto [last, seen] =
      nn::Stacked<Emitting>{{array({2, 3, 5}, Layers)}, Layers}.scan(array({1, 2}, Batch));
  close(last, {30, 60});
  CHECK(seen.axes() == make_axes(Layers, Batch));
  close(seen, {1, 2, 2, 4, 6, 12});

  for (auto policy : {"none", "carries", "nested"}) {
    s.gradient_checkpointing = policy;
    auto g = grad([&](const nn::Stacked<Affine>& m) { return sum(m.fold(x, per_layer)); })(s);
    close(g.stacked.w, {15 * 3, 5 * 8, 24});
  }
}

TEST_CASE("policies: parse, print and cast") {
  Policy p("p=f32,c=bf16,o=f32");
  CHECK(p.param == DType::f32);
  CHECK(p.compute == DType::bf16);
  CHECK(Policy("compute=bfloat16,parameter=f32,output=f32") == p);
  CHECK(Policy(" params = float32 , compute = bfloat16 ") == p);
  CHECK(Policy("bfloat16").output == DType::bf16);
  CHECK_FALSE(p.reduce);
  CHECK(Policy("p=f32,r=f32").reduce == DType::f32);
  auto m = p.cast_to_compute(nn::Linear::init(Embed, Out, random::key(0)));
  CHECK(m.weight.dtype() == DType::bf16);
  CHECK(p.cast_to_compute(arange(Pos)).dtype() == DType::i32);
  for (auto wrong : {"", "compute=", "compute=bfloat17", "compte=bf16", "p=f32,p=bf16", "p=f32,",
                     "c=i32", "p=f32 c=bf16"})
    CHECK(has(message([&] { Policy p(wrong); }), "[policy]"));
  CHECK(has(message([] { Policy p("compte=bf16"); }), "did you mean compute?"));
}

TEST_CASE("state dicts: names, shapes and layers of a checkpoint") {
  struct Block {
    nn::LayerNorm ln;
    nn::Linear proj;
  };
  struct Model {
    nn::Embedding tokens;
    nn::Stacked<Block> blocks;
    std::optional<nn::Linear> head;
  };
  auto block = [](const Key& key) {
    return Block{nn::LayerNorm::init({Heads, Size}),
                 nn::Linear::init({Heads, Size}, Embed, key, {.out_first = false})};
  };
  Model m{nn::Embedding::init(Pos, Embed, random::key(1)),
          nn::Stacked<Block>::init(Layers, block, random::split(random::key(0), Layers)),
          {}};
  StateNames names{{"tokens", "wte"}, {"blocks", "h"}};
  auto file = to_state_dict(m, names);
  CHECK(file.tensors.size() == 1 + 3 * 4);
  CHECK(file.at("wte.weight").shape == std::vector<std::int64_t>{3, 4});
  // (in, out), since `out_first` is false.
  CHECK(file.at("h.2.proj.weight").shape == std::vector<std::int64_t>{4, 4});
  CHECK(file.at("h.0.proj.bias").shape == std::vector<std::int64_t>{4});
  CHECK(file.at("h.1.ln.weight").shape == std::vector<std::int64_t>{4});

  Model other{nn::Embedding::init(Pos, Embed, random::key(2)),
              nn::Stacked<Block>::init(Layers, block, random::split(random::key(3), Layers)),
              {}};
  file.tensors.push_back({"h.0.attn.bias", DType::f32, {1}, std::vector<std::byte>(4)});
  StateMismatch found;
  auto back = from_state_dict(file, other, names, {.mismatch = &found});
  CHECK(found.unused == std::vector<std::string>{"h.0.attn.bias"});
  close(back.blocks.stacked.proj.weight, m.blocks.stacked.proj.weight.doubles(), 0);
  close(back.tokens.weight, m.tokens.weight.doubles(), 0);
  CHECK(has(message([&] {
              from_state_dict(file, other, StateNames{{"tokens", "wtt"}, {"blocks", "h"}});
            }),
            "did you mean wte.weight?"));
  file.tensors[0].shape.push_back(1);
  CHECK(has(message([&] { from_state_dict(file, other, names); }), "has shape"));
}
