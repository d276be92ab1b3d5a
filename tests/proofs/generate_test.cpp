// GPT-2 generates the same tokens with a cache as without one, and a decode step holds no copy of
// the cache.
#include <doctest/doctest.h>

#include <algorithm>

#include "examples/models/gpt2.h"
#include "haliax/jit.h"
#include "support/raises.h"

using namespace haliax;

namespace {

struct Out {
  NamedArray logits;  // (vocab) of the last token that counts
  nn::KVCache cache;
};
Out logits_of(const models::GPT2LMHeadModel& m, const NamedArray& ids, const nn::KVCache& cache,
              const NamedArray& count) {
  auto [hidden, next] = m.transformer(ids, cache, count);
  return {dot(at(hidden, "pos", count - 1), m.head(), "embed"), next};
}

}  // namespace

TEST_CASE("generate: GPT-2 generates the same tokens with a cache as without one") {
  for (bool scaled : {false, true}) {
    models::GPT2Config c{.vocab_size = 90,
                         .n_positions = 40,
                         .n_embd = 32,
                         .n_layer = 3,
                         .n_head = 4,
                         .initializer_range = 0.4};
    c.tie_word_embeddings = !scaled;
    c.scale_attn_by_inverse_layer_idx = scaled;
    c.reorder_and_upcast_attn = scaled;
    auto model =
        jit([&](const Key& k) { return models::GPT2LMHeadModel::init(c, k); })(random::key(3));
    auto prefill =
        jit([](const models::GPT2LMHeadModel& m, const NamedArray& ids, const NamedArray& count) {
          return logits_of(m, ids, m.cache({}, DType::f32), count);
        });
    auto decode = jit(
        [](const models::GPT2LMHeadModel& m, const NamedArray& id, const nn::KVCache& cache) {
          return logits_of(m, broadcast_axis(id, Axis("pos", 1)), cache, ones({}, DType::i32));
        },
        {.donate = {2}});
    auto full_sequence =
        jit([](const models::GPT2LMHeadModel& m, const NamedArray& ids) { return m(ids); });

    std::vector<std::int32_t> text{7, 11, 3};
    auto padded = [&] {
      auto all = text;
      all.resize(40);
      return array(std::span<const std::int32_t>(all), c.Pos());
    };
    auto last = prefill(model, padded(), full({}, 3, DType::i32));
    std::vector<int> seen;
    while (text.size() < 40) {
      auto expected = at(full_sequence(model, padded()), "pos", int(text.size()) - 1);
      CHECK(max(abs(last.logits - expected)).item() < 1e-4 * max(abs(expected)).item());
      auto id = argmax(last.logits, "vocab");
      CHECK(id.item() == argmax(expected, "vocab").item());
      text.push_back(std::int32_t(id.item()));
      seen.push_back(text.back());
      last = decode(model, id, last.cache);
    }
    std::sort(seen.begin(), seen.end());
    // Otherwise the comparison of tokens would be weak.
    CHECK(std::unique(seen.begin(), seen.end()) - seen.begin() > 3);
    CHECK(max(abs(last.cache.lengths - 40)).item() == 0);

    auto r = decode.compile(model, ones({}, DType::i32), model.cache({}, DType::f32));
    CHECK(r.peak_bytes < 8192);  // a cache has 30,720 bytes
    CHECK(r.not_donated.empty());
  }
}
