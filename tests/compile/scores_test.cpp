// Scores that are never whole: attention of many kinds, walked by its queries, is what it is as a
// whole, with its gradients.
#include <doctest/doctest.h>

#include <array>
#include <functional>

#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/threads.h"

using namespace haliax;

namespace {

const Axis B{"b", 2}, H{"heads", 3}, Q{"q", 13}, K{"k", 13}, D{"d", 4};
struct Parts {
  NamedArray query, key, value, bias;
  HALIAX_FIELDS(query, key, value, bias)
};
using In = const NamedArray&;
using Attention = std::function<NamedArray(const Parts&)>;

NamedArray draw(int seed, const Axes& axes, DType dtype = DType::f32) {
  return random::normal(random::key(seed), axes).astype(dtype).eval();
}
Parts parts(DType dtype = DType::f32) {
  return {draw(1, {B, H, Q, D}, dtype), draw(2, {B, H, K, D}, dtype), draw(3, {B, H, K, D}, dtype),
          draw(4, {H, Q, K}, dtype)};
}
// Loss, what is returned beside it, and gradients.
Leaves all_of(const Attention& f, const Parts& p) {
  auto loss = [&](const Parts& p) {
    auto y = f(p).astype(DType::f32);
    return std::pair{sum(sin(y) * y), sum(y, "heads")};
  };
  auto [both, g] = value_and_grad(loss)(p);
  return {both.first, both.second, g.query, g.key, g.value, g.bias};
}
void same(const Leaves& got, const Leaves& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    auto x = got[k].astype(DType::f64), y = want[k].astype(DType::f64);
    CHECK(max(abs(x - y)).item() <= tolerance * (1 + max(abs(y)).item()));
  }
}
// Tiled it is what it is as a whole, and no array of the size of the scores is planned.
void walked(const char* what, const Attention& f, const Parts& p = parts(),
            double tolerance = 2e-6) {
  CAPTURE(std::string(what));
  auto whole = jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = most_bytes});
  auto tiled = jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = 0});
  auto want = whole(p);
  same(tiled(p), want, tolerance);
  CHECK(whole.report().chunked.empty());
  REQUIRE(tiled.report().chunked.size() > 0);
  CHECK(tiled.report().explain.find("over q") != std::string::npos);
  auto both = jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = -1});
  same(both(p), want, tolerance * 4);
  same(jit([&](const Parts& p) { return all_of(f, p); },
           {.backend = "reference", .scores_budget = 0})(p),
       want, tolerance * 4);
}
NamedArray scores(const Parts& p) { return dot(p.query, p.key, "d") / 2.f; }
NamedArray causal() { return nn::causal_mask(Q, K); }

}  // namespace

TEST_CASE("scores: attention of many kinds") {
  walked("plain", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, p.key, p.value);
  });
  walked("causal", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, p.key, p.value,
                                     {.mask = nn::causal_mask(Q, K)});
  });
  walked("by hand", [](const Parts& p) {
    auto s = scores(p);
    auto e = exp(s - stop_gradient(max(s, "k")));
    return dot(e / sum(e, "k"), p.value, "k");
  });
  walked("divided afterwards", [](const Parts& p) {
    auto e = exp(scores(p));
    return dot(e, p.value, "k") / sum(e, "k");
  });
  walked("bias and mask", [](const Parts& p) {
    return dot(softmax(where(causal(), scores(p) + p.bias, -1e9f), "k"), p.value, "k");
  });
  walked("soft cap", [](const Parts& p) {
    return dot(softmax(tanh(scores(p) / 3.f) * 3.f, "k"), p.value, "k");
  });
  walked("alibi", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, p.key, p.value,
                                     {.bias = nn::alibi_attention_bias(H, K)});
  });
  walked("a sink", [](const Parts& p) {
    auto s = scores(p);
    auto m = maximum(max(s, "k"), 0.f);
    auto e = exp(s - m);
    return dot(e, p.value, "k") / (sum(e, "k") + exp(-m));
  });
  walked("dropout by position", [](const Parts& p) {
    auto keep = random::bernoulli(random::key(7), {B, H, Q, K}, 0.8);
    return dot(where(keep, softmax(scores(p), "k"), 0.f) / 0.8f, p.value, "k");
  });
  walked("rows that see nothing", [](const Parts& p) {
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
    walked(what, [&](const Parts& p) {
      return dot(where(seen, softmax(where(seen, scores(p), least), "k"), 0.f), p.value, "k");
    });
    walked(what, [&](const Parts& p) {
      auto s = where(seen, scores(p), least);
      auto e = where(seen, exp(s - stop_gradient(max(s, "k"))), 0.f);
      return dot(e, p.value, "k") / (1.f + sum(e, "k"));
    });
    walked(what, [&](const Parts& p) {
      auto s = where(seen, scores(p), least);
      auto top = stop_gradient(max(s, "k"));
      auto e = exp(s - where(isfinite(top), top, 0.f));
      return dot(where(seen, e / sum(e, "k"), 0.f), p.value, "k");
    });
  }
  walked(
      "bf16, scores in f32",
      [](const Parts& p) {
        return nn::dot_product_attention("k", "d", p.query, p.key, p.value,
                                         {.attention_dtype = DType::f32});
      },
      parts(DType::bf16), 2e-2);
}

// Scores that are no dot, and values that no dot sums.
TEST_CASE("scores: attention written point by point") {
  // (b, heads, q, k, d)
  auto each = [](const Parts& p) { return broadcast_axis(p.query, K) * p.key; };
  auto summed = [](In w, In v) { return sum(broadcast_axis(w, D) * broadcast_axis(v, Q), "k"); };
  auto by_dot = [](const Parts& p) { return softmax(scores(p), "k"); };
  walked("a sum of products",
         [=](const Parts& p) { return dot(softmax(sum(each(p), "d"), "k"), p.value, "k"); });
  walked("of scaled ones",
         [=](const Parts& p) { return dot(softmax(sum(each(p) / 3.f, "d"), "k"), p.value, "k"); });
  walked("values", [=](const Parts& p) { return summed(by_dot(p), p.value); });
  walked("both", [=](const Parts& p) {
    return summed(softmax(where(causal(), mean(each(p), "d"), -1e9f), "k"), p.value);
  });
  walked(
      "in bf16", [=](const Parts& p) { return summed(softmax(sum(each(p), "d"), "k"), p.value); },
      parts(DType::bf16), 6e-2);
  walked(
      "distances",
      [=](const Parts& p) {
        return dot(softmax(-sum(square(broadcast_axis(p.query, K) - p.key), "d"), "k"), p.value,
                   "k");
      },
      parts(), 5e-6);
  walked(
      "the farthest",
      [=](const Parts& p) {
        return dot(softmax(-max(abs(broadcast_axis(p.query, K) - p.key), "d"), "k"), p.value, "k");
      },
      parts(), 5e-6);
  walked("values that are chosen", [=](const Parts& p) {
    return sum(broadcast_axis(by_dot(p), D) * p.value, "k", {.where = causal()});
  });
  walked("the largest value",
         [=](const Parts& p) { return max(broadcast_axis(by_dot(p), D) * p.value, "k"); });
}
TEST_CASE("scores: in f64 gradients of walked scores are as exact as those of whole ones") {
  const auto p = parts(DType::f64);
  auto g = grad([&](const Parts& p) {
    auto y = dot(softmax(scores(p), "k"), p.value * 1e40, "k");  // beyond the range of f32
    return sum(y * sin(arange(D, {.dtype = DType::f64})));
  });
  const auto want = jit(g, {.scores_budget = most_bytes})(p);
  for (std::int64_t budget : {0, -1}) {
    CAPTURE(budget);
    const auto got = jit(g, {.scores_budget = budget})(p);
    same({got.query, got.key, got.value}, {want.query, want.key, want.value}, 1e-13);
  }
}
TEST_CASE(
    "scores: sums of which something asks which is the same stay whole, as made again they may not "
    "be") {
  const auto p = parts();
  auto near = [](const Parts& p) {
    return softmax(-sum(square(broadcast_axis(p.query, K) - p.key), "d"), "k");
  };
  auto loss = [=](const Parts& p) {
    return sum(max(near(p), "k") * sum(dot(near(p), p.value, "k"), "d"));
  };
  auto whole = jit(grad(loss), {.scores_budget = most_bytes}),
       tiled = jit(grad(loss), {.scores_budget = -1});
  const auto got = tiled(p), want = whole(p);
  same({got.query, got.key}, {want.query, want.key}, 1e-6);
  CHECK(tiled.report().chunked.empty());
  CHECK(tiled.report().explain.find("asks which of them is the same") != std::string::npos);
}
TEST_CASE(
    "scores: grouped heads, other orders of axes, two layers, a scan over layers, vmap, "
    "checkpoint") {
  const Axis G{"group", 3};
  walked("one key and value for all heads", [](const Parts& p) {
    return nn::dot_product_attention("k", "d", p.query, mean(p.key, "heads"),
                                     mean(p.value, "heads"));
  });
  walked("queries last", [](const Parts& p) {
    return rearrange(nn::dot_product_attention(
                         "k", "d", rearrange(p.query, {"d", "heads", "b", "q"}), p.key, p.value),
                     {"q", "b", "heads", "d"});
  });
  auto layer = [](const NamedArray& x) {
    auto along_keys = rename(x, {{"q", "k"}});
    return x + nn::dot_product_attention("k", "d", x, along_keys, along_keys * 2.f,
                                         {.mask = nn::causal_mask(Q, K)});
  };
  walked("two layers", [=](const Parts& p) { return layer(layer(p.query)); });
  const Axis L{"layer", 3};
  auto in_scan = [=](const Parts& p, ScanOptions o) {
    return fold([=](const NamedArray& x, const NamedArray& w) { return layer(x * w); }, L, o)(
        p.query, arange(L, {.start = 1, .dtype = DType::f32}) / 3.f);
  };
  walked("a scan", [=](const Parts& p) { return in_scan(p, {}); });
  walked("a scan that keeps carries",
         [=](const Parts& p) { return in_scan(p, {.checkpoint = true}); });
  // The backward pass of a checkpoint is traced in the body of the loop's gradient, not around the
  // loop.
  walked("a scan of checkpointed layers, keys from outside of it", [=](const Parts& p) {
    auto layer = [=](const NamedArray& x, const NamedArray& w) {
      return x + nn::dot_product_attention("k", "d", x * w, p.key, p.value, {.mask = causal()});
    };
    const Axis L{"layers", 2};
    return fold([=](const NamedArray& x, const NamedArray& w) { return checkpoint(layer)(x, w); },
                L)(p.query, draw(5, {L, D}));
  });
  walked("vmap", [=](const Parts& p) {
    return vmap([=](const NamedArray& q, const NamedArray& k,
                    const NamedArray& v) { return nn::dot_product_attention("k", "d", q, k, v); },
                B)(p.query, p.key, p.value);
  });
  walked("checkpoint", [=](const Parts& p) { return checkpoint(layer)(p.query); });
}

// What is as large as the scores, and has a gradient, is made where they are: its array would grow
// with the square of the text.
TEST_CASE("scores: what is made beside them is never whole") {
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
    auto want = flatten(jit(gradients, {.scores_budget = most_bytes})(small));
    for (std::int64_t budget : {0, -1})
      same(flatten(jit(gradients, {.scores_budget = budget})(small)), want, 2e-6);
    // 6 MiB, more than they may take
    CHECK(jit(gradients, {.scores_budget = 1 << 20}).plan(of(512)).chunked.size() > 0);
    auto large = of(2048);
    // a matrix of scores, of which there are 6
    CHECK(jit(gradients).plan(large).arena_bytes < std::int64_t(4) * 2048 * 2048);
    CHECK(jit(gradients, {.scores_budget = most_bytes}).plan(large).arena_bytes >
          std::int64_t(12) * 4 * 2048 * 2048);
  }
}

// Of two that are walked head by head, the second reads the first, and what lies between them is
// read by the gradients of both.
TEST_CASE(
    "scores: attention behind attention, divided afterwards, with what is left of the first") {
  auto attend = [](const NamedArray& q, const Parts& p, bool sums) {
    auto s = dot(q, p.key, "d") / 2.f;
    if (sums) return dot(softmax(s, "k"), p.value, "k") + logsumexp(s, "k");
    auto e = exp(s - stop_gradient(max(s, "k")));
    return dot(e, p.value, "k") / sum(e, "k");
  };
  for (bool sums : {false, true})
    walked("twice", [=](const Parts& p) {
      auto once = attend(p.query, p, sums);
      return attend(sin(once), p, sums) + once;
    });
}
TEST_CASE("scores: several checkpointed layers, one behind the other, are each walked") {
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
  auto tiled = jit(slopes), whole = jit(slopes, {.scores_budget = most_bytes});
  same({tiled(x)}, {whole(x)}, 1e-5);
  CHECK(tiled.report().arena_bytes < 8 << 20);
}

TEST_CASE("scores: weights that are summed over heads or batches as well, or mixed between heads") {
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
    auto want = jit(all, {.scores_budget = most_bytes})(p);
    for (std::int64_t budget : {0, -1}) same(jit(all, {.scores_budget = budget})(p), want, 1e-5);
  }
}

TEST_CASE("scores: what is no attention stays whole, and the scores themselves may be a result") {
  auto whole = [](const Attention& f) {
    auto g = jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = 0});
    auto want =
        jit([&](const Parts& p) { return all_of(f, p); }, {.scores_budget = most_bytes})(parts());
    same(g(parts()), want, 2e-6);
    CHECK(g.report().chunked.empty());
  };
  // a layer's hidden values
  whole([](const Parts& p) { return dot(square(scores(p)), p.value, "k"); });
  whole([](const Parts& p) { return softmax(scores(p), "k"); });  // given out
  // goes along the queries
  whole([](const Parts& p) { return dot(cumsum(softmax(scores(p), "k"), "q"), p.value, "k"); });
  whole([](const Parts& p) { return logsumexp(scores(p), "k"); });  // a loss
  // a sum over both
  whole([](const Parts& p) { return dot(scores(p) / sum(scores(p), {"q", "k"}), p.value, "k"); });
}

// All that such a query gets is the value of that key: whatever is asked of it, the scores do not
// matter.
TEST_CASE("scores: in bf16, too, a query that sees one key has no gradient") {
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
    for (auto& g : gradients) CHECK(max(abs(g)).item() < 1e-4);  // 1e-2 is what bf16 rounds
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

TEST_CASE("scores: second derivatives, and on meshes") {
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
  auto want = jit([&](const Parts& p) { return all_of(attention, p); })(parts());
  for (auto& mapping : {Mapping{{"heads", "data"}}, Mapping{{"b", "data"}}, Mapping{{"q", "data"}},
                        Mapping{{"k", "data"}}, Mapping{{"q", "data"}, {"k", "model"}}}) {
    CAPTURE(to_string(mapping));
    JitOptions on{
        .mesh = Mesh{{{"data", 2}, {"model", 2}}}, .axis_resources = mapping, .scores_budget = 0};
    same(named_jit([&](const Parts& p) { return all_of(attention, p); }, on)(parts()), want, 5e-6);
  }
}

// Each device walks its own heads, or examples: of queries, keys and values that are arguments
// nothing is sent.
TEST_CASE("scores: heads or examples that the mesh cuts send nothing") {
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
// Keys are cut by the mapping, too, along another mesh axis than the one that they go round on.
TEST_CASE("scores: keys go round that the mapping cuts otherwise") {
  for (std::int64_t size : {4, 96}) {
    const Axis Queries{"q", size}, Keys{"k", size};
    const Parts p{draw(1, {H, Queries, D}), draw(2, {H, Keys, D}), draw(3, {H, Keys, D}),
                  zeros({})};
    auto all = [](bool cuts) {
      auto cut = [=](const NamedArray& x) { return cuts ? shard(x, Mapping{{"k", "x"}}) : x; };
      return [=](const Parts& p) {
        return all_of(
            [=](const Parts& p) {
              return dot(softmax(dot(p.query, cut(p.key), "d"), "k"), cut(p.value), "k");
            },
            p);
      };
    };
    auto want = jit(all(false), {.scores_budget = most_bytes})(p);
    for (auto& mapping : {Mapping{{"q", "x"}, {"k", "y"}}, Mapping{{"q", "x"}, {"heads", "y"}},
                          Mapping{{"q", "x"}}}) {
      JitOptions o{.ring = true, .scores_budget = 0};
      o.mesh = Mesh{{{"x", 2}, {"y", 2}}};
      o.axis_resources = mapping;
      same(named_jit(all(true), o)(p), want, 2e-6);
    }
  }
}

TEST_CASE("scores: what lies below the arguments of a gradient stays as it is") {
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
    auto w = looped(attend(x));  // made by attention, and an argument
    return std::pair(w,
                     grad([=](const NamedArray& w) { return sum(square(looped(attend(w)))); })(w));
  };
  auto x = draw(6, {Q, D});
  auto want = jit(both, {.scores_budget = most_bytes})(x), got = jit(both, {.scores_budget = 0})(x);
  same({got.first, got.second}, {want.first, want.second}, 1e-5);
  CHECK(max(abs(want.second)).item() > 0);
}

TEST_CASE("scores: memory does not grow with the text") {
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
  // Four heads at 8,192 positions: a matrix of scores is 1 GiB. Rows are too long for a cache from
  // 4,096 on, and keys are walked.
  CHECK(arena(8192, DType::f32) < (std::int64_t(20) << 20));
  CHECK(arena(4096, DType::f32) == arena(8192, DType::f32));
  CHECK(arena(16384, DType::f32) == arena(8192, DType::f32));
  CHECK(arena(65536, DType::f32) == arena(8192, DType::f32));
}

// The gradient of a query is summed in f32 while that is not too large. Beyond that only what a
// query has in one number is carried, for each head that is made beside others.
TEST_CASE("scores: of loops that devices walk together what has no block is made again") {
  const Axis Queries{"q", 4}, Keys{"k", 4};
  const Parts p{draw(1, {B, Queries, D}), draw(2, {Keys, D}), draw(3, {Keys, D}), zeros({})};
  auto all = [](const Parts& p) {  // head by head, of keys that are cut
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
TEST_CASE("scores: second derivatives of checkpointed layers whose keys go round") {
  const Axis Queries{"q", 8}, Keys{"k", 8};
  const Parts p{draw(1, {B, Queries, D}), draw(2, {B, Keys, D}), draw(3, {B, Keys, D}), zeros({})};
  auto all = [](bool cuts) {
    auto cut = [=](const NamedArray& x) { return cuts ? shard(x, Mapping{{"k", "x"}}) : x; };
    auto layer = checkpoint([=](const Parts& p) {
      return dot(softmax(dot(p.query, cut(p.key), "d"), "k"), cut(p.value), "k");
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

TEST_CASE("scores: what a checkpoint makes again is walked, too") {
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
  auto tiled = jit(slopes), whole = jit(slopes, {.scores_budget = most_bytes});
  same(flatten(tiled(p)), flatten(whole(p)), 1e-5);
  CHECK(whole.report().arena_bytes > 3 * 4 * Q.size * K.size);
  CHECK(tiled.report().arena_bytes < 4 << 20);
}

TEST_CASE(
    "scores: a budget of 0 cuts small scores in thirds, and long ones as they are cut anyway") {
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

TEST_CASE("scores: memory stays below 16 MiB at any length") {
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
    // The result is made with what gradients need of rows: short texts have little else.
    CHECK(jit(all).plan(Three{q, k, k}, q).arena_bytes <=
          bytes + (positions < 1024 ? 98304 : 65536));
    return bytes;
  };
  const Threads two(2);  // each has tiles of its own
  // The longest texts whose scores stay whole have 391 positions in f32, 553 in bf16.
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

// Of 8 MiB each: walked where there are many queries and many keys, and no mesh cuts them.
TEST_CASE("scores: what is walked if nobody says a budget") {
  auto walks = [](const Axes& queries, const Axes& keys, const JitOptions& options = {}) {
    auto f = [](const NamedArray& q, const NamedArray& k) {
      return dot(softmax(dot(q, k, "d"), "key"), k, "key");
    };
    return !named_jit(f, options).compile(zeros(queries), zeros(keys)).chunked.empty();
  };
  const Axis H("heads", 23), Q("pos", 300), K("key", 300), D("d", 64), Long("key", 4096);
  CHECK(walks({H, Q, D}, {H, K, D}));
  CHECK(walks({Axis("pos", 512), D}, {Long, D}));
  CHECK(!walks({Axis("pos", 32), Axis("heads", 16), D}, {Long, D}));  // shared keys: few queries
  CHECK(!walks({Axis("heads", 9), Q, D}, {Axis("heads", 9), K, D}));  // 3 MiB
  const Devices two(2);
  CHECK(!walks({H, Q, D}, {H, K, D},
               {.mesh = Mesh{{{"x", 2}}}, .axis_resources = Mapping{{"heads", "x"}}}));
  // not cut
  CHECK(walks({H, Q, D}, {H, K, D},
              {.mesh = Mesh{{{"x", 2}}}, .axis_resources = Mapping{{"batch", "x"}}}));
}

// Keys go outermost in the gradient of narrow arrays; with queries that are this wide their sums
// are too large to be carried, too.
TEST_CASE("scores: gradients of narrow arrays, keys outermost, and each side by itself") {
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
    auto [want, none] = made(most_bytes, DType::f32);
    auto [got, loops] = made(-1, DType::bf16);
    auto [whole, no] = made(most_bytes, DType::bf16);
    CHECK(none == 0);
    CHECK(loops > 0);
    same(got, want, 0.02);
    same(whole, want, 0.02);
  };
  auto causal = [](const Axis& q, const Axis& k) { return nn::causal_mask(q, k); };
  check(100, 3, 8, causal);
  check(97, 2, 8, causal);
  check(64, 1, 16, [](const Axis& q, const Axis& k) {
    return nn::causal_mask(q, k) & (arange(k) > broadcast_axis(arange(q) - 20, k));
  });
  check(1200, 1, 2048, causal);
}

TEST_CASE("scores: a scan over layers makes them once for the value and what the gradient keeps") {
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
  auto whole = jit(value_and_grad(loss), {.scores_budget = most_bytes}).plan(w);
  // the scores are made again, and what they multiply, but no layer is
  CHECK(both.flops < 1.45 * whole.flops);
}

// Of weights that nothing folds over the keys, more than a layer has hidden values are walked.
TEST_CASE("scores: attention by a sigmoid, and kernels of distances") {
  const Axis Queries{"q", 200}, Keys{"k", 300};
  Parts p{draw(1, {H, Queries, D}), draw(2, {H, Keys, D}), draw(3, {H, Keys, D}),
          zeros({H, Queries, Keys})};
  auto mask = nn::causal_mask(Queries, Keys);
  walked(
      "sigmoid",
      [=](const Parts& p) {
        return dot(nn::sigmoid(where(mask, scores(p), -1e9f) - 5.f), p.value, "k");
      },
      p, 1e-5);
  walked(
      "what the sigmoid hides",
      [=](const Parts& p) { return dot(where(mask, nn::sigmoid(scores(p)), 0.f), p.value, "k"); },
      p, 1e-5);
  walked(
      "squares of relu",
      [](const Parts& p) { return dot(square(nn::relu(scores(p))) / 300.f, p.value, "k"); }, p,
      1e-5);
  walked(
      "gaussians",
      [=](const Parts& p) {
        auto apart = broadcast_axis(sum(square(p.query), "d"), Keys) + sum(square(p.key), "d") -
                     2.f * dot(p.query, p.key, "d");
        return dot(exp(-apart), p.value, "k");
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

TEST_CASE("scores: explain says why some stay whole") {
  auto p = parts();
  auto said = [&](auto f) {
    auto g = jit(f, {.scores_budget = 0});
    g(p.query);
    return g.report().explain;
  };
  auto weights = [=](const NamedArray& q) { return softmax(dot(q, p.key, "d"), "k"); };
  auto given = said([=](const NamedArray& q) {
    return std::pair{weights(q), dot(weights(q), p.value, "k")};
  });
  CHECK(given.find("scores (b=2, heads=3, q=13, k=13) (scores_test.cpp:") != given.npos);
  CHECK(given.find(") stay whole: ") != given.npos);
  CHECK(given.find("is a result") != given.npos);
  auto along =
      said([=](const NamedArray& q) { return dot(cumsum(weights(q), "q"), p.value, "k"); });
  CHECK(along.find("stay whole: cumsum (scores_test.cpp:") != along.npos);
  CHECK(along.find("needs more than a query at a time") != along.npos);
  auto queries = said([=](const NamedArray& q) {
    return grad([=](const NamedArray& q) {
      return sum(sin(dot(softmax(dot(q, p.key, "d"), "q"), p.value, "k")));
    })(q);
  });
  const std::string turned =
      " sums over k what is weighed along q; weigh it along k, or write a chunked_reduce over k";
  CHECK(queries.find("stay whole: dot (scores_test.cpp:") != queries.npos);
  CHECK(queries.find(turned) != queries.npos);
  CHECK(queries.find("stay whole") == queries.rfind("stay whole"));  // one line
  auto values = said([=](const NamedArray& q) { return dot(weights(q), q, "q"); });
  CHECK(values.find(" sums over q what is weighed along k; weigh it along q, or write a "
                    "chunked_reduce over q") != values.npos);
  auto both = said([=](const NamedArray& q) {
    return dot(softmax(dot(q, p.key, "d"), {"q", "k"}), p.value, "k");
  });
  CHECK(both.find(" goes over ") != both.npos);
  auto walked = said([=](const NamedArray& q) { return dot(weights(q), p.value, "k"); });
  CHECK(walked.find("stay whole") == walked.npos);
  // no weights
  auto hidden =
      said([=](const NamedArray& q) { return dot(nn::relu(dot(q, p.key, "d")), p.value, "k"); });
  CHECK(hidden.find("stay whole") == hidden.npos);
  // Nor those of a layer whose bias has a gradient: a sum over positions, of which nothing is made
  // that has them.
  auto layer = said([=](const NamedArray& x) {
    using Two = std::pair<NamedArray, NamedArray>;
    auto f = [=](const Two& in) {
      return sum(square(dot(sin(dot(in.first, p.key, "d") + in.second), p.value, "k")));
    };
    return grad(f)(Two{x, zeros(K)});
  });
  CHECK(layer.find("stay whole") == layer.npos);
}

TEST_CASE(
    "scores: what turns over heads leave of a result is not written over, where a turn's own "
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
  auto whole = jit(grad(loss), {.scores_budget = most_bytes})(q);
  same({jit(grad(loss), {.scores_budget = 0})(q)}, {whole}, 3e-2);
}

TEST_CASE("scores: less a mean of theirs") {
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
    auto whole = jit(both, {.scores_budget = most_bytes})(q),
         tiled = jit(both, {.scores_budget = -1})(q);
    same({tiled.first, tiled.second}, {whole.first, whole.second}, 1e-5);
  }
}

// Borders of scores say how many loops are around them: those of the innermost one lie in it alone.
TEST_CASE("scores: attention in a loop in a loop") {
  const Axis L("l", 2), M("m", 3), N("n", 2);
  const auto y = draw(2, {K, D});
  auto step = [=](In x, In turn) {  // with a mask of the turns of all loops around
    auto q = broadcast_axis(arange(Q), K), k = broadcast_axis(arange(K), Q);
    auto s = where((k <= q) | (k < (turn + 1) * 3), dot(x, y, "d"), -1e9f);
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
    const auto want = jit(all, {.scores_budget = most_bytes})(x);
    for (std::int64_t budget : {0, -1}) {
      CAPTURE(budget);
      auto walked = jit(all, {.scores_budget = budget});
      same(walked(x), want, 2e-5);
      CHECK(walked.report().chunked.size() > 0);
    }
  };
  check(two);
  check(three);
}

// A layer's loops are cut once, and the layers behind it are not made again for each of them.
TEST_CASE("scores: loops grow with the layers, where those are written one after another") {
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

// Between the scores of a layer and their gradient lie those of all layers behind it: each is
// planned once, not once for each plan of a layer below (4 layers took over a minute).
TEST_CASE(
    "scores: layers one after another, not in a loop, are planned in a time that grows with their "
    "number") {
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
  CHECK(report.compile_s < 20);  // about 0.4
  // of no layer the scores are whole
  CHECK(report.arena_bytes < Heads.size * Pos.size * Pos.size * 4);
}
