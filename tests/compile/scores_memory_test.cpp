// Attention whose scores are never materialized: planned memory, checkpoints, layers, and the
// reasons in explain.
#include <doctest/doctest.h>

#include "compile/scores_model.h"

using namespace haliax;
using namespace haliax::scores_model;

TEST_CASE("attention scores: memory does not grow with the sequence length") {
  auto arena = [](std::int64_t positions, DType dtype) {
    const Axis Pos("pos", positions), KPos("kpos", positions), Heads("heads", 4), Head("head", 64);
    using Three = std::array<NamedArray, 3>;
    auto loss = [=](const Three& p) {
      auto k = rename(p[1], {{"pos", "kpos"}}), v = rename(p[2], {{"pos", "kpos"}});
      return sum(square(nn::dot_product_attention("kpos", "head", p[0], k, v,
                                                  {.mask = nn::causal_mask(Pos, KPos)})));
    };
    auto x = zeros({Heads, Pos, Head}, dtype);
    return jit([=](const Three& p) { return grad(loss)(p); }).plan(Three{x, x, x}).arena_bytes;
  };
  // Four heads at 8,192 positions: a matrix of scores is 1 GiB. From 4,096 positions on, rows
  // exceed the cache, and keys are tiled.
  CHECK(arena(8192, DType::f32) < (std::int64_t(20) << 20));
  CHECK(arena(4096, DType::f32) == arena(8192, DType::f32));
  CHECK(arena(16384, DType::f32) == arena(8192, DType::f32));
  CHECK(arena(65536, DType::f32) == arena(8192, DType::f32));
}

// Small gradients of queries are summed in f32. For larger ones, only the scalars of a query are
// carried, for each of the parallel heads.
TEST_CASE("attention scores: in loops that devices share, values without a block are recomputed") {
  const Axis Queries{"q", 4}, Keys{"k", 4};
  const Parts p{draw(1, {B, Queries, D}), draw(2, {Keys, D}), draw(3, {Keys, D}), zeros({})};
  auto all = [](const Parts& p) {  // head by head, with sharded keys
    auto loss = [](const Parts& p) {
      return sum(sin(map(
          [&](const NamedArray& q) { return dot(softmax(dot(q, p.key, "d"), "k"), p.value, "k"); },
          "b")(p.query)));
    };
    auto [out, g] = value_and_grad(loss)(p);
    return Leaves{out, g.query, g.key, g.value};
  };
  JitOptions o{.scores_budget = -1};
  o.mesh = Mesh{{{"x", 2}, {"y", 2}}};
  o.axis_resources = Mapping{{"k", "x"}, {"b", "y"}};
  same(named_jit(all, o)(p), jit(all, {.scores_budget = most_bytes})(p), 2e-6);
}
TEST_CASE("attention scores: checkpointed layers in ring attention have second derivatives") {
  const Axis Queries{"q", 8}, Keys{"k", 8};
  const Parts p{draw(1, {B, Queries, D}), draw(2, {B, Keys, D}), draw(3, {B, Keys, D}), zeros({})};
  auto all = [](bool shards) {
    auto sharded = [=](const NamedArray& x) { return shards ? shard(x, Mapping{{"k", "x"}}) : x; };
    auto layer = checkpoint([=](const Parts& p) {
      return dot(softmax(dot(p.query, sharded(p.key), "d"), "k"), sharded(p.value), "k");
    });
    auto loss = [=](const Parts& p) {
      auto y = layer(p);
      y = layer(Parts{sin(y), p.key, p.value, p.bias}) + y;
      return sum(sin(y) * y);
    };
    return [=](const Parts& p) {
      auto h = grad([=](const Parts& p) {
        auto g = grad(loss)(p);
        return sum(square(g.query)) + sum(square(g.key)) + sum(square(g.value));
      })(p);
      return Leaves{h.query, h.key, h.value};
    };
  };
  JitOptions o{.ring = true, .scores_budget = 0};
  o.mesh = Mesh{{{"x", 2}}};
  o.axis_resources = Mapping{{"q", "x"}};
  same(named_jit(all(true), o)(p), jit(all(false), {.scores_budget = most_bytes})(p), 4e-6);
}

TEST_CASE("attention scores: recomputed values of a checkpoint are tiled, too") {
  const Axis Q{"q", 2048}, K{"k", 2048}, D{"d", 16};
  auto loss = [&](In q, In k, In v) {
    auto attention = [&](In q, In k, In v) {
      return nn::dot_product_attention(K, D, q, k, v, {.mask = nn::causal_mask(Q, K)});
    };
    return sum(sin(2. * checkpoint(attention)(q, k, v)));
  };
  using Three = std::array<NamedArray, 3>;
  auto slopes = [&](const Three& p) {
    return grad([&](const Three& p) { return loss(p[0], p[1], p[2]); })(p);
  };
  const Three p{draw(1, {H, Q, D}), draw(2, {H, K, D}), draw(3, {H, K, D})};
  auto tiled = jit(slopes), materialized = jit(slopes, {.scores_budget = most_bytes});
  same(flatten(tiled(p)), flatten(materialized(p)), 1e-5);
  CHECK(materialized.report().arena_bytes > 3 * 4 * Q.size * K.size);
  CHECK(tiled.report().arena_bytes < 4 << 20);
}

TEST_CASE("attention scores: a budget of 0 splits small scores in thirds, and long ones as usual") {
  auto arena = [](std::int64_t positions, std::optional<std::int64_t> budget) {
    const Axis Pos("pos", positions), KPos("kpos", positions), Heads("heads", 4), Head("head", 64);
    auto x = zeros({Heads, Pos, Head});
    auto slope = grad([=](In x) {
      return sum(
          sin(nn::dot_product_attention(KPos, Head, x, rename(x, Pos, KPos), rename(x, Pos, KPos),
                                        {.mask = nn::causal_mask(Pos, KPos)})));
    });
    return jit(slope, {.scores_budget = budget}).plan(x).arena_bytes;
  };
  CHECK(arena(8192, 0) == arena(8192, std::nullopt));
  CHECK(arena(8192, -1) == arena(8192, std::nullopt));
  CHECK(arena(300, 0) < arena(300, most_bytes));
}

TEST_CASE("attention scores: memory stays below 16 MiB at any length") {
  auto arena = [](std::int64_t positions, DType dtype = DType::bf16, int texts = 1) {
    const Axis Texts("texts", texts), Pos("pos", positions), KPos("kpos", positions),
        Heads("heads", 12), Head("head", 64);
    using Three = std::array<NamedArray, 3>;
    auto q = zeros({Texts, Heads, Pos, Head}, dtype), k = zeros({Texts, Heads, KPos, Head}, dtype);
    auto attention = [=](const Three& p) {
      return nn::dot_product_attention(KPos, Head, p[0], p[1], p[2],
                                       {.mask = nn::causal_mask(Pos, KPos)});
    };
    auto gradients = [=](const Three& in, const NamedArray& cotangent) {
      return vjp(attention, in).second(cotangent);
    };
    auto all = [=](const Three& in, const NamedArray& cotangent) {
      auto [y, pull] = vjp(attention, in);
      return std::pair(y, pull(cotangent));
    };
    const auto bytes = jit(gradients).plan(Three{q, k, k}, q).arena_bytes;
    // The result is computed together with the row values for the gradients; short sequences have
    // little else.
    CHECK(jit(all).plan(Three{q, k, k}, q).arena_bytes <=
          bytes + (positions < 1024 ? 98304 : 65536));
    return bytes;
  };
  const Threads two(2);  // each thread has its own tiles
  // The longest sequences with materialized scores have 391 positions in f32, 553 in bf16.
  for (std::int64_t positions :
       {256, 391, 392, 553, 554, 836, 837, 1024, 4096, 16384, 32768, 65536}) {
    CAPTURE(positions);
    CHECK(arena(positions) < (std::int64_t(16) << 20));
    // 2.1 MiB with AVX2 alone
    CHECK(arena(positions, DType::f32) < (std::int64_t(positions > 391 ? 9 : 64) << 18));
  }
  for (auto dtype : {DType::f32, DType::bf16})
    CHECK(arena(4096, dtype, 2) <= arena(4096, dtype) + 65536);
  CHECK(arena(65536) - arena(32768) <= 2 * 32768 * 6 * std::int64_t(sizeof(float)));
}

// Scores of 8 MiB each: tiled if there are many queries and many keys, and no mesh shards them.
TEST_CASE("attention scores: the default budget tiles large scores") {
  auto is_tiled = [](const Axes& queries, const Axes& keys, const JitOptions& options = {}) {
    auto f = [](const NamedArray& q, const NamedArray& k) {
      return dot(softmax(dot(q, k, "d"), "key"), k, "key");
    };
    return !named_jit(f, options).compile(zeros(queries), zeros(keys)).chunked.empty();
  };
  const Axis H("heads", 23), Q("pos", 300), K("key", 300), D("d", 64), Long("key", 4096);
  CHECK(is_tiled({H, Q, D}, {H, K, D}));
  CHECK(is_tiled({Axis("pos", 512), D}, {Long, D}));
  CHECK(!is_tiled({Axis("pos", 32), Axis("heads", 16), D}, {Long, D}));  // shared keys: few queries
  CHECK(!is_tiled({Axis("heads", 9), Q, D}, {Axis("heads", 9), K, D}));  // 3 MiB
  const Devices two(2);
  CHECK(!is_tiled({H, Q, D}, {H, K, D},
                  {.mesh = Mesh{{{"x", 2}}}, .axis_resources = Mapping{{"heads", "x"}}}));
  // not sharded
  CHECK(is_tiled({H, Q, D}, {H, K, D},
                 {.mesh = Mesh{{{"x", 2}}}, .axis_resources = Mapping{{"batch", "x"}}}));
}

// In the gradient of 16-bit arrays, keys are the outermost loop. With queries of this width, their
// sums are too large for a carry, too.
TEST_CASE(
    "attention scores: gradients of 16-bit arrays "
    "match with keys outermost, and with each side alone") {
  auto check = [](std::int64_t positions, std::int64_t heads, std::int64_t size, auto mask) {
    const Axis Pos("pos", positions), KPos("kpos", positions), Heads("heads", heads),
        Head("head", size);
    CAPTURE(positions);
    using Three = std::array<NamedArray, 3>;
    const Three in{draw(1, {Heads, Pos, Head}, DType::bf16),
                   draw(2, {Heads, KPos, Head}, DType::bf16),
                   draw(3, {Heads, KPos, Head}, DType::bf16)};
    const auto cotangent = draw(4, {Heads, Pos, Head}, DType::bf16);
    auto made = [&](std::int64_t budget, DType dtype) {
      auto f = jit(
          [=](const Three& in, const NamedArray& g) {
            auto [y, pull] = vjp(
                [=](const Three& p) {
                  return nn::dot_product_attention(KPos, Head, p[0], p[1], p[2],
                                                   {.mask = mask(Pos, KPos)});
                },
                in);
            auto back = pull(g);
            return Leaves{y, back[0], back[1], back[2]};
          },
          {.scores_budget = budget});
      auto as = [&](const NamedArray& x) { return x.astype(dtype).eval(); };
      auto out = f(Three{as(in[0]), as(in[1]), as(in[2])}, as(cotangent));
      return std::pair(Leaves{out}, f.report().chunked.size());
    };
    auto [expected, none] = made(most_bytes, DType::f32);
    auto [got, loops] = made(-1, DType::bf16);
    auto [materialized, no] = made(most_bytes, DType::bf16);
    CHECK(none == 0);
    CHECK(loops > 0);
    same(got, expected, 0.02);
    same(materialized, expected, 0.02);
  };
  auto causal = [](const Axis& q, const Axis& k) { return nn::causal_mask(q, k); };
  check(100, 3, 8, causal);
  check(97, 2, 8, causal);
  check(64, 1, 16, [](const Axis& q, const Axis& k) {
    return nn::causal_mask(q, k) & (arange(k) > broadcast_axis(arange(q) - 20, k));
  });
  check(1200, 1, 2048, causal);
}

TEST_CASE(
    "attention scores: a scan over layers computes them once for the value and the residuals") {
  const Axis Layers("layers", 3), Pos("pos", 512), Embed("embed", 32);
  const auto w = draw(1, {Layers, Embed, D}), x = draw(2, {Pos, Embed});
  auto loss = [=](const NamedArray& w) {
    auto layer = [=](const NamedArray& x, const NamedArray& w) {
      auto h = dot({x, w}, Embed), k = rename(h, "pos", "key_pos");
      auto scores = softmax(
          dot({h, k}, D) + where(nn::causal_mask(Pos, Pos.alias("key_pos")), 0., -1e9), "key_pos");
      return x + dot({dot({scores, k}, "key_pos"), w}, D);
    };
    return mean(square(fold(layer, Layers)(x, w)));
  };
  auto planned = [&](bool value) {
    JitOptions o;
    o.scores_budget = 0;
    return value ? jit(value_and_grad(loss), o).plan(w) : jit(grad(loss), o).plan(w);
  };
  const auto both = planned(true), alone = planned(false);
  CHECK(both.flops == alone.flops);
  CHECK(both.peak_bytes <= alone.peak_bytes + 64);
  auto materialized = jit(value_and_grad(loss), {.scores_budget = most_bytes}).plan(w);
  // scores and their matmuls are recomputed, layers are not
  CHECK(both.flops < 1.45 * materialized.flops);
}

// Weights that are not normalized over the keys are tiled if they outnumber the hidden values of a
// layer.
TEST_CASE("attention scores: attention by a sigmoid, and kernels of distances, are tiled") {
  const Axis Queries{"q", 200}, Keys{"k", 300};
  Parts p{draw(1, {H, Queries, D}), draw(2, {H, Keys, D}), draw(3, {H, Keys, D}),
          zeros({H, Queries, Keys})};
  auto mask = nn::causal_mask(Queries, Keys);
  check_tiled(
      "sigmoid",
      [=](const Parts& p) {
        return dot(nn::sigmoid(where(mask, scores(p), -1e9f) - 5.f), p.value, "k");
      },
      p, 1e-5);
  check_tiled(
      "what the sigmoid hides",
      [=](const Parts& p) { return dot(where(mask, nn::sigmoid(scores(p)), 0.f), p.value, "k"); },
      p, 1e-5);
  check_tiled(
      "squares of relu",
      [](const Parts& p) { return dot(square(nn::relu(scores(p))) / 300.f, p.value, "k"); }, p,
      1e-5);
  check_tiled(
      "gaussians",
      [=](const Parts& p) {
        auto distances = broadcast_axis(sum(square(p.query), "d"), Keys) + sum(square(p.key), "d") -
                         2.f * dot(p.query, p.key, "d");
        return dot(exp(-distances), p.value, "k");
      },
      p, 1e-5);
  const Axis Long{"q", 8192}, LongKeys{"k", 8192};
  auto loss = [](const Parts& p) {
    return sum(sin(dot(nn::sigmoid(scores(p) - 9.f), p.value, "k")));
  };
  const Parts large{zeros({Long, D}), zeros({LongKeys, D}), zeros({LongKeys, D}), zeros({})};
  CHECK(jit([=](const Parts& p) { return grad(loss)(p); }).plan(large).arena_bytes <
        std::int64_t(16) << 20);
}

TEST_CASE("attention scores: explain states why some are materialized") {
  auto p = parts();
  auto explained = [&](auto f) {
    auto g = jit(f, {.scores_budget = 0});
    g(p.query);
    return g.report().explain;
  };
  auto weights = [=](const NamedArray& q) { return softmax(dot(q, p.key, "d"), "k"); };
  auto given = explained([=](const NamedArray& q) {
    return std::pair{weights(q), dot(weights(q), p.value, "k")};
  });
  CHECK(given.find("scores (b=2, heads=3, q=13, k=13) (scores_memory_test.cpp:") != given.npos);
  CHECK(given.find(") stay materialized: ") != given.npos);
  CHECK(given.find("is a result") != given.npos);
  auto along =
      explained([=](const NamedArray& q) { return dot(cumsum(weights(q), "q"), p.value, "k"); });
  CHECK(along.find("stay materialized: cumsum (scores_memory_test.cpp:") != along.npos);
  CHECK(along.find("requires more than one query at a time") != along.npos);
  auto queries = explained([=](const NamedArray& q) {
    return grad([=](const NamedArray& q) {
      return sum(sin(dot(softmax(dot(q, p.key, "d"), "q"), p.value, "k")));
    })(q);
  });
  const std::string turned =
      " sums over k values that are weighted along q; "
      "weight them along k, or use a chunked_reduce over k";
  CHECK(queries.find("stay materialized: dot (scores_memory_test.cpp:") != queries.npos);
  CHECK(queries.find(turned) != queries.npos);
  CHECK(queries.find("stay materialized") == queries.rfind("stay materialized"));  // one line
  auto values = explained([=](const NamedArray& q) { return dot(weights(q), q, "q"); });
  CHECK(values.find(" sums over q values that are weighted along k; weight them along q, or use a "
                    "chunked_reduce over q") != values.npos);
  auto both = explained([=](const NamedArray& q) {
    return dot(softmax(dot(q, p.key, "d"), {"q", "k"}), p.value, "k");
  });
  CHECK(both.find(" reduces over ") != both.npos);
  auto tiled = explained([=](const NamedArray& q) { return dot(weights(q), p.value, "k"); });
  CHECK(tiled.find("stay materialized") == tiled.npos);
  // without weights
  auto hidden = explained(
      [=](const NamedArray& q) { return dot(nn::relu(dot(q, p.key, "d")), p.value, "k"); });
  CHECK(hidden.find("stay materialized") == hidden.npos);
  // A layer whose bias has a gradient is no attention: a sum over positions, and no value with
  // positions depends on it.
  auto layer = explained([=](const NamedArray& x) {
    using Two = std::pair<NamedArray, NamedArray>;
    auto f = [=](const Two& in) {
      return sum(square(dot(sin(dot(in.first, p.key, "d") + in.second), p.value, "k")));
    };
    return grad(f)(Two{x, zeros(K)});
  });
  CHECK(layer.find("stay materialized") == layer.npos);
}

TEST_CASE(
    "attention scores: iterations over heads keep earlier parts of a result, even if their own "
    "memory is as large") {
  const Axis Query("q", 12), Key("k", 48), Depth("d", 12), Heads("heads", 2);
  auto normal = [](int seed, const Axes& axes) {
    return random::normal(random::key(seed), axes).astype(DType::bf16).eval();
  };
  auto q = normal(1, {Query, Heads, Depth}), k = normal(2, {Depth, Heads, Key}),
       v = normal(3, {Depth, Key, Heads});
  auto attention = [=](const NamedArray& x) {
    auto e = exp(dot(x, k, "d").astype(DType::f32) * 0.3);
    return dot(e, v.astype(DType::f32), "k") / broadcast_axis(sum(e, "k"), Depth);
  };
  auto loss = [=](const NamedArray& x) {
    auto y = attention(x);
    return sum(square(attention(sin(y).astype(DType::bf16)) + y));
  };
  auto materialized = jit(grad(loss), {.scores_budget = most_bytes})(q);
  same({jit(grad(loss), {.scores_budget = 0})(q)}, {materialized}, 3e-2);
}

TEST_CASE("attention scores: minus their mean") {
  const Axis Query("q", 20), Key("k", 30), Depth("d", 4);
  auto normal = [](int seed, const Axes& axes) {
    return random::normal(random::key(seed), axes).eval();
  };
  auto q = normal(1, {Query, Depth}), k = normal(2, {Key, Depth}), v = normal(3, {Key, Depth});
  for (int form : {0, 1, 2}) {
    auto f = [=](const NamedArray& x) {
      auto s = dot(x, k, "d") * 0.35, m = mean(s, "k");
      auto scores = form == 0 ? s - m : form == 1 ? s * m : where(s > m, s, -1e9);
      return sum(sin(dot(softmax(scores, "k"), v, "k")));
    };
    auto both = value_and_grad(f);
    auto materialized = jit(both, {.scores_budget = most_bytes})(q),
         tiled = jit(both, {.scores_budget = -1})(q);
    same({tiled.first, tiled.second}, {materialized.first, materialized.second}, 1e-5);
  }
}

// Region boundaries of scores store the number of surrounding loops. The scores of the innermost
// loop are inside it alone.
TEST_CASE("attention scores: attention in a loop in a loop") {
  const Axis L("l", 2), M("m", 3), N("n", 2);
  const auto y = draw(2, {K, D});
  auto step = [=](In x, In iteration) {  // with a mask of the iterations of all surrounding loops
    auto q = broadcast_axis(arange(Q), K), k = broadcast_axis(arange(K), Q);
    auto s = where((k <= q) | (k < (iteration + 1) * 3), dot(x, y, "d"), -1e9f);
    return x + dot(softmax(s, "k"), y, "k");
  };
  auto two = [=](In x) {
    return fold(
        [=](In x, In i) {
          return fold([=](In x, In j) { return step(x, i + j); }, M)(x, arange(M));
        },
        L)(x, arange(L));
  };
  auto three = [=](In x) {
    return fold(
        [=](In x, In n) {
          return fold(
              [=](In x, In i) {
                return fold([=](In x, In j) { return step(x, n + i + j); }, M)(x, arange(M));
              },
              L)(x, arange(L));
        },
        N)(x, arange(N));
  };
  const auto x = draw(1, {Q, D});
  auto check = [&](auto& f) {
    auto all = [=](In x) {
      auto [value, slope] = value_and_grad([=](In x) { return sum(sin(f(x))); })(x);
      return Leaves{value, slope};
    };
    const auto expected = jit(all, {.scores_budget = most_bytes})(x);
    for (std::int64_t budget : {0, -1}) {
      CAPTURE(budget);
      auto tiled = jit(all, {.scores_budget = budget});
      same(tiled(x), expected, 2e-5);
      CHECK(tiled.report().chunked.size() > 0);
    }
  };
  check(two);
  check(three);
}

// The loops of a layer are tiled once, and later layers are not recomputed for each of them.
TEST_CASE("attention scores: loops grow linearly with layers that are written one after another") {
  const Axis Heads("heads", 12), Pos("position", 1024), D("d", 16), Embed("embed", 4),
      Short("position", 16);
  auto layer = [](const NamedArray& y, const std::string& over) {
    const auto position = y.resolve_axis("position");
    const auto key = position.alias("key");
    return y + nn::dot_product_attention("key", over, y, rename(y, position, key),
                                         rename(sin(y), position, key));
  };
  auto loops = [&](int layers, const Axes& axes, bool twice) {
    const std::string over(axes.back().name.text());
    auto run = [=](const NamedArray& x) {
      auto y = x;
      auto one = [=](const NamedArray& y) { return layer(y, over); };
      for (int k = 0; k < layers; ++k) y = twice ? checkpoint(one)(y) : one(y);
      return sum(square(y));
    };
    auto slope = [=](const NamedArray& x) { return grad(run)(x); };
    auto second = [=](const NamedArray& x) {
      return grad([=](const NamedArray& x) { return sum(sin(slope(x))); })(x);
    };
    auto shape = eval_shape([=] { return zeros(axes); });
    return twice ? jit(second, {.scores_budget = 0}).plan(shape).loops
                 : jit(slope).plan(shape).loops;
  };
  const auto some = loops(2, {Heads, Pos, D}, false), more = loops(4, {Heads, Pos, D}, false);
  CHECK(some > 0);
  CHECK(loops(6, {Heads, Pos, D}, false) - more == more - some);
  CHECK(2 * loops(6, {Short, Embed}, true) < 5 * loops(3, {Short, Embed}, true));
}

// The scores of all later layers are between the scores of a layer and their gradient. Each is
// planned once, not once for each plan of an earlier layer (which took over a minute for 4 layers).
TEST_CASE("attention scores: successive layers without a loop are planned in linear time") {
  const Axis Heads{"heads", 12}, Pos{"position", 2048}, Key = Pos.alias("key"), D{"d", 64};
  auto loss = [=](const NamedArray& x) {
    auto y = x;
    for (int layer = 0; layer < 8; ++layer)
      y = y + nn::dot_product_attention(Key, D, y, rename(y, Pos, Key), rename(sin(y), Pos, Key),
                                        {.mask = nn::causal_mask(Pos, Key)});
    return sum(square(y));
  };
  auto report =
      jit([=](const NamedArray& x) { return grad(loss)(x); }).plan(zeros({Heads, Pos, D}));
  CHECK(report.compile_s < 20);  // about 0.4 s
  // no layer materializes its scores
  CHECK(report.arena_bytes < Heads.size * Pos.size * Pos.size * 4);
}
