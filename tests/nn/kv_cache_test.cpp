// Tests of `nn::KVCache`: its contents, and attention through the cache against attention over the
// full sequence.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "haliax/view.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch("batch", 3), Heads("kv_heads", 2), Group("group", 2), Size("head_size", 8),
    Pos("key_pos", 12);
const Axis Embed("embed", 16);

struct Text {
  NamedArray q, k, v;  // (batch, kv_heads, group?, pos, head_size)
  explicit Text(std::int64_t length) {
    const Axis P("pos", length);
    auto keys = random::split<3>(random::key(5));
    q = random::normal(keys[0], {Batch, P, Heads, Group, Size}).eval();
    k = random::normal(keys[1], {Batch, P, Heads, Size}).eval();
    v = random::normal(keys[2], {P, Batch, Heads, Size}).eval();
  }
};
NamedArray attended(const NamedArray& q, const nn::KVCache& before, const nn::KVCache& after) {
  auto P = q.resolve_axis("pos");
  return nn::dot_product_attention("key_pos", "head_size", q, after.keys, after.values,
                                   {.mask = before.mask(P)});
}
struct Block {
  nn::Linear q, kv, out;
  static Block init(const Key& key) {
    auto k = random::split<3>(key);
    return {nn::Linear::init(Embed, {Heads, Group, Size}, k[0]),
            nn::Linear::init(Embed, {Axis("two", 2), Heads, Size}, k[1]),
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

TEST_CASE(
    "kv cache: decoding token by token matches "
    "attention over the full sequence, with grouped heads") {
  const Text t(12);
  auto K = rename(t.k, "pos", "key_pos"), V = rename(t.v, "pos", "key_pos");
  auto full_sequence = nn::dot_product_attention("key_pos", "head_size", t.q, K, V,
                                                 {.mask = nn::causal_mask(Axis("pos", 12), Pos)});
  auto cache = nn::KVCache::init(Pos, {Heads, Size}, Batch);
  auto step = jit(
      [](const NamedArray& q, const NamedArray& k, const NamedArray& v, const nn::KVCache& c) {
        auto next = c.append(k, v, "pos");
        return std::pair(attended(q, c, next), next);
      },
      {.donate = {3}});
  for (std::int64_t at = 0; at < 12;) {  // five tokens first, then one per iteration
    const std::int64_t n = at == 0 ? 5 : 1;
    auto part = [&](const NamedArray& x) { return slice(x, "pos", int(at), n); };
    auto [out, next] = step(part(t.q), part(t.k), part(t.v), cache);
    CHECK(difference(out, part(full_sequence)) < 1e-5);
    cache = next;
    at += n;
    CHECK(max(abs(cache.lengths - int(at))).item() == 0);
  }
  CHECK(difference(cache.keys, K) == 0);
  CHECK(difference(cache.values, V) == 0);
}

TEST_CASE(
    "kv cache: sequences of different lengths in one batch match attention over each sequence") {
  const Text t(12);
  const std::int32_t prompts[] = {2, 5, 4};
  auto count = array(std::span<const std::int32_t>(prompts), Batch);
  const Axis First("pos", 5);
  auto first = [&](const NamedArray& x) { return slice(x, "pos", 0, 5); };
  auto cache =
      nn::KVCache::init(Pos, {Heads, Size}, Batch).append(first(t.k), first(t.v), "pos", count);
  CHECK(difference(cache.lengths, count) == 0);
  // Each sequence continues at its own length: selects the token of `x` at that position.
  auto next_of = [&](const NamedArray& x, const NamedArray& where) {
    auto here = broadcast_axis(where, Axis("pos", 12)) == arange(Axis("pos", 12));
    return broadcast_axis(sum(x * astype(here, x.dtype()), "pos"), Axis("pos", 1));
  };
  for (int iteration = 0; iteration < 6; ++iteration) {
    auto where = cache.lengths;
    auto q = next_of(t.q, where), k = next_of(t.k, where), v = next_of(t.v, where);
    auto after = cache.append(k, v, "pos");
    auto got = attended(q, cache, after);
    for (int b = 0; b < 3; ++b) {
      const std::int64_t length = prompts[b] + iteration + 1;
      auto of = [&](const NamedArray& x) { return slice(at(x, "batch", b), "pos", 0, length); };
      auto K = rename(of(t.k), "pos", "keys"), V = rename(of(t.v), "pos", "keys");
      auto expected = nn::dot_product_attention(
          "keys", "head_size", at(at(t.q, "batch", b), "pos", int(length) - 1), K, V);
      CHECK(difference(at(at(got, "batch", b), "pos", 0), expected) < 1e-5);
    }
    cache = after;
  }
}

TEST_CASE("kv cache: a step of stacked layers appends to the donated cache in place") {
  const Axis Layers("layers", 4), Long("key_pos", 1000);
  auto blocks =
      nn::Stacked<Block>::init(Layers, Block::init, random::split(random::key(0), Layers));
  auto cache = tree_map([](const NamedArray& a) { return a.eval(); },
                        nn::KVCache::init(Long, {Heads, Size}, {Layers, Batch}));
  auto step = jit([](const nn::Stacked<Block>& b, const NamedArray& x,
                     const nn::KVCache& c) { return b.scan(x, c); },
                  {.donate = {2}});
  auto x = ones({Batch, Axis("pos", 1), Embed}).eval();
  auto r = step.compile(blocks, x, cache);
  CHECK_MESSAGE(r.peak_bytes < 100000, r.program);  // scores of one layer, and small temporaries
  CHECK(r.not_donated.empty());
  cache = step(blocks, x, cache).second;  // keys and values shared one array of zeros before
  auto* was = as_span<float>(cache.keys).data();
  CHECK(as_span<float>(step(blocks, x, cache).second.keys).data() == was);
}

TEST_CASE(
    "kv cache: inside of jit tokens beyond the capacity are dropped, the cache has the given "
    "dtype, bad arguments raise") {
  const Axis One("pos", 1), Two("pos", 2), Short("key_pos", 2);
  auto cache = nn::KVCache::init(Short, Size, {}, DType::bf16);
  CHECK(cache.keys.dtype() == DType::bf16);
  CHECK(cache.lengths.axes().empty());
  auto full = cache.append(ones({Two, Size}), ones({Two, Size}), "pos");
  auto append =
      jit([&](const nn::KVCache& c, const NamedArray& k) { return c.append(k, k, "pos"); });
  auto more = append(full, zeros({One, Size}));
  CHECK(more.lengths.item() == 2);
  CHECK(sum(more.keys.astype(DType::f32)).item() == 16);
  raises([&] { nn::KVCache::init(Pos, {}); },
         {"[kv_cache] keys and values require an axis", "kv_cache_test.cpp:"});
  raises(
      [&] {
        cache.append(ones({Heads, One, Size}), ones({One, Size}), "pos");
      },
      {"[kv_cache] the new keys have axes (kv_heads=2, pos=1, head_size=8)",
       "expected (pos=1, head_size=8)", "kv_cache_test.cpp:"});
  raises(
      [&] {
        cache.append(ones({Short, Size}), ones({Short, Size}), "key_pos");
      },
      {"[kv_cache] the new positions have the axis name key_pos of the cache",
       "kv_cache_test.cpp:"});
}

TEST_CASE(
    "kv cache: counts are clamped to the number of new positions, and lengths to the capacity") {
  const Axis New("pos", 4);
  const Text t(4);
  auto step = jit([](const nn::KVCache& c, const NamedArray& k, const NamedArray& v,
                     const NamedArray& count) { return c.append(k, v, "pos", count); });
  auto append = [&](const nn::KVCache& c, std::initializer_list<double> counts, DType d) {
    return step(c, t.k, t.v, array(counts, Batch).astype(d).eval());
  };
  auto lengths = [](const nn::KVCache& c) { return c.lengths.integers(); };
  using Lengths = std::vector<std::int64_t>;
  auto empty = nn::KVCache::init(Pos, {Heads, Size}, Batch);
  for (auto d : {DType::i8, DType::i32, DType::i64})
    CHECK(lengths(append(empty, {9, -3, 2}, d)) == Lengths{4, 0, 2});
  for (auto d : {DType::u8, DType::u32, DType::u64})
    CHECK(lengths(append(empty, {9, 200, 2}, d)) == Lengths{4, 4, 2});
  auto large = full(Batch, std::int64_t(4294967295), DType::u32);
  CHECK(lengths(step(empty, t.k, t.v, large.eval())) == Lengths{4, 4, 4});

  auto cache = append(empty, {9, -3, 2}, DType::i32);
  // The filled positions, and the new one.
  auto seen = sum(cache.mask(Axis("pos", 1)).astype(DType::i32), {"pos", "key_pos"});
  CHECK(seen.integers() == Lengths{5, 1, 3});
  for (int iteration = 0; iteration < 2; ++iteration) cache = append(cache, {4, 4, 4}, DType::i32);
  CHECK(lengths(cache) == Lengths{12, 8, 10});
  auto full_one = append(cache, {4, 4, 4},
                         DType::i32);  // space for none, for all, and for half of the new positions
  CHECK(lengths(full_one) == Lengths{12, 12, 12});
  auto part = [](const NamedArray& x, int b, int from, std::int64_t n) {
    return slice(at(x, "batch", b), "key_pos", from, n);
  };
  CHECK(difference(part(full_one.keys, 0, 0, 12), part(cache.keys, 0, 0, 12)) == 0);
  CHECK(difference(part(full_one.keys, 2, 10, 2), part(rename(t.k, "pos", "key_pos"), 2, 0, 2)) ==
        0);
}

TEST_CASE("kv cache: debug::check reports a full cache") {
  const Axis One("pos", 1), Short("key_pos", 2);
  auto step = jit([&](const nn::KVCache& c, const NamedArray& k) {
    debug::check(c.lengths + 1 <= c.Pos.size, "the cache is full");
    return c.append(k, k, "pos");
  });
  auto cache = nn::KVCache::init(Short, Size);
  auto k = ones({One, Size}).eval();
  for (int iteration = 0; iteration < 2; ++iteration) cache = step(cache, k);
  raises([&] { step(cache, k).lengths.eval(); },
         {"[check] the cache is full", "kv_cache_test.cpp:"});
}

TEST_CASE("kv cache: invalid arguments raise with the line of the call") {
  const Axis New("pos", 4), Short("key_pos", 6);
  auto cache = nn::KVCache::init(Short, {Heads, Size}, Batch);
  auto k = ones({Batch, New, Heads, Size});
  auto append = [&](const NamedArray& count) { return cache.append(k, k, "pos", count); };
  // A float count is valid if its value is a whole number.
  CHECK(append(3).lengths.integers() == std::vector<std::int64_t>{3, 3, 3});
  raises([&] { append(2.5); }, {"[kv_cache] count: expected an integer",
                                "positions of pos=4, got f32", "kv_cache_test.cpp:"});
  raises(
      [&] {
        append(array({1, 2, 3}, Batch));
      },
      {"[kv_cache] count: expected an integer", "kv_cache_test.cpp:"});
  raises([&] { append(ones({}, DType::boolean)); }, {"[kv_cache] count: expected an integer"});
  raises(
      [&] {
        append(zeros({Batch, Axis("bach", 2)}, DType::i32));
      },
      {"[kv_cache] axis bach of the count is not in the lengths (batch=3)", "batch?"});
  raises(
      [&] { append(5); },
      {"[kv_cache] count is 5, which is out of range for the new positions pos=4; expected 0 to 4",
       "kv_cache_test.cpp:"});
  raises([&] { append(full_like(cache.lengths, -1)); },
         {"[kv_cache] count is -1, which is out of range"});

  auto seven = ones({Batch, Axis("pos", 7), Heads, Size});
  raises([&] { cache.append(seven, seven, "pos"); },
         {"[kv_cache] 7 more positions exceed the capacity key_pos=6; use", "kv_cache_test.cpp:"});
  auto some = array({6, 6, 2}, Batch).astype(DType::i32).eval();
  CHECK(cache.append(seven, seven, "pos", some).lengths.integers() ==
        std::vector<std::int64_t>{6, 6, 2});
  cache.lengths = full(Batch, 3, DType::i32);
  raises([&] { cache.append(k, k, "pos"); },
         {"[kv_cache] 4 more positions exceed the capacity key_pos=6"});
  append(3);
  cache.lengths = ones(Batch);
  raises([&] { append(3); },
         {"[kv_cache] lengths: expected integers, got f32", "kv_cache_test.cpp:"});
  raises([&] { cache.mask(New); },
         {"[kv_cache] lengths: expected integers, got f32", "kv_cache_test.cpp:"});

  raises([&] { nn::KVCache::init(Pos, Size, {}, DType::boolean); },
         {"[kv_cache] the dtype of the cache is bool", "kv_cache_test.cpp:"});
  auto narrow = nn::KVCache::init(Short, Size, {}, DType::i8);
  auto x = ones({New, Size});
  raises([&] { narrow.append(x, x, "pos"); },
         {"[kv_cache] the new keys are f32, but a cache of i8 would truncate them",
          "kv_cache_test.cpp:"});
  CHECK(narrow.append(x.astype(DType::i32), x.astype(DType::i8), "pos").keys.dtype() == DType::i8);
}
