// The code of docs/how-to/long-context.md, compiled and run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "haliax/haliax.h"
#include "printed.h"

using namespace haliax;

namespace {

struct Attention {
  nn::Linear q, kv, out;

  static Attention init(const Axis& Embed, const Axis& Heads, const Axis& Size, const Key& key) {
    auto keys = random::split<3>(key);
    return {nn::Linear::init(Embed, {Heads, Size}, keys[0]),
            nn::Linear::init(Embed, {Axis("two", 2), Heads, Size}, keys[1]),
            nn::Linear::init({Heads, Size}, Embed, keys[2])};
  }
  // x (pos, embed): one or more new positions
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x,
                                                const nn::KVCache& cache) const {
    auto Pos = x.resolve_axis("pos");
    auto both = kv(x).unbind("two");
    auto next = cache.append(both[0], both[1], Pos);
    auto y = nn::dot_product_attention("key_pos", "head_size", q(x), next.keys, next.values,
                                       {.mask = cache.mask(Pos)});
    return {x + out(y), next};
  }
};

struct Model {
  nn::Embedding embedding;
  nn::Stacked<Attention> layers;
};

struct Qkv {
  NamedArray q, k, v;
};

}  // namespace

TEST_CASE("long context: attention is chunked, also if it is written by hand") {
  set_threads(2);
  const Axis Heads("heads", 4), Pos("pos", 1024), KeyPos("key_pos", 1024), Size("head_size", 64);
  // q (heads, pos, head_size), k and v (heads, key_pos, head_size)
  auto attend = [=](const Qkv& x) {
    return nn::dot_product_attention("key_pos", "head_size", x.q, x.k, x.v,
                                     {.mask = nn::causal_mask(Pos, KeyPos)});
  };
  auto by_hand = [=](const Qkv& x) {
    auto scores = dot(x.q, x.k, "head_size") / std::sqrt(64.);
    auto weights = softmax(where(nn::causal_mask(Pos, KeyPos), scores, -1e9), "key_pos");
    return dot(weights, x.v, "key_pos");
  };
  auto loss = [=](const Qkv& x) { return sum(square(attend(x))); };
  auto loss_by_hand = [=](const Qkv& x) { return sum(square(by_hand(x))); };
  auto shapes = eval_shape([=] {
    return Qkv{zeros({Heads, Pos, Size}), zeros({Heads, KeyPos, Size}),
               zeros({Heads, KeyPos, Size})};
  });

  auto chunked = jit(grad(loss)).plan(shapes);
  auto materialized = jit(grad(loss), {.scores_budget = most_bytes}).plan(shapes);

  CHECK(!chunked.chunked.empty());
  CHECK(materialized.chunked.empty());
  CHECK(chunked.arena_bytes < 2.4 * (1 << 20));
  CHECK(std::abs(double(materialized.arena_bytes) / (1 << 20) - 34.5) < 1.5);
  CHECK(!jit(grad(loss_by_hand)).plan(shapes).chunked.empty());
  set_threads(0);
}

TEST_CASE("long context: keys and values rotate around the ring of devices") {
  set_devices(4);
  const Axis Heads("heads", 2), Pos("pos", 64), KeyPos("key_pos", 64), Size("head_size", 8);
  auto draw = [&](int seed) {
    return random::normal(random::key(seed), {Heads, Pos, Size}).eval();
  };
  const Qkv x{draw(1), draw(2), draw(3)};
  auto loss = [=](const Qkv& x) {  // q, k and v (heads, pos, head_size)
    auto k = rename(x.k, Pos, KeyPos), v = rename(x.v, Pos, KeyPos);
    auto y = nn::dot_product_attention("key_pos", "head_size", x.q, k, v,
                                       {.mask = nn::causal_mask(Pos, KeyPos)});
    return sum(square(y));
  };

  auto step = named_jit(value_and_grad(loss), {.mesh = Mesh{{{"context", 4}}},
                                               .axis_resources = Mapping{{"pos", "context"}},
                                               .ring = true,
                                               .scores_budget = 0});
  auto [value, gradients] = step(x);

  CHECK(value.item() == doctest::Approx(loss(x).item()).epsilon(1e-5));
  auto report = step.report();
  CHECK(std::any_of(report.collectives.begin(), report.collectives.end(),
                    [](auto& c) { return c.kind == "ring"; }));
  CHECK(report.explain.find("ring") != std::string::npos);
  set_devices(8);
}

TEST_CASE("long context: a zigzag order balances a causal mask") {
  const Axis Pos("pos", 16), KeyPos("key_pos", 16);
  const NamedArray ids = arange(Pos) * 10;

  auto order = nn::zigzag(Pos, 4);
  auto tokens = take(ids, "pos", order);
  auto mask = broadcast_axis(order, KeyPos) >= rename(order, Pos, KeyPos);  // (pos, key_pos)

  Printed printed;
  printed.start();
  std::cout << order;
  CHECK(printed.text() ==
        "NamedArray(i32, (pos=16), [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9])");
  CHECK(at(tokens, "pos", 2).item() == 140);
  CHECK(sum(mask.astype(DType::i32)).item() == 16 * 17 / 2);
}

TEST_CASE("long context: a model generates with a cache of keys and values") {
  const Axis Vocab("vocab", 11), Embed("embed", 8), Heads("heads", 2), Size("head_size", 4);
  const Axis Layers("layers", 2), KeyPos("key_pos", 16);
  auto make = [=](const Key& key) { return Attention::init(Embed, Heads, Size, key); };
  const Model model{
      nn::Embedding::init(Vocab, Embed, random::key(0)),
      nn::Stacked<Attention>::init(Layers, make, random::split(random::key(1), Layers))};

  // the cache of all layers: room for 16 positions
  auto cache = nn::KVCache::init(KeyPos, {Heads, Size}, Layers);
  auto next_token = jit(
      [](const Model& model, const NamedArray& ids, const nn::KVCache& cache) {
        auto [hidden, next] = model.layers.scan(model.embedding(ids), cache);
        auto last = at(hidden, "pos", -1);
        return std::pair(argmax(model.embedding.unembed(last), "vocab"), next);
      },
      {.donate = {2}});

  const std::vector<std::int32_t> prompt{7, 3, 5};
  auto [id, filled] = next_token(model, array(prompt, Axis("pos", 3)), cache);  // prefill
  std::vector<std::int32_t> generated{std::int32_t(id.item())};
  while (generated.size() < 5) {  // decode: one position per call
    auto ids = broadcast_axis(id, Axis("pos", 1));
    std::tie(id, filled) = next_token(model, ids, filled);
    generated.push_back(std::int32_t(id.item()));
  }
  Printed printed;
  printed.start();
  std::cout << filled.lengths;
  CHECK(printed.text() == "NamedArray(i32, (layers=2), [7, 7])");
  CHECK(next_token.report().traces == 2);
  CHECK(next_token.report().not_donated.empty());
  // without the cache: all positions at once
  auto ids = prompt;
  for (auto expected : generated) {
    auto empty = nn::KVCache::init(KeyPos, {Heads, Size}, Layers);
    const Axis Pos("pos", std::int64_t(ids.size()));
    auto hidden = model.layers.scan(model.embedding(array(ids, Pos)), empty).first;
    auto logits = model.embedding.unembed(at(hidden, "pos", -1));
    CHECK(argmax(logits, "vocab").item() == expected);
    ids.push_back(expected);
  }
}
