// The cache of keys and values: what it holds, and that attention through it is attention over the whole text.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "haliax/view.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 3), Heads("kv_heads", 2), Group("group", 2), Size("head_size", 8), Pos("key_pos", 12), Embed("embed", 16);

struct Text {
  NamedArray q, k, v;                            // (batch, kv_heads, group?, pos, head_size)
  explicit Text(std::int64_t length) {
    const Axis P("pos", length);
    auto keys = random::split<3>(random::key(5));
    q = random::normal(keys[0], {Batch, P, Heads, Group, Size}).eval();
    k = random::normal(keys[1], {Batch, P, Heads, Size}).eval(), v = random::normal(keys[2], {P, Batch, Heads, Size}).eval();
  }
};
NamedArray attended(const NamedArray& q, const nn::KVCache& before, const nn::KVCache& after) {
  auto P = q.resolve_axis("pos");
  return nn::dot_product_attention("key_pos", "head_size", q, after.keys, after.values, {.mask = before.mask(P)});
}
struct Block {
  nn::Linear q, kv, out;
  static Block init(const Key& key) {
    auto k = random::split<3>(key);
    return {nn::Linear::init(Embed, {Heads, Group, Size}, k[0]), nn::Linear::init(Embed, {Axis("two", 2), Heads, Size}, k[1]),
            nn::Linear::init({Heads, Group, Size}, Embed, k[2])};
  }
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const nn::KVCache& c) const {
    auto both = kv(x).unbind("two");
    auto next = c.append(both[0], both[1], "pos");
    return {x + out(attended(q(x), c, next)), next};
  }
};
double difference(const NamedArray& a, const NamedArray& b) { return max(abs(a - b)).item(); }

}  // namespace

TEST_CASE("kv cache: token by token is the whole text at once, with heads in groups") {
  const Text t(12);
  auto K = rename(t.k, "pos", "key_pos"), V = rename(t.v, "pos", "key_pos");
  auto whole = nn::dot_product_attention("key_pos", "head_size", t.q, K, V, {.mask = nn::causal_mask(Axis("pos", 12), Pos)});
  auto cache = nn::KVCache::init(Pos, {Heads, Size}, Batch);
  auto step = jit([](const NamedArray& q, const NamedArray& k, const NamedArray& v, const nn::KVCache& c) {
    auto next = c.append(k, v, "pos");
    return std::pair(attended(q, c, next), next);
  }, {.donate = {3}});
  for (std::int64_t at = 0; at < 12;) {          // five at first, then one at a time
    const std::int64_t n = at == 0 ? 5 : 1;
    auto part = [&](const NamedArray& x) { return slice(x, "pos", int(at), n); };
    auto [out, next] = step(part(t.q), part(t.k), part(t.v), cache);
    CHECK(difference(out, part(whole)) < 1e-5);
    cache = next, at += n;
    CHECK(max(abs(cache.lengths - int(at))).item() == 0);
  }
  CHECK(difference(cache.keys, K) == 0);
  CHECK(difference(cache.values, V) == 0);
}

TEST_CASE("kv cache: texts of different lengths in one batch") {
  const Text t(12);
  const std::int32_t prompts[] = {2, 5, 4};
  auto count = array(std::span<const std::int32_t>(prompts), Batch);
  const Axis First("pos", 5);
  auto first = [&](const NamedArray& x) { return slice(x, "pos", 0, 5); };
  auto cache = nn::KVCache::init(Pos, {Heads, Size}, Batch).append(first(t.k), first(t.v), "pos", count);
  CHECK(difference(cache.lengths, count) == 0);
  // Each text goes on where it ended: with the token at that place of the whole.
  auto next_of = [&](const NamedArray& x, const NamedArray& where) {
    auto here = broadcast_axis(where, Axis("pos", 12)) == arange(Axis("pos", 12));
    return broadcast_axis(sum(x * astype(here, x.dtype()), "pos"), Axis("pos", 1));
  };
  for (int turn = 0; turn < 6; ++turn) {
    auto where = cache.lengths;
    auto q = next_of(t.q, where), k = next_of(t.k, where), v = next_of(t.v, where);
    auto after = cache.append(k, v, "pos");
    auto got = attended(q, cache, after);
    for (int b = 0; b < 3; ++b) {
      const std::int64_t length = prompts[b] + turn + 1;
      auto of = [&](const NamedArray& x) { return slice(at(x, "batch", b), "pos", 0, length); };
      auto K = rename(of(t.k), "pos", "keys"), V = rename(of(t.v), "pos", "keys");
      auto want = nn::dot_product_attention("keys", "head_size", at(at(t.q, "batch", b), "pos", int(length) - 1), K, V);
      CHECK(difference(at(at(got, "batch", b), "pos", 0), want) < 1e-5);
    }
    cache = after;
  }
}

TEST_CASE("kv cache: a step of stacked layers writes where the cache lies, and copies none of it") {
  const Axis Layers("layers", 4), Long("key_pos", 1000);
  auto blocks = nn::Stacked<Block>::init(Layers, Block::init, random::split(random::key(0), Layers));
  auto cache = tree_map([](const NamedArray& a) { return a.eval(); }, nn::KVCache::init(Long, {Heads, Size}, {Layers, Batch}));
  auto step = jit([](const nn::Stacked<Block>& b, const NamedArray& x, const nn::KVCache& c) { return b.scan(x, c); },
                  {.donate = {2}});
  auto x = ones({Batch, Axis("pos", 1), Embed}).eval();
  auto r = step.compile(blocks, x, cache);
  CHECK_MESSAGE(r.peak_bytes < 100000, r.program);       // scores of a layer, and what is small
  CHECK(r.not_donated.empty());
  cache = step(blocks, x, cache).second;         // keys and values were one array of zeros
  auto* was = as_span<float>(cache.keys).data();
  CHECK(as_span<float>(step(blocks, x, cache).second.keys).data() == was);
}

TEST_CASE("kv cache: what finds no room is dropped; narrow dtypes; errors") {
  const Axis One("pos", 1), Two("pos", 2), Short("key_pos", 2);
  auto cache = nn::KVCache::init(Short, Size, {}, DType::bf16);
  CHECK(cache.keys.dtype() == DType::bf16);
  CHECK(cache.lengths.axes().empty());
  auto full = cache.append(ones({Two, Size}), ones({Two, Size}), "pos");
  auto more = full.append(zeros({One, Size}), zeros({One, Size}), "pos");
  CHECK(sum(more.keys.astype(DType::f32)).item() == 16);
  raises([&] { nn::KVCache::init(Pos, {}); }, {"[kv_cache] keys and values need an axis", "kv_cache_test.cpp:"});
  raises([&] { cache.append(ones({Heads, One, Size}), ones({One, Size}), "pos"); },
         {"[kv_cache] the new keys have axes (kv_heads=2, pos=1, head_size=8)", "are to have (pos=1, head_size=8)", "kv_cache_test.cpp:"});
  raises([&] { cache.append(ones({Short, Size}), ones({Short, Size}), "key_pos"); },
         {"[kv_cache] the new positions have the name key_pos of the cache's", "kv_cache_test.cpp:"});
}
