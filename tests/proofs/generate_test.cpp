// GPT-2 generates the same tokens with a cache as without one, and a decode step holds no copy of
// the cache.
#include <doctest/doctest.h>

#include <algorithm>

#include "examples/gpt2/model.h"
#include "haliax/jit.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Vocab{"vocab", 90};

struct Out {
  NamedArray logits;  // (vocab) of the last token that counts
  nn::KVCache cache;
};
Out logits_of(const gpt2::Gpt2LMHeadModel& m, const NamedArray& ids, const nn::KVCache& cache,
              const NamedArray& count) {
  auto [hidden, next] = m.hidden_states(ids, cache, count);
  return {dot(at(hidden, "position", count - 1), m.head(), "embed"), next};
}

}  // namespace

TEST_CASE("generate: GPT-2 generates the same tokens with a cache as without one") {
  for (bool scaled : {false, true}) {
    gpt2::Gpt2Config c{
        .seq_len = 40, .hidden_dim = 32, .num_layers = 3, .num_heads = 4, .initializer_range = 0.4};
    c.tied = !scaled;
    c.scale_by_inverse_layer_idx = scaled;
    c.upcast_attention = scaled;
    auto model =
        jit([&](const Key& k) { return gpt2::Gpt2LMHeadModel::init(Vocab, c, k); })(random::key(3));
    auto prefill =
        jit([](const gpt2::Gpt2LMHeadModel& m, const NamedArray& ids, const NamedArray& count) {
          return logits_of(m, ids, m.cache(DType::f32), count);
        });
    auto decode = jit(
        [](const gpt2::Gpt2LMHeadModel& m, const NamedArray& id, const nn::KVCache& cache) {
          return logits_of(m, broadcast_axis(id, Axis("position", 1)), cache, ones({}, DType::i32));
        },
        {.donate = {2}});
    auto full_sequence =
        jit([](const gpt2::Gpt2LMHeadModel& m, const NamedArray& ids) { return m(ids); });

    std::vector<std::int32_t> text{7, 11, 3};
    auto padded = [&] {
      auto all = text;
      all.resize(40);
      return array(std::span<const std::int32_t>(all), c.Pos());
    };
    auto last = prefill(model, padded(), full({}, 3, DType::i32));
    std::vector<int> seen;
    while (text.size() < 40) {
      auto expected = at(full_sequence(model, padded()), "position", int(text.size()) - 1);
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

    auto r = decode.compile(model, ones({}, DType::i32), model.cache(DType::f32));
    CHECK(r.peak_bytes < 8192);  // a cache has 30,720 bytes
    CHECK(r.not_donated.empty());
  }
}
