// Tests of dropout, losses, attention and modules by the names of Haliax, with values computed by
// hand.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 2), Pos("pos", 3), Embed("embed", 4), Out("out", 2), Vocab("vocab", 5),
    Layers("layers", 3);

void close(const NamedArray& a, const std::vector<double>& expected, double tolerance = 1e-6) {
  auto values = a.doubles();
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK(std::abs(values[i] - expected[i]) <= tolerance);
  }
}
NamedArray ints(const std::vector<std::int32_t>& values, const AxisSpec& axes) {
  return array(std::span<const std::int32_t>(values), axes);
}

struct Noisy {
  nn::Linear up;
  nn::Dropout drop;
  NamedArray operator()(const NamedArray& x, const Key& key = {}) const {
    return drop(up(x, key).rename("hidden", "embed"), key);
  }
  static Noisy init(const Key& key) {
    return {nn::Linear::init(Embed, Embed.alias("hidden"), key), {.pdrop = 0.5}};
  }
};
struct Model {
  nn::Embedding tokens;
  nn::Stacked<Noisy> blocks;
  std::vector<nn::Dropout> drops;
  std::optional<nn::Linear> head;
  static Model init(const Key& key) {
    return {nn::Embedding::init(Vocab, Embed, key),
            nn::Stacked<Noisy>::init(Layers, Noisy::init, random::split(key, Layers)),
            {{.pdrop = 0.1}, {.pdrop = 0}},
            nn::Linear::init(Embed, Vocab, key)};
  }
};

}  // namespace

TEST_CASE("dropout: the function equals the layer, and a mask keeps 1 - rate") {
  const Axis Long("n", 4096);
  auto x = ones({Long, Embed});
  auto key = random::key(3);
  close(nn::dropout(x, 0.25, key), nn::Dropout{0.25}(x, key).doubles());
  close(nn::dropout(x, 0.25, {}, {.inference = true}), x.doubles());
  auto shared = nn::dropout(x, 0.5, key, {.broadcast_axes = {"embed"}});
  CHECK(all(max(shared, Embed) == min(shared, Embed)).item() == 1);
  auto mask = nn::dropout_mask({Long, Embed}, 0.25, key);
  CHECK(mask.dtype() == DType::boolean);
  CHECK(std::abs(mean(astype(mask, DType::f32)).item() - 0.75) < 0.02);
  CHECK(all(mask == (nn::dropout(x, 0.25, key) > 0.)).item() == 1);
  CHECK(nn::Dropout{0.5}.is_active());
  CHECK_FALSE(nn::Dropout{0}.is_active());
  CHECK_FALSE(nn::Dropout{.pdrop = 0.5, .inference = true}.is_active());
  raises([&] { nn::dropout(x, 0.5); }, {"[dropout] a key is required", "modules_test.cpp:"});
  raises([&] { nn::dropout_mask(Long, 1.5, key); }, {"[dropout] rate is 1.5", "from 0 to 1"});
}

TEST_CASE("inference_mode: flips the flag of every dropout in a copy of the model") {
  auto model = Model::init(random::key(0));
  auto off = inference_mode(model);
  CHECK(off.blocks.stacked.drop.inference);
  CHECK(off.drops[0].inference);
  CHECK(off.drops[1].inference);
  CHECK_FALSE(model.blocks.stacked.drop.inference);
  CHECK_FALSE(inference_mode(off, false).drops[0].inference);
  auto x = ones({Batch, Embed});
  close(off.blocks.fold(x), inference_mode(model).blocks.fold(x).doubles());
  raises([&] { model.blocks.fold(x); }, {"[dropout] a key is required"});
  // The flag is part of the signature of a jitted function.
  auto run = jit(
      [&](const Model& m, const Key& key) { return m.blocks.fold(x, random::split(key, Layers)); });
  CHECK(any(run(model, random::key(1)) != run(off, random::key(1))).item() == 1);
}

TEST_CASE("losses: masks and weights select elements, and the mean over none is 0") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  auto loss = array({1, 2, 3, 4, 5, nan}, {Batch, Pos});
  auto mask = ints({1, 1, 0, 1, 0, 0}, {Batch, Pos}) == 1;
  auto weight = array({1, 2, 0}, Pos);
  using nn::Reduction;
  close(nn::reduce_loss(loss, {.where = mask}), {(1. + 2 + 4) / 3});
  close(nn::reduce_loss(loss, {.where = mask, .weight = weight}), {(1. + 4 + 4) / 4});
  close(nn::reduce_loss(loss, {.reduction_axis = Pos, .where = mask, .weight = weight}),
        {5. / 3, 4});
  close(nn::reduce_loss(loss, {.reduction = Reduction::sum, .where = mask, .weight = weight}), {9});
  close(
      nn::maybe_reduce_loss(loss, {.reduction = Reduction::none, .where = mask, .weight = weight}),
      {1, 4, 0, 4, 0, 0});
  close(nn::reduce_loss(loss, {.where = mask & ~mask}), {0});
  close(nn::reduce_loss(array({1, 2, 3}, Pos), {.weight = zeros(Pos)}), {0});
  auto g = grad([&](const NamedArray& x) {
    return nn::reduce_loss(x, {.where = mask & ~mask, .weight = weight});
  })(loss);
  close(g, {0, 0, 0, 0, 0, 0});
  close(nn::reduce_loss(array({1, 2, 3}, Pos)), {2});
  // 16-bit losses are summed in f32 and rounded once.
  auto narrow = astype(full(Axis("n", 1000), 1.), DType::bf16);
  auto all_true = ones(Axis("n", 1000), DType::boolean);
  auto mean16 = nn::reduce_loss(narrow, {.where = all_true});
  CHECK(mean16.dtype() == DType::bf16);
  close(mean16, {1});
  raises([&] { nn::reduce_loss(loss, {.weight = ones(Axis("pso", 3))}); },
         {"[reduce_loss] axis pso of the weight", "did you mean pos?", "modules_test.cpp:"});

  auto logits = array({2, -1, 0.5}, Pos), targets = array({1, 0, 1}, Pos);
  auto each = nn::binary_cross_entropy_loss(logits, targets, {.reduction = Reduction::none});
  auto e = each.doubles();
  close(nn::binary_cross_entropy_loss(logits, targets, {.weight = weight}),
        {(e[0] + 2 * e[1]) / 3});
  close(nn::binary_cross_entropy_loss(logits, targets, {.where = arange(Pos) < 0}), {0});
}

TEST_CASE("cross entropy: labels outside of the vocabulary do not count, with either loss") {
  auto x = random::normal(random::key(0), {Pos, Embed}),
       w = random::normal(random::key(1), {Vocab, Embed});
  auto full_loss = [&](const NamedArray& x, const NamedArray& ids) {
    return nn::cross_entropy_loss(dot(x, w, Embed), Vocab, ids);
  };
  auto chunked = [&](const NamedArray& x, const NamedArray& ids) {
    return nn::linear_cross_entropy(x, w, ids, Embed, Vocab).loss;
  };
  auto some = ints({3, -100, 1}, Pos);
  auto each =
      nn::cross_entropy_loss(dot(x, w, Embed), Vocab, some, {.reduction = nn::Reduction::none})
          .doubles();
  CHECK(each[1] == 0);
  close(full_loss(x, some), {(each[0] + each[2]) / 2});
  close(chunked(x, some), {(each[0] + each[2]) / 2});
  for (std::int32_t outside : {-100, -1, 5, 1000}) {
    auto none = ints({outside, outside, outside}, Pos);
    auto of_none = [&](auto loss) {
      return value_and_grad([&](const NamedArray& x) { return loss(x, none); })(x);
    };
    auto [l1, g1] = of_none(full_loss);
    auto [l2, g2] = of_none(chunked);
    close(l1, {0});
    close(l2, {0});
    close(g1, std::vector<double>(12, 0.));
    close(g2, std::vector<double>(12, 0.));
  }
  auto weight = array({1, 5, 3}, Pos);
  close(nn::cross_entropy_loss(dot(x, w, Embed), Vocab, some, {.weight = weight}),
        {(each[0] + 3 * each[2]) / 4});
  close(nn::linear_cross_entropy(x, w, some, Embed, Vocab, {.weights = weight}).loss,
        {(each[0] + 3 * each[2]) / 4});
}

TEST_CASE("standardize: given moments and a mask replace those of the array") {
  auto x = array({1, 2, 3, 6}, Embed);
  close(nn::standardize(x, Embed, {.epsilon = 0}), standardize(x, Embed, 0).doubles());
  close(
      nn::standardize(x, Embed, {.mean = NamedArray(1.), .variance = NamedArray(4.), .epsilon = 0}),
      {0, 0.5, 1, 2.5});
  // mean 2, variance 2/3
  const double s = std::sqrt(1.5);
  close(nn::standardize(x, Embed, {.epsilon = 0, .where = arange(Embed) < 3}), {-s, 0, s, 4 * s});
  CHECK(nn::standardize(astype(x, DType::bf16), Embed, {.mean = NamedArray(1.)}).dtype() ==
        DType::bf16);
  raises([&] { nn::standardize(x, Embed, {.mean = ones(Pos)}); },
         {"[standardize] axis pos of the mean is not in", "modules_test.cpp:"});
}

TEST_CASE("attention: starts with axes, a scale, and either order of the first two arguments") {
  const Axis KPos("key_pos", 3), Size("size", 2);
  auto starts = ints({0, 2}, Batch);
  auto mask = nn::causal_mask(Pos, KPos, 0, starts);
  CHECK(mask.axes() == make_axes(Pos, Batch, KPos));
  for (int b = 0; b < 2; ++b)
    close(at(mask, Batch, b), nn::causal_mask(Pos, KPos, 0, b == 0 ? 0 : 2).doubles());
  auto of_queries = nn::causal_mask(Pos, KPos, starts);
  CHECK(of_queries.axes() == make_axes(Pos, Batch, KPos));
  close(at(of_queries, Batch, 1), nn::causal_mask(Pos, KPos, 2).doubles());
  auto both = nn::causal_mask(Pos, KPos, starts, starts);
  close(at(both, Batch, 1), nn::causal_mask(Pos, KPos).doubles());
  auto prefix = nn::prefix_lm_mask(Pos, KPos, starts);
  CHECK(prefix.axes() == make_axes(Pos, Batch, KPos));
  close(at(prefix, Batch, 1), nn::prefix_lm_mask(Pos, KPos, 2).doubles());
  raises([&] { nn::causal_mask(Pos, KPos, arange(Pos)); },
         {"[causal_mask] axis pos of a start", "modules_test.cpp:"});

  auto q = random::normal(random::key(0), {Pos, Size}),
       k = random::normal(random::key(1), {KPos, Size});
  auto weights = nn::dot_product_attention_weights(KPos, Size, q, k);
  close(nn::dot_product_attention_weights(Size, KPos, q, k), weights.doubles());
  CHECK(weights.axes() == make_axes(Pos, KPos));
  close(nn::dot_product_attention_weights(KPos, Size, q, k, {.scaling_factor = 3}),
        softmax(3. * dot(q, k, Size), KPos).doubles());
  raises([&] { nn::dot_product_attention_weights(Pos, Size, q, q); }, {"pos is also in the query"});
}

TEST_CASE("kv cache: a full cache raises while lengths are computed outside of jit") {
  const Axis One("pos", 1), Short("key_pos", 2), Size("size", 2);
  auto cache = nn::KVCache::init(Short, Size);
  auto k = ones({One, Size});
  for (int step = 0; step < 2; ++step) {
    cache = cache.append(k, k, "pos");
    cache.lengths.eval();
  }
  raises(
      [&] { cache.append(k, k, "pos"); },
      {"[kv_cache] the cache is full: 3 positions are needed", "key_pos=2", "modules_test.cpp:"});
  auto rows =
      nn::KVCache::init(Short, Size, Batch)
          .append(ones({Batch, One, Size}), ones({Batch, One, Size}), "pos", ints({1, 0}, Batch));
  CHECK(rows.append(ones({Batch, One, Size}), ones({Batch, One, Size}), "pos").lengths.integers() ==
        std::vector<std::int64_t>{2, 1});
}

TEST_CASE("modules: an ignored key, the width as an axis, and the dtype of a norm") {
  auto key = random::key(0);
  auto x = random::normal(key, {Batch, Embed});
  auto linear = nn::Linear::init(Embed, Out, key);
  close(linear(x, key), linear(x).doubles());
  auto mlp = nn::MLP::init(Embed, Out, Axis("ff", 7), 2, key);
  CHECK(mlp.In() == AxisSpec(Embed));
  CHECK(mlp.Out() == AxisSpec(Out));
  CHECK(mlp.layers[0].Out == AxisSpec(Axis("ff", 7)));
  CHECK(mlp.layers[1].Out == AxisSpec(Axis("ff2", 7)));
  close(mlp(x, key), mlp(x).doubles());
  close(mlp(x), [&] {
    auto by_size = nn::Mlp::init(Embed, Out, 7, 2, key);
    return by_size(x).doubles();
  }());
  raises([] { nn::Mlp().In(); }, {"[mlp] it has no layers"});
  CHECK(nn::RmsNorm::init(Embed, {.dtype = DType::bf16}).dtype == DType::bf16);
  raises([] { nn::RmsNorm::init(Embed, {.dtype = DType::i32}); }, {"[rms_norm] dtype is i32"});
  close(nn::swish(x), nn::silu(x).doubles());
}

TEST_CASE("resize_axis: new rows have the mean and deviation of the rows") {
  const Axis Wide("embed", 512);
  auto key = random::key(1);
  auto e = nn::Embedding::init(Vocab, Wide, key);
  e.weight = e.weight * 3. + 5.;
  auto larger = e.resize_embeddings(9, random::key(2));
  CHECK(larger.Vocab == Axis("vocab", 9));
  CHECK(larger.weight.axes() == make_axes(Axis("vocab", 9), Wide));
  close(slice(larger.weight, "vocab", 0, 5), e.weight.doubles());
  // As in Haliax: the key itself draws the rows of one array.
  auto drawn = random::truncated_normal(random::key(2), {Axis("vocab", 4), Wide}, -2., 2.) *
                   std_dev(e.weight, Vocab) +
               mean(e.weight, Vocab);
  close(slice(larger.weight, "vocab", 5, 4), drawn.doubles());
  auto by_mean = e.resize_embeddings(6);
  close(at(by_mean.weight, "vocab", 5), mean(e.weight, Vocab).doubles());
  CHECK(e.resize_embeddings(2).weight.axes()[0].size == 2);
  close(e.resize_embeddings(5, key).weight, e.weight.doubles());

  auto model = Model::init(key);
  auto resized = nn::resize_vocab(model, Vocab, 8, random::key(4));
  CHECK(resized.tokens.Vocab.size == 8);
  CHECK(resized.head->Out == AxisSpec(Axis("vocab", 8)));
  CHECK(resized.head->weight.axes() == make_axes(Axis("vocab", 8), Embed));
  CHECK(resized.head->bias->axes() == make_axes(Axis("vocab", 8)));
  close(resized.blocks.stacked.up.weight, model.blocks.stacked.up.weight.doubles());
  auto logits = (*resized.head)(resized.tokens(ints({7, 0, 1}, Pos)));
  CHECK(logits.axes() == make_axes(Pos, Axis("vocab", 8)));
  CHECK(all(isfinite(logits)).item() == 1);
  raises([&] { nn::resize_vocab(model, "vocb", 8); }, {"[resize_vocab]", "vocb"});
  raises([&] { resize_axis(e.weight, Vocab, -1); }, {"[resize_axis]", "-1"});
  // A tree: each array has a key of its own; arrays without the axis stay.
  auto tree = resize_axis(std::pair(zeros({Vocab, Embed}), ones(Embed)), "vocab", 6, key);
  CHECK(tree.first.axes()[0].size == 6);
  close(tree.second, {1, 1, 1, 1});
}

TEST_CASE("tree_map: modules as leaves, and arrays of stacked layers one layer at a time") {
  auto model = Model::init(random::key(0));
  int linears = 0;
  auto zeroed = tree_map(
      [&](const nn::Linear& l) {
        ++linears;
        auto out = l;
        out.weight = zeros_like(l.weight);
        return out;
      },
      model, is_leaf<nn::Linear>);
  CHECK(linears == 2);
  CHECK(max(abs(zeroed.head->weight)).item() == 0);
  CHECK(max(abs(zeroed.blocks.stacked.up.weight)).item() == 0);
  close(zeroed.tokens.weight, model.tokens.weight.doubles());
  // A function of modules and of arrays is applied to both.
  auto doubled = tree_map(
      [](const auto& x) {
        if constexpr (std::is_same_v<std::decay_t<decltype(x)>, NamedArray>)
          return x * 2.;
        else
          return x;
      },
      model, is_leaf<nn::Linear>);
  close(doubled.tokens.weight, (model.tokens.weight * 2.).doubles());
  close(doubled.head->weight, model.head->weight.doubles());

  std::vector<std::string> paths;
  for_each_module<nn::Dropout>(model, [&](const std::string& path, nn::Dropout& d) {
    paths.push_back(path);
    d.pdrop = 0.25;
  });
  CHECK(paths == std::vector<std::string>{"blocks.stacked.drop", "drops.0", "drops.1"});
  CHECK(model.blocks.stacked.drop.pdrop == 0.25);

  std::vector<Axes> seen;
  auto unit = scan_aware_tree_map(
      [&](const NamedArray& w, const NamedArray& other) {
        seen.push_back(w.axes());
        return w / sqrt(sum(w * other));
      },
      model, model);
  CHECK(seen[0] == make_axes(Vocab, Embed));
  CHECK(seen[1] == make_axes(Axis("hidden", 4), Embed));  // without the layer axis
  auto w = model.blocks.stacked.up.weight;
  CHECK(unit.blocks.stacked.up.weight.axes() == w.axes());
  close(unit.blocks.stacked.up.weight, (w / sqrt(sum(w * w, {"hidden", "embed"}))).doubles());
}
