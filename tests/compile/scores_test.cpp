// Scores that are never materialized: attention of many kinds, tiled by queries, matches
// materialized attention, with its gradients.
#include <doctest/doctest.h>

#include <limits>

#include "compile/scores_model.h"

using namespace haliax;
using namespace haliax::scores_model;

TEST_CASE("attention scores: attention of many kinds matches") {
  check_tiled("plain", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, p.key, p.value);
  });
  check_tiled("causal", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, p.key, p.value,
                                     {.mask = nn::causal_mask(Q, K)});
  });
  check_tiled("by hand", [](const Parts& p) {
    auto s = scores(p);
    auto e = exp(s - stop_gradient(max(s, "k")));
    return dot(e / sum(e, "k"), p.value, "k");
  });
  check_tiled("divided afterwards", [](const Parts& p) {
    auto e = exp(scores(p));
    return dot(e, p.value, "k") / sum(e, "k");
  });
  check_tiled("bias and mask", [](const Parts& p) {
    return dot(softmax(where(causal(), scores(p) + p.bias, -1e9f), "k"), p.value, "k");
  });
  check_tiled("soft cap", [](const Parts& p) {
    return dot(softmax(tanh(scores(p) / 3.f) * 3.f, "k"), p.value, "k");
  });
  check_tiled("alibi", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, p.key, p.value,
                                     {.bias = nn::alibi_attention_bias(H, K)});
  });
  check_tiled("a sink", [](const Parts& p) {
    auto s = scores(p);
    auto m = maximum(max(s, "k"), 0.f);
    auto e = exp(s - m);
    return dot(e, p.value, "k") / (sum(e, "k") + exp(-m));
  });
  check_tiled("dropout by position", [](const Parts& p) {
    auto keep = random::bernoulli(random::key(7), {B, H, Q, K}, 0.8);
    return dot(where(keep, softmax(scores(p), "k"), 0.f) / 0.8f, p.value, "k");
  });
  check_tiled("rows that see nothing", [](const Parts& p) {
    return dot(softmax(where(broadcast_axis(arange(Q) > 3, K), scores(p), -1e30f), "k"), p.value,
               "k");
  });
  const float least = -std::numeric_limits<float>::infinity();
  const auto far = broadcast_axis(arange(Q), K) - arange(K);
  for (auto& [what, seen] :
       {std::pair{"hidden again, rows", broadcast_axis(arange(Q) > 3, K)},
        std::pair{"hidden again, a window",
                  causal() & (far < 4) & broadcast_axis(arange(Q) != 7, K)},
        std::pair{"hidden again, from the first key on", (far < -2) & (arange(K) > 5)}}) {
    check_tiled(what, [&](const Parts& p) {
      return dot(where(seen, softmax(where(seen, scores(p), least), "k"), 0.f), p.value, "k");
    });
    check_tiled(what, [&](const Parts& p) {
      auto s = where(seen, scores(p), least);
      auto e = where(seen, exp(s - stop_gradient(max(s, "k"))), 0.f);
      return dot(e, p.value, "k") / (1.f + sum(e, "k"));
    });
    check_tiled(what, [&](const Parts& p) {
      auto s = where(seen, scores(p), least);
      auto top = stop_gradient(max(s, "k"));
      auto e = exp(s - where(isfinite(top), top, 0.f));
      return dot(where(seen, e / sum(e, "k"), 0.f), p.value, "k");
    });
  }
  check_tiled(
      "bf16, scores in f32",
      [](const Parts& p) {
        return nn::dot_product_attention("k", "d", p.query, p.key, p.value,
                                         {.attention_dtype = DType::f32});
      },
      parts(DType::bf16), 2e-2);
}

// Scores that are no matmul, and values that no matmul sums.
TEST_CASE("attention scores: elementwise attention matches") {
  // (b, heads, q, k, d)
  auto each = [](const Parts& p) { return broadcast_axis(p.query, K) * p.key; };
  auto summed = [](In w, In v) { return sum(broadcast_axis(w, D) * broadcast_axis(v, Q), "k"); };
  auto by_dot = [](const Parts& p) { return softmax(scores(p), "k"); };
  check_tiled("a sum of products",
              [=](const Parts& p) { return dot(softmax(sum(each(p), "d"), "k"), p.value, "k"); });
  check_tiled("of scaled ones", [=](const Parts& p) {
    return dot(softmax(sum(each(p) / 3.f, "d"), "k"), p.value, "k");
  });
  check_tiled("values", [=](const Parts& p) { return summed(by_dot(p), p.value); });
  check_tiled("both", [=](const Parts& p) {
    return summed(softmax(where(causal(), mean(each(p), "d"), -1e9f), "k"), p.value);
  });
  check_tiled(
      "in bf16", [=](const Parts& p) { return summed(softmax(sum(each(p), "d"), "k"), p.value); },
      parts(DType::bf16), 6e-2);
  check_tiled(
      "distances",
      [=](const Parts& p) {
        return dot(softmax(-sum(square(broadcast_axis(p.query, K) - p.key), "d"), "k"), p.value,
                   "k");
      },
      parts(), 5e-6);
  check_tiled(
      "the farthest",
      [=](const Parts& p) {
        return dot(softmax(-max(abs(broadcast_axis(p.query, K) - p.key), "d"), "k"), p.value, "k");
      },
      parts(), 5e-6);
  check_tiled("values that are chosen", [=](const Parts& p) {
    return sum(broadcast_axis(by_dot(p), D) * p.value, "k", {.where = causal()});
  });
  check_tiled("the largest value",
              [=](const Parts& p) { return max(broadcast_axis(by_dot(p), D) * p.value, "k"); });
}
TEST_CASE(
    "attention scores: in f64, gradients of tiled scores are as exact as of materialized ones") {
  const auto p = parts(DType::f64);
  auto g = grad([&](const Parts& p) {
    auto y = dot(softmax(scores(p), "k"), p.value * 1e40, "k");  // beyond the range of f32
    return sum(y * sin(arange(D, {.dtype = DType::f64})));
  });
  const auto expected = jit(g, {.scores_budget = most_bytes})(p);
  for (std::int64_t budget : {0, -1}) {
    CAPTURE(budget);
    const auto got = jit(g, {.scores_budget = budget})(p);
    same({got.query, got.key, got.value}, {expected.query, expected.key, expected.value}, 1e-13);
  }
}
TEST_CASE(
    "attention scores: sums that an equality test reads stay materialized, "
    "because recomputed sums may differ") {
  const auto p = parts();
  auto near = [](const Parts& p) {
    return softmax(-sum(square(broadcast_axis(p.query, K) - p.key), "d"), "k");
  };
  auto loss = [=](const Parts& p) {
    return sum(max(near(p), "k") * sum(dot(near(p), p.value, "k"), "d"));
  };
  auto materialized = jit(grad(loss), {.scores_budget = most_bytes}),
       tiled = jit(grad(loss), {.scores_budget = -1});
  const auto got = tiled(p), expected = materialized(p);
  same({got.query, got.key}, {expected.query, expected.key}, 1e-6);
  CHECK(tiled.report().chunked.empty());
  CHECK(tiled.report().explain.find("compares scores for equality") != std::string::npos);
}
TEST_CASE(
    "attention scores: grouped heads, other orders of axes, "
    "two layers, a scan over layers, vmap, checkpoint") {
  const Axis G{"group", 3};
  check_tiled("one key and value for all heads", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, mean(p.key, "heads"),
                                     mean(p.value, "heads"));
  });
  check_tiled("queries last", [](const Parts& p) {
    return rearrange(nn::dot_product_attention(
                         "k", "d", rearrange(p.query, {"d", "heads", "b", "q"}), p.key, p.value),
                     {"q", "b", "heads", "d"});
  });
  auto layer = [](const NamedArray& x) {
    auto along_keys = rename(x, {{"q", "k"}});
    return x + nn::dot_product_attention("k", "d", x, along_keys, along_keys * 2.f,
                                         {.mask = nn::causal_mask(Q, K)});
  };
  check_tiled("two layers", [=](const Parts& p) { return layer(layer(p.query)); });
  const Axis L{"layer", 3};
  auto in_scan = [=](const Parts& p, ScanOptions o) {
    return fold([=](const NamedArray& x, const NamedArray& w) { return layer(x * w); }, L, o)(
        p.query, arange(L, {.start = 1, .dtype = DType::f32}) / 3.f);
  };
  check_tiled("a scan", [=](const Parts& p) { return in_scan(p, {}); });
  check_tiled("a scan that keeps carries",
              [=](const Parts& p) { return in_scan(p, {.checkpoint = true}); });
  // The backward pass of a checkpoint is traced in the body of the loop's gradient, not around the
  // loop.
  check_tiled("a scan of checkpointed layers, keys from outside of it", [=](const Parts& p) {
    auto layer = [=](const NamedArray& x, const NamedArray& w) {
      return x + nn::dot_product_attention("k", "d", x * w, p.key, p.value, {.mask = causal()});
    };
    const Axis L{"layers", 2};
    return fold([=](const NamedArray& x, const NamedArray& w) { return checkpoint(layer)(x, w); },
                L)(p.query, draw(5, {L, D}));
  });
  check_tiled("vmap", [=](const Parts& p) {
    return vmap([=](const NamedArray& q, const NamedArray& k,
                    const NamedArray& v) { return nn::dot_product_attention("k", "d", q, k, v); },
                B)(p.query, p.key, p.value);
  });
  check_tiled("checkpoint", [=](const Parts& p) { return checkpoint(layer)(p.query); });
}

// A value of the size of the scores that has a gradient is computed with the scores: its array
// would grow with the square of the sequence length.
TEST_CASE("attention scores: values computed with them are never materialized") {
  using Kind = std::pair<const char*, std::function<NamedArray(In scores, In other, In table)>>;
  const Axis Offset{"offset", 16};
  auto distance = [](In s) {
    auto q = s.resolve_axis("q"), k = s.resolve_axis("k");
    return abs(broadcast_axis(arange(q), k) - arange(k));
  };
  auto weights = [](In s) {
    return softmax(where(nn::causal_mask(s.resolve_axis("q"), s.resolve_axis("k")), s, -1e9f), "k");
  };
  const Kind kinds[] = {
      {"a table",
       [=](In s, In, In table) {
         return weights(s + take(table, Offset, minimum(distance(s), 15)));
       }},
      {"slopes",
       [=](In s, In, In table) {
         return weights(
             s - broadcast_axis(sum(table, Offset), {s.resolve_axis("q"), s.resolve_axis("k")}) *
                     distance(s));
       }},
      {"two products", [=](In s, In other, In) { return weights(s + other); }},
      {"two softmaxes",
       [=](In s, In other, In table) { return weights(s) - weights(other) * mean(table, Offset); }},
      {"a logsumexp",
       [=](In s, In other, In) { return weights(s) - exp(other - logsumexp(other, "k")); }},
      {"heads mixed before",
       [=](In s, In, In table) {
         return weights(rename(dot(s, rename(slice(table, Offset, 0, 3), {{"offset", "to"}}), H),
                               {{"to", "heads"}}));
       }},
      {"heads mixed behind",
       [=](In s, In, In table) {
         return rename(dot(weights(s), rename(slice(table, Offset, 0, 3), {{"offset", "to"}}), H),
                       {{"to", "heads"}});
       }},
      {"heads mixed before, under another name",
       [=](In s, In, In table) { return weights(dot(s, slice(table, Offset, 0, 4), H)); }},
      {"heads mixed key by key",
       [=](In s, In, In table) {
         auto k = s.resolve_axis("k");
         return weights(dot(s, cos(broadcast_axis(slice(table, Offset, 0, 4), k) * arange(k)), H));
       }},
      {"and behind, under a third", [=](In s, In, In table) {
         auto mixed = weights(dot(s, slice(table, Offset, 0, 4), H));
         return dot(mixed, rename(slice(table, Offset, 0, 4), {{"heads", "to"}}), "offset");
       }}};
  for (auto& [name, weighed] : kinds) {
    CAPTURE(std::string(name));
    auto loss = [&, weighed = weighed](const Parts& p) {
      auto table = p.bias * 0.3f;
      auto s = scores(p), other = dot(p.query * p.query, p.key, "d");
      return sum(sin(dot(weighed(s, other, table), p.value, "k")));
    };
    auto gradients = [&](const Parts& p) { return grad(loss)(p); };
    auto of = [&](std::int64_t positions) {
      const Axis Q{"q", positions}, K{"k", positions};
      return Parts{draw(1, {B, H, Q, D}), draw(2, {B, H, K, D}), draw(3, {B, H, K, D}),
                   draw(4, {H, Offset})};
    };
    auto small = of(13);
    auto expected = flatten(jit(gradients, {.scores_budget = most_bytes})(small));
    for (std::int64_t budget : {0, -1})
      same(flatten(jit(gradients, {.scores_budget = budget})(small)), expected, 2e-6);
    // 6 MiB, more than the budget
    CHECK(jit(gradients, {.scores_budget = 1 << 20}).plan(of(512)).chunked.size() > 0);
    auto large = of(2048);
    // one of 6 matrices of scores
    CHECK(jit(gradients).plan(large).arena_bytes < std::int64_t(4) * 2048 * 2048);
    CHECK(jit(gradients, {.scores_budget = most_bytes}).plan(large).arena_bytes >
          std::int64_t(12) * 4 * 2048 * 2048);
  }
}

// Two calls are tiled head by head, and the second one reads the first. The gradients of both read
// the value between them.
TEST_CASE(
    "attention scores: attention after attention, "
    "divided afterwards, with the residuals of the first") {
  auto attend = [](const NamedArray& q, const Parts& p, bool sums) {
    auto s = dot(q, p.key, "d") / 2.f;
    if (sums) return dot(softmax(s, "k"), p.value, "k") + logsumexp(s, "k");
    auto e = exp(s - stop_gradient(max(s, "k")));
    return dot(e, p.value, "k") / sum(e, "k");
  };
  for (bool sums : {false, true})
    check_tiled("twice", [=](const Parts& p) {
      auto once = attend(p.query, p, sums);
      return attend(sin(once), p, sums) + once;
    });
}
TEST_CASE("attention scores: successive checkpointed layers are each tiled") {
  const Axis Q{"q", 1024}, K{"k", 1024}, D{"d", 16}, Heads{"heads", 9};
  auto layer = [=](const NamedArray& x) {
    auto k = rename(x, {{"q", "k"}});
    return x + nn::dot_product_attention("k", "d", x, k, k, {.mask = nn::causal_mask(Q, K)});
  };
  auto slopes = [=](const NamedArray& x) {
    return grad([=](const NamedArray& x) {
      auto y = x;
      for (int i = 0; i < 3; ++i) y = checkpoint(layer)(y / (2.f + float(i)));
      return sum(sin(y));
    })(x);
  };
  auto x = draw(1, {Heads, Q, D});
  auto tiled = jit(slopes), materialized = jit(slopes, {.scores_budget = most_bytes});
  same({tiled(x)}, {materialized(x)}, 1e-5);
  CHECK(tiled.report().arena_bytes < 8 << 20);
}

TEST_CASE(
    "attention scores: weights may also be summed over heads or batches, or mixed between heads") {
  const Axis To{"to", 3};
  auto mixed = draw(5, {H, To});
  const std::pair<const char*, Attention> cases[] = {
      {"heads with the keys",
       [](const Parts& p) {
         return dot(softmax(scores(p), K), p.value, {K, H});
       }},
      {"batches with the keys",
       [](const Parts& p) {
         return dot(softmax(scores(p), K), p.value, {K, B});
       }},
      {"heads before the values",
       [](const Parts& p) { return dot(sum(softmax(scores(p), K), H), p.value, K); }},
      {"heads, and of values, too",
       [](const Parts& p) { return dot(sum(softmax(scores(p), K), H), sum(p.value, H), K); }},
      {"causal",
       [](const Parts& p) {
         return dot(softmax(where(causal(), scores(p), -1e9), K), p.value, {K, H});
       }},
      {"mixed", [=](const Parts& p) {
         auto w = dot(softmax(where(causal(), scores(p), -1e9), K), mixed, H);
         return dot(w, rename(p.value, {{"heads", "to"}}), K);
       }}};
  auto p = parts();
  for (auto& [name, f] : cases) {
    CAPTURE(std::string(name));
    auto all = [f](const Parts& p) {
      auto [y, g] = value_and_grad([f](const Parts& p) {
        auto y = f(p);
        return sum(sin(y) * y);
      })(p);
      auto along = [&](const Parts& p) {
        return sum(grad([&](const Parts& p) { return sum(sin(f(p))); })(p).query *
                   p.key.rename({{"k", "q"}}));
      };
      return Leaves{y, g.query, g.key, g.value, grad(along)(p).key};
    };
    auto expected = jit(all, {.scores_budget = most_bytes})(p);
    for (std::int64_t budget : {0, -1})
      same(jit(all, {.scores_budget = budget})(p), expected, 1e-5);
  }
}

TEST_CASE(
    "attention scores: ops other than attention stay materialized, "
    "and the scores may be a result") {
  auto stays_materialized = [](const Attention& f) {
    auto g = jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = 0});
    auto expected =
        jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = most_bytes})(parts());
    same(g(parts()), expected, 2e-6);
    CHECK(g.report().chunked.empty());
  };
  // a layer's hidden values
  stays_materialized([](const Parts& p) { return dot(square(scores(p)), p.value, "k"); });
  stays_materialized([](const Parts& p) { return softmax(scores(p), "k"); });  // a result
  // along the queries
  stays_materialized(
      [](const Parts& p) { return dot(cumsum(softmax(scores(p), "k"), "q"), p.value, "k"); });
  stays_materialized([](const Parts& p) { return logsumexp(scores(p), "k"); });  // a loss
  // a sum over both
  stays_materialized([](const Parts& p) {
    return dot(scores(p) / sum(scores(p), {"q", "k"}), p.value, "k");
  });
}

// The result of such a query is the value of that key, so no gradient depends on the scores.
TEST_CASE("attention scores: in bf16, too, a query that sees one key has no gradient") {
  const Axis Q{"q", 128}, K{"k", 128}, D{"d", 64};
  auto f = [=](const Parts& p) {
    auto mask = broadcast_axis(arange(Q), K) == arange(K);
    auto g = grad([=](const Parts& p) {
      auto y = nn::dot_product_attention("k", "d", p.query, p.key, p.value, {.mask = mask});
      return sum(sin(y.astype(DType::f32)));
    })(p);
    return Leaves{g.query, g.key};
  };
  auto nearly_none = [&](const Leaves& gradients) {
    for (auto& g : gradients) CHECK(max(abs(g)).item() < 1e-4);  // bf16 rounding would cause 1e-2
  };
  auto of = [](int seed, const Axis& pos, const Axis& size) {
    return draw(seed, {pos, size}, DType::bf16);
  };
  Parts p{of(1, Q, D), of(2, K, D), of(3, K, D), zeros({})};
  nearly_none(jit(f, {.scores_budget = -1})(p));
  JitOptions ring{.mesh = Mesh{{{"data", 4}}},
                  .axis_resources = Mapping{{"q", "data"}},
                  .ring = true,
                  .scores_budget = 0};
  nearly_none(named_jit(f, ring)(p));
}

TEST_CASE("attention scores: second derivatives match, and meshes do") {
  auto f = [](const NamedArray& q) {
    auto k = rename(q, {{"q", "k"}});
    return sum(square(nn::dot_product_attention("k", "d", q, k, k)));
  };
  auto x = draw(5, {Q, D});
  auto hessian = [&](const NamedArray& x) {
    return grad([&](const NamedArray& x) { return sum(square(grad(f)(x))); })(x);
  };
  same({jit(hessian, {.scores_budget = 0})(x)}, {jit(hessian, {.scores_budget = most_bytes})(x)},
       1e-5);

  auto attention = [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, p.key, p.value,
                                     {.mask = nn::causal_mask(Q, K)});
  };
  auto expected = jit([&](const Parts& p) { return all_of(attention, p); })(parts());
  for (auto& mapping : {Mapping{{"heads", "data"}}, Mapping{{"b", "data"}}, Mapping{{"q", "data"}},
                        Mapping{{"k", "data"}}, Mapping{{"q", "data"}, {"k", "model"}}}) {
    CAPTURE(to_string(mapping));
    JitOptions on{
        .mesh = Mesh{{{"data", 2}, {"model", 2}}}, .axis_resources = mapping, .scores_budget = 0};
    same(named_jit([&](const Parts& p) { return all_of(attention, p); }, on)(parts()), expected,
         5e-6);
  }
}

// Each device tiles its own heads, or examples. Queries, keys and values that are arguments are not
// communicated.
TEST_CASE("attention scores: sharded heads or examples communicate nothing") {
  const Axis Batch{"b", 4}, Heads{"heads", 4}, Pos{"pos", 2048}, Size{"d", 16};
  const auto x = zeros({Batch, Heads, Pos, Size});
  auto attend = [](const Parts& p) {
    auto keys = [](const NamedArray& x) { return rename(x, "pos", "k"); };
    return dot(softmax(dot(p.query, keys(p.key), "d") / 4.f, "k"), keys(p.value), "k");
  };
  for (const char* axis : {"b", "heads"}) {
    JitOptions o;
    o.mesh = Mesh{{{"x", 2}}};
    o.axis_resources = Mapping{{axis, "x"}};
    auto step = named_jit(
        [=](const Parts& p) {
          return grad([=](const Parts& p) { return sum(sin(attend(p))); })(p);
        },
        o);
    auto report = step.plan(Parts{x, x, x, zeros({})});
    CHECK(report.chunked.size() > 0);
    CHECK(report.sent_bytes == 0);
  }
}
// The mapping shards the keys along another mesh axis than the axis of the ring.
TEST_CASE("attention scores: keys with another sharding rotate around the ring") {
  for (std::int64_t size : {4, 96}) {
    const Axis Queries{"q", size}, Keys{"k", size};
    const Parts p{draw(1, {H, Queries, D}), draw(2, {H, Keys, D}), draw(3, {H, Keys, D}),
                  zeros({})};
    auto all = [](bool shards) {
      auto sharded = [=](const NamedArray& x) {
        return shards ? shard(x, Mapping{{"k", "x"}}) : x;
      };
      return [=](const Parts& p) {
        return all_of(
            [=](const Parts& p) {
              return dot(softmax(dot(p.query, sharded(p.key), "d"), "k"), sharded(p.value), "k");
            },
            p);
      };
    };
    auto expected = jit(all(false), {.scores_budget = most_bytes})(p);
    for (auto& mapping : {Mapping{{"q", "x"}, {"k", "y"}}, Mapping{{"q", "x"}, {"heads", "y"}},
                          Mapping{{"q", "x"}}}) {
      JitOptions o{.ring = true, .scores_budget = 0};
      o.mesh = Mesh{{{"x", 2}, {"y", 2}}};
      o.axis_resources = mapping;
      same(named_jit(all(true), o)(p), expected, 2e-6);
    }
  }
}

TEST_CASE("attention scores: values before the arguments of a gradient stay unchanged") {
  auto attend = [](const NamedArray& x) {
    auto k = rename(x, {{"q", "k"}});
    return x + nn::dot_product_attention("k", "d", x, k, k);
  };
  auto looped = [=](const NamedArray& x) {
    const Axis L("layer", 2);
    return fold([=](const NamedArray& x, const NamedArray& w) { return attend(x * w); }, L)(
        x, arange(L, {.start = 1, .dtype = DType::f32}));
  };
  auto both = [=](const NamedArray& x) {
    auto w = looped(attend(x));  // computed by attention, and an argument
    return std::pair(w,
                     grad([=](const NamedArray& w) { return sum(square(looped(attend(w)))); })(w));
  };
  auto x = draw(6, {Q, D});
  auto expected = jit(both, {.scores_budget = most_bytes})(x),
       got = jit(both, {.scores_budget = 0})(x);
  same({got.first, got.second}, {expected.first, expected.second}, 1e-5);
  CHECK(max(abs(expected.second)).item() > 0);
}
