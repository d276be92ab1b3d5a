// chunked_reduce returns the values of f on the full arrays, for every chunk size. An op that
// cannot be tiled raises an error that names it.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "support/near.h"

using namespace haliax;

namespace {

const Axis Tokens{"tokens", 11}, Batch{"batch", 4}, Embed{"embed", 3}, Vocab{"vocab", 6};

NamedArray normal(int seed, const AxisSpec& axes) {
  return random::normal(random::key(seed), axes, DType::f64);
}

void same(const Leaves& got, const Leaves& expected, double tolerance = 1e-12) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    CHECK(difference(got[k], expected[k], tolerance) == "");
  }
}
// Returns the sum of all outputs, each with a cotangent of its own.
NamedArray summed(const Leaves& outputs) {
  NamedArray sum_of_all(0.);
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    auto& o = outputs[k];
    if (is_float(o.dtype())) sum_of_all = sum_of_all + sum(o * normal(50 + int(k), o.axes()));
  }
  return sum_of_all;
}
// Compares f(arrays) in chunks of 1, 4, 11 and 20 positions, in both directions, jitted, with f
// itself: values, and gradients where f has them.
using Cutting = std::function<void(const ChunkOptions&)>;
void for_all_chunks(const Cutting& check) {
  for (bool reverse : {false, true})
    for (std::int64_t chunk : {1, 4, 11, 20}) {
      CAPTURE(chunk);
      CAPTURE(reverse);
      check({.chunk = chunk, .reverse = reverse});
    }
}
template <class F, class... A> void agrees(const AxisSelection& axes, F f, const A&... args) {
  auto expected = flatten(f(args...));
  for_all_chunks([&](const ChunkOptions& how) {
    auto run = jit([=](const A&... a) { return chunked_reduce(axes, how, f)(a...); });
    same(flatten(run(args...)), expected);
    if (*how.chunk < 11) CHECK(run.report().loops > 0);
  });
}
template <class F, class... A>
void agrees_with_gradients(const AxisSelection& axes, F f, const A&... args) {
  agrees(axes, f, args...);
  auto gradients = [](auto g) {
    return [=](const std::tuple<A...>& in) {
      return value_and_grad(
          [=](const std::tuple<A...>& t) { return summed(flatten(std::apply(g, t))); })(in);
    };
  };
  auto expected = flatten(jit(gradients(f))(std::tuple(args...)));
  for_all_chunks([&](const ChunkOptions& how) {
    same(flatten(jit(gradients(chunked_reduce(axes, how, f)))(std::tuple(args...))), expected);
  });
}
template <class F> std::string message(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

}  // namespace

TEST_CASE("chunked: reductions, stacks, and ops that follow a reduction, match the full arrays") {
  auto f = [](const NamedArray& x, const NamedArray& w) {
    auto y = tanh(dot(x, w, "embed"));  // (tokens, vocab)
    return std::vector<NamedArray>{sum(y, "tokens"),
                                   mean(y),
                                   max(y, "tokens"),
                                   min(y, "tokens"),
                                   exp(mean(y)),
                                   y * 2.,
                                   y.rename({{"vocab", "words"}}),
                                   argmax(y, "vocab"),
                                   dot(y, x, "tokens")};
  };
  agrees("tokens", f, normal(1, {Tokens, Embed}), normal(2, {Vocab, Embed}));
}

TEST_CASE("chunked: softmax and logsumexp over the tiled axis stream") {
  auto f = [](const NamedArray& x) {
    return std::vector<NamedArray>{logsumexp(x, "tokens"), argmax(x, "tokens"),
                                   softmax(x, "tokens"), var(x, "tokens")};
  };
  agrees("tokens", f, normal(1, {Tokens, Embed}) * 30.);
}

TEST_CASE("chunked: several axes nest, the first outermost") {
  auto f = [](const NamedArray& x) {
    return std::vector<NamedArray>{sum(square(x)), max(x, "tokens"), x + 1.};
  };
  agrees_with_gradients({"batch", "tokens"}, f, normal(1, {Batch, Tokens, Embed}));
  agrees_with_gradients({"tokens", "batch"}, f, normal(1, {Batch, Tokens, Embed}));
  // One chunk size counts the positions of all axes together, the last axis first; or each axis has
  // a chunk size of its own.
  auto x = normal(1, {Batch, Tokens, Embed});
  auto chunks_of = [&](ChunkOptions how) {
    auto run = jit([=](const NamedArray& a) {
      return chunked_reduce({"batch", "tokens"}, how, f)(a);
    });
    run(x);
    std::vector<std::pair<std::string, std::int64_t>> out;
    for (auto& c : run.report().chunked) out.push_back({c.axis, c.chunk});
    return out;
  };
  using Chunks = decltype(chunks_of({}));
  CHECK(chunks_of({.chunk = 5}) == Chunks{{"batch", 1}, {"tokens", 5}});
  CHECK(chunks_of({.chunk = 22}) == Chunks{{"batch", 2}});
  CHECK(chunks_of({.chunks = {3, 4}}) == Chunks{{"batch", 3}, {"tokens", 4}});
  CHECK(chunks_of({.chunks = {4, 11}}).empty());
}

TEST_CASE("chunked: every reduction, and the ops that follow it, match the full array") {
  auto f = [](const NamedArray& x) {
    auto y = x + 0.5 * square(x);  // (tokens, embed)
    return std::vector<NamedArray>{
        sum(y, "tokens"),    mean(y),
        max(y, "tokens"),    min(y, "tokens"),
        prod(x, "tokens"),   logsumexp(y, "tokens"),
        var(y, "tokens"),    sqrt(mean(square(y))),
        tanh(max(y)) * 2.,   max(y) - min(y),
        dot(y, x, "tokens"), take(y, "tokens", arange(Axis("picked", 3)) * 4)};
  };
  agrees_with_gradients("tokens", f, normal(1, {Tokens, Embed}));
  auto g = [](const NamedArray& x) {
    auto [largest, where] = top_k(x, "tokens", 3, "top");
    return std::vector<NamedArray>{argmax(x, "tokens"),
                                   argmin(x, "tokens"),
                                   any(x > 1., "tokens"),
                                   all(x > -1., "tokens"),
                                   largest,
                                   where,
                                   sum(x > 0., "tokens")};
  };
  agrees("tokens", g, normal(1, {Tokens, Embed}));
}

TEST_CASE("chunked: argmax ties pick the first position and NaN wins, in both directions") {
  auto find = [](const NamedArray& x) {
    return std::vector<NamedArray>{argmax(x, "tokens"), argmin(x, "tokens"), max(x, "tokens")};
  };
  agrees("tokens", find, (arange(Tokens) % 3).astype(DType::f32));
  agrees(
      "tokens", find,
      where((arange(Tokens) == 4) | (arange(Tokens) == 7), NAN, arange(Tokens).astype(DType::f64)));
  agrees("tokens", find, full({Tokens, Embed}, -INFINITY));
}

TEST_CASE(
    "chunked: a user-defined reduction, with init and combine, continues from chunk to chunk") {
  struct Moments {  // count, mean, sum of squared differences: combined without cancellation
    NamedArray n, mean, m2;
  };
  auto combine = [](const Moments& a, const Moments& b) {
    auto n = a.n + b.n, d = b.mean - a.mean;
    return Moments{n, a.mean + d * b.n / n, a.m2 + b.m2 + d * d * a.n * b.n / n};
  };
  auto variance = [=](const NamedArray& x, const NamedArray& w) {
    auto y = dot(x, w, "embed");  // (tokens, vocab)
    Moments none{zeros(Vocab, DType::f64), zeros(Vocab, DType::f64), zeros(Vocab, DType::f64)};
    auto all = reduce(combine, "tokens", none, Moments{ones_like(y), y, zeros_like(y)});
    return std::vector<NamedArray>{all.m2 / all.n, all.mean};
  };
  auto x = normal(1, {Tokens, Embed}), w = normal(2, {Vocab, Embed});
  agrees_with_gradients("tokens", variance, x, w);
  auto by_the_book = var(dot(x, w, "embed"), "tokens");
  CHECK(difference(chunked_reduce("tokens", {.chunk = 4}, variance)(x, w)[0], by_the_book, 1e-12) ==
        "");
  // The combination need not be associative: a linear recurrence, in both directions, with all its
  // states, and a second pass over the states.
  for (bool reverse : {false, true}) {
    auto f = [=](const NamedArray& v, const NamedArray& u) {
      auto step = [](const NamedArray& state, const NamedArray& now, const NamedArray& position) {
        auto next = tanh(0.6 * state + now) + 0.01 * position;
        return std::pair{next, next * now};
      };
      auto y = dot(v, u, "embed");
      auto [last, states] = scan(step, "tokens", {.reverse = reverse})(
          zeros(Vocab, DType::f64), y, arange(Tokens).astype(DType::f64));
      auto folded =
          fold([](const NamedArray& state, const NamedArray& s) { return 0.5 * state + s; },
               "tokens")(zeros(Vocab, DType::f64), states - mean(states, "tokens"));
      return std::vector<NamedArray>{last, states, folded, sum(states * y, "tokens")};
    };
    agrees_with_gradients("tokens", f, x, w);
  }
  // One state at a time is alive, and one chunk of each input.
  const Axis Many{"tokens", 4096};
  auto run = jit([=](const NamedArray& v, const NamedArray& u) {
    return chunked_reduce("tokens", {.chunk = 16}, variance)(v, u);
  });
  CHECK(run.compile(normal(1, {Many, Embed}), w).arena_bytes < 64 * Vocab.size * 8);
}

TEST_CASE("chunked: a random draw inside is the slice of the full draw") {
  auto f = [](const NamedArray& x) {
    return x * random::uniform(random::key(5), {Tokens, Embed}, 0., 1., DType::f64);
  };
  agrees_with_gradients("tokens", f, normal(1, {Tokens, Embed}));
  auto dropped = [](const NamedArray& x) {  // over two axes, and under vmap
    auto one = [](const NamedArray& a, const Key& k) {
      return sum(where(random::bernoulli(k, {Tokens, Embed}, 0.7), a, 0.), "tokens");
    };
    return std::vector<NamedArray>{where(random::bernoulli(random::key(6), x.axes(), 0.7), x, 0.),
                                   vmap(one, "batch")(x, random::split(random::key(7), Batch))};
  };
  agrees_with_gradients({"batch", "tokens"}, dropped, normal(1, {Batch, Tokens, Embed}));
  agrees_with_gradients("tokens", dropped, normal(1, {Batch, Tokens, Embed}));
}

TEST_CASE("chunked: a captured Axis is the full axis") {
  auto f = [](const NamedArray& x) {
    auto position = arange(Tokens).astype(DType::f64);
    return std::vector<NamedArray>{x * position / double(Tokens.size),
                                   x + zeros({Tokens, Embed}, DType::f64),
                                   sum(where(arange(Tokens) < 7, x, 0.), "tokens"),
                                   sum(one_hot(arange(Tokens) % 3, Embed, DType::f64) * x),
                                   dot(x, cos(arange(Tokens).astype(DType::f64)), "tokens")};
  };
  agrees_with_gradients("tokens", f, normal(1, {Tokens, Embed}));
}

TEST_CASE("chunked: works inside scan, fold, vmap, jit and checkpoint, and around them") {
  auto w = normal(2, {Batch, Embed, Embed.alias("out")}), x = normal(1, {Tokens, Embed}),
       batched = normal(3, {Batch, Tokens, Embed});
  auto layer = [](const NamedArray& a, const NamedArray& u) {
    return tanh(dot(a, u, "embed")).rename({{"out", "embed"}});
  };
  // Compares with(options), where none means f without chunks; with returns a function of (w, x,
  // batched).
  auto agree = [&](auto with) {
    auto run = [&](auto f) {
      using P = std::tuple<NamedArray, NamedArray, NamedArray>;
      return flatten(jit([=](const P& p) {
        return value_and_grad([=](const P& q) { return std::apply(f, q); })(p);
      })(P{w, x, batched}));
    };
    auto expected = run(with(std::nullopt));
    for (std::int64_t chunk : {1, 4, 11})
      for (bool reverse : {false, true}) {
        CAPTURE(chunk);
        same(run(with(std::optional(ChunkOptions{.chunk = chunk, .reverse = reverse}))), expected,
             1e-11);
      }
  };
  using Options = std::optional<ChunkOptions>;
  auto in_chunks = [](const Options& o, auto f) {
    return [=](const auto&... a) { return o ? chunked_reduce("tokens", *o, f)(a...) : f(a...); };
  };
  // (tokens)
  auto each = [=](const NamedArray& a, const NamedArray& u) {
    return logsumexp(layer(a, u), "embed");
  };
  for (const char* policy : {"none", "carries", "nested"})
    for (bool reverse : {false, true})
      agree([=](const Options& o) {  // inside a loop; the carry is a sum over tokens
        return [=](const NamedArray& u, const NamedArray& a, const NamedArray&) {
          auto step = [=](const NamedArray& s, const NamedArray& v) {
            return s + mean(in_chunks(o, each)(a * (1. + s), v));
          };
          return fold(step, "batch", {.checkpoint = policy, .reverse = reverse})(
              NamedArray(0.).astype(DType::f64), u);
        };
      });
  // two axes in every iteration of a map; the cotangent is the same scalar in all iterations, or
  // the same array
  agree([=](const Options& o) {
    return [=](const NamedArray& u, const NamedArray& a, const NamedArray& b) {
      auto rows = b.rename({{"batch", "row"}});
      auto both = [=](const NamedArray& v) {
        return o ? chunked_reduce({"row", "tokens"}, *o, each)(rows, v) : each(rows, v);
      };
      auto mapped = map(both, "batch")(u);  // (batch, row, tokens)
      return sum(mapped) + sum(square(sum(mapped * sum(a, "embed"), "batch")));
    };
  });
  agree([=](const Options& o) {  // around a loop
    return [=](const NamedArray& u, const NamedArray& a, const NamedArray&) {
      return sum(square(in_chunks(o, [=](const NamedArray& t, const NamedArray& v) {
        return fold(layer, "batch")(t, v);
      })(a, u)));
    };
  });
  agree([=](const Options& o) {  // around a loop, in the iterations of another loop
    return [=](const NamedArray& u, const NamedArray&, const NamedArray& b) {
      auto row = [=](const NamedArray& a) {
        return in_chunks(o, [=](const NamedArray& t, const NamedArray& v) {
          return fold(layer, "batch")(t, v);
        })(a, u);
      };
      return sum(square(map(row, "batch")(b)));
    };
  });
  // a region inside a region along the same axis, which reads a captured array
  agree([=](const Options& o) {
    return [=](const NamedArray& u, const NamedArray& a, const NamedArray& b) {
      auto inner = [=](const NamedArray& t, const NamedArray& v) {
        return each(t, v) * sum(a, "embed");
      };
      return sum(
          in_chunks(o, in_chunks(o ? std::optional(ChunkOptions{.chunk = 2}) : o, inner))(b, u));
    };
  });
  agree([=](const Options& o) {  // inside vmap, inside jit
    return [=](const NamedArray& u, const NamedArray&, const NamedArray& b) {
      return sum(jit(vmap(in_chunks(o, each), "batch"))(b, u));
    };
  });
  agree([=](const Options& o) {  // around vmap
    return [=](const NamedArray& u, const NamedArray&, const NamedArray& b) {
      return sum(in_chunks(o, vmap(each, "batch"))(b, u));
    };
  });
  agree([=](const Options& o) {  // inside checkpoint, and around it
    return [=](const NamedArray& u, const NamedArray&, const NamedArray& b) {
      return sum(square(checkpoint(in_chunks(o, checkpoint(each)))(tanh(b), u)));
    };
  });
  // a region inside a region, along another axis and along the same one
  agree([=](const Options& o) {
    return [=](const NamedArray& u, const NamedArray&, const NamedArray& b) {
      auto inner = [=](const NamedArray& t, const NamedArray& v) {
        return o ? chunked_reduce("batch", {.chunk = 3}, each)(t, v) : each(t, v);
      };
      return sum(square(in_chunks(o, inner)(b, u))) + sum(in_chunks(o, in_chunks(o, each))(b, u));
    };
  });
  agree([=](const Options& o) {  // the gradient of a gradient, in either order of transforms
    return [=](const NamedArray& u, const NamedArray& a, const NamedArray&) {
      auto f = [=](const NamedArray& t) { return sum(square(in_chunks(o, each)(t, u))); };
      return sum(square(grad(f)(a))) + sum(jvp(f, a, a).second);
    };
  });
}

TEST_CASE("chunked: arguments and captured arrays have gradients") {
  auto x = normal(1, {Tokens, Embed}), w = normal(2, {Vocab, Embed}),
       mask = random::uniform(random::key(3), Tokens, 0., 1., DType::f64);
  auto loss = [&](std::int64_t chunk) {
    auto with = [=](const std::pair<NamedArray, NamedArray>& p) {
      auto each = [w = p.second, mask](const NamedArray& a) {
        return sum(logsumexp(dot(a, w, "embed"), "vocab") * mask);
      };  // mask: captured, not tiled
      return chunk ? chunked_reduce("tokens", {.chunk = chunk}, each)(p.first) : each(p.first);
    };
    return flatten(jit(value_and_grad(with))(std::pair{x, w}));
  };
  auto expected = loss(0);
  for (std::int64_t chunk : {1, 3, 11})
    for (std::size_t k = 0; auto& got : loss(chunk))
      CHECK(difference(got, expected[k++], 1e-12) == "");
}

TEST_CASE(
    "chunked: one pass over the data runs three contractions, recomputation of chunks runs four") {
  const Axis Even{"tokens", 12};  // one loop body
  auto x = normal(1, {Even, Embed}), w = normal(2, {Vocab, Embed});
  auto ids = random::randint(random::key(3), Even, 0, 6);
  for (ChunkForm form : {ChunkForm::automatic, ChunkForm::sweep, ChunkForm::recompute}) {
    CAPTURE(int(form));
    auto f = jit([=](const std::pair<NamedArray, NamedArray>& p) {
      return value_and_grad([=](const std::pair<NamedArray, NamedArray>& q) {
        return mean(nn::chunked_cross_entropy(q.first, q.second, ids, Embed, Vocab, Even,
                                              {.chunks = {.chunk = 4, .form = form}}));
      })(p);
    });
    f(std::pair{x, w});
    CHECK(f.report().contractions == (form == ChunkForm::recompute ? 4 : 3));
    CHECK(f.report().loops == (form == ChunkForm::recompute ? 2 : 1));
  }
}

TEST_CASE("chunked: cumulative ops continue from chunk to chunk, and their gradients in reverse") {
  auto x = normal(1, {Tokens, Embed}).eval();
  auto check = [&](const char* what, auto f) {
    CAPTURE(std::string(what));
    auto loss = [&](auto g) {
      return value_and_grad([=](const NamedArray& a) { return sum(sin(g(a)) * a); });
    };
    auto [value, gradient] = loss(f)(x);
    for (bool reverse : {false, true})
      for (int chunk : {1, 4, 11})
        for (bool on_mesh : {false, true}) {
          JitOptions on;
          if (on_mesh)
            on = {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{"tokens", "data"}}};
          auto chunked = chunked_reduce("tokens", {.chunk = chunk, .reverse = reverse}, f);
          auto got = named_jit(loss(chunked), on)(x);
          CHECK(difference(got.first, value, 1e-12) == "");
          CHECK(difference(got.second, gradient, 1e-12) == "");
        }
  };
  check("cumsum", [](const NamedArray& a) { return cumsum(a, "tokens"); });
  check("one of another",
        [](const NamedArray& a) { return cumsum(cumsum(a, "tokens") * a, "tokens"); });
  check("of what needs two sweeps",
        [](const NamedArray& a) { return cumsum(softmax(a, "tokens"), "tokens"); });
  check("before a sweep",
        [](const NamedArray& a) { return softmax(cumsum(a, "tokens"), "tokens"); });
  auto product = jit(chunked_reduce("tokens", {.chunk = 4},
                                    [](const NamedArray& a) { return cumprod(a, "tokens"); }))(x);
  CHECK(difference(product, cumprod(x, "tokens"), 1e-12) == "");
  check("beside a position",
        [](const NamedArray& a) { return cumsum(a, "tokens") * argmax(a, "tokens"); });
}

TEST_CASE("chunked: captured arrays stay unchanged outside of the call") {
  const auto b = normal(7, {Tokens}), x = normal(8, {Tokens});
  auto f = [&](const NamedArray& q) {
    return chunked_reduce("tokens", {.chunk = 4},
                          [&](const NamedArray& q) { return tanh(q) * b; })(q);
  };
  auto unchunked = [&](const NamedArray& q) { return tanh(q) * b; };
  auto both = [](auto g, auto before) {
    auto h = [=](const NamedArray& x) { return sum(sin(g(before(x)))); };
    return jit([=](const NamedArray& x) { return std::pair(g(before(x)), grad(h)(x)); });
  };
  auto check = [&](auto before, auto plain) {
    auto got = both(f, before)(x), expected = both(unchunked, plain)(x);
    same({got.first, got.second}, {expected.first, expected.second}, 1e-11);
  };
  for (auto& op : std::vector<std::function<NamedArray(const NamedArray&)>>{
           [&](const NamedArray& x) { return sort(x * b, "tokens"); },
           [&](const NamedArray& x) { return roll(x * b, 2, "tokens"); }})
    check(op, op);
  // a call before
  CHECK(max(abs(jit([&](const NamedArray& x) { return f(f(x)); })(x) - unchunked(unchunked(x))))
            .item() < 1e-11);
}

TEST_CASE("chunked: results that depend on captured arrays alone have gradients") {
  const auto x = normal(7, {Tokens, Embed}), w = normal(8, {Tokens});
  using Two = std::pair<NamedArray, NamedArray>;
  auto check = [&](auto made) {
    auto slope = [&](bool chunks) {
      return grad([=](const Two& in) {
        auto f = [&](const NamedArray& v) { return Two{v * 2., made(in.second)}; };
        auto [a, b] = chunks ? chunked_reduce("tokens", {.chunk = 2}, f)(in.first) : f(in.first);
        return sum(sin(a) * b);
      })(Two{x, w});
    };
    auto got = slope(true), expected = slope(false);
    same({got.first, got.second}, {expected.first, expected.second}, 1e-11);
  };
  check([](const NamedArray& w) { return w; });
  check([](const NamedArray& w) { return square(w); });
  check([](const NamedArray& w) { return cumsum(w, "tokens"); });
}
TEST_CASE(
    "chunked: calls in a row along one axis, and a contraction along it, match the full arrays") {
  const auto y = normal(9, {Embed, Tokens}), w = normal(10, {Tokens, Embed.alias("out")});
  auto plain = [](const NamedArray& q) { return tanh(q) * q; };
  auto chunks = [=](const NamedArray& q) {
    return chunked_reduce("tokens", {.chunk = 2}, plain)(q);
  };
  auto slope = [&](auto g, auto before, bool checkpointed) {
    auto one = [=](const NamedArray& q) { return checkpointed ? checkpoint(g)(q) : g(q); };
    return grad([=](const NamedArray& q) {
      return sum(sin(dot(one(before(one(q))) + one(q), w, "tokens")));
    })(y);
  };
  for (bool checkpointed : {false, true}) {
    auto same_slope = [&](auto before) {
      same({slope(chunks, before, checkpointed)}, {slope(plain, before, checkpointed)}, 1e-11);
    };
    same_slope([](const NamedArray& q) { return q; });
    same_slope([](const NamedArray& q) { return sin(q) * 2.; });
    same_slope([=](const NamedArray& q) { return chunks(cos(q)); });
  }
  const auto v = normal(11, {Tokens}), b = normal(12, {Tokens});
  using Two = std::pair<NamedArray, NamedArray>;
  // a captured array, whose gradient is that of the loss alone
  auto shifted = [&](bool chunked) {
    return grad([=](const Two& in) {
      auto add = [&](const NamedArray& q) { return q + in.second; };
      auto once = [=](const NamedArray& q) {
        return chunked ? chunked_reduce("tokens", {.chunk = 2}, add)(q) : add(q);
      };
      return sum(square(once(once(in.first))));
    })(Two{v, b});
  };
  auto got = shifted(true), expected = shifted(false);
  same({got.first, got.second}, {expected.first, expected.second}, 1e-11);
}

TEST_CASE("chunked: ops that need the full axis at once raise by name") {
  auto x = normal(1, {Tokens, Embed});
  auto refused = [&](auto f) {
    return message([&] { chunked_reduce("tokens", {.chunk = 4}, f)(x); });
  };
  for (auto& text :
       {refused([](const NamedArray& a) { return sort(a, "tokens"); }),
        refused([](const NamedArray& a) { return argsort(a, "tokens"); }),
        refused([](const NamedArray& a) { return slice(a, "tokens", 1, 4); }),
        refused([](const NamedArray& a) { return flip(a, "tokens"); }),
        refused([](const NamedArray& a) {
          return flatten_axes(a, {"tokens", "embed"}, "flat");
        }),
        refused([](const NamedArray& a) {
          return concatenate("tokens", {a, a});
        }),
        refused([](const NamedArray& a) {
          return dot(a, rename(a, {{"tokens", "others"}}), "embed");
        }),
        refused([](const NamedArray& a) {  // each iteration reads all positions
          return fold([=](const NamedArray& c, const NamedArray& v) { return c + v * sum(a * v); },
                      "tokens")(zeros(Embed, DType::f64), a);
        }),
        refused([](const NamedArray& a) {  // the carry has all positions
          return fold([](const NamedArray& c, const NamedArray& v) { return c + v; }, "tokens")(
              a.rename({{"tokens", "t"}}), a);
        }),
        refused([](const NamedArray& a) {  // positions in groups
          return fold([](const NamedArray& c, const NamedArray& v) { return c + v; }, "tokens",
                      {.unroll = 4})(zeros(Embed, DType::f64), a);
        }),
        refused([](const NamedArray& a) { return roll(a, 1, "tokens"); })}) {
    CAPTURE(text);
    CHECK(text.starts_with("[chunked_reduce]"));
    CHECK(text.find("tokens=11") != std::string::npos);
    CHECK(text.find("chunked_test.cpp") != std::string::npos);
  }
  CHECK(refused([](const NamedArray& a) {
          return sort(a, "tokens");
        }).find("sort requires all positions at once") != std::string::npos);
  CHECK(refused([](const NamedArray& a) { return roll(a, 1, "tokens"); }).find("mixes positions") !=
        std::string::npos);
  auto same = [](const NamedArray& a) { return a; };
  CHECK(message([&] { chunked_reduce("words", {.chunk = 4}, same)(x); }).find("words") !=
        std::string::npos);
  CHECK(message([&] { chunked_reduce("tokens", {.chunk = -1}, same)(x); }).find("positive") !=
        std::string::npos);
  auto squares = [](const NamedArray& a) {
    return sum(square(dot(a, a.rename({{"embed", "other"}}), {})));
  };  // (tokens, embed, other)
  CHECK(message([&] { chunked_reduce("tokens", {.memory = 8}, squares)(x); }).find("8 allowed") !=
        std::string::npos);
  CHECK(message([&] { chunked_reduce("tokens", {.chunk = 0}, same)(x); }).find("positive") !=
        std::string::npos);
  CHECK(message([&] {
          chunked_reduce("token", {.chunk = 4}, same)(x);
        }).find("did you mean tokens") != std::string::npos);
}

TEST_CASE("chunked: repeated calls before any value is read match the full arrays") {
  auto x = normal(1, {Tokens, Embed}).eval(), w = normal(2, {Vocab, Embed}).eval();
  auto logits = [](const NamedArray& a, const NamedArray& b) {
    return sum(square(sin(dot(a, b, Embed))));
  };
  for (const ChunkOptions& o :
       {ChunkOptions{}, ChunkOptions{.chunk = 4}, ChunkOptions{.chunk = 11}}) {
    auto steps = [&](auto loss) {  // gradient descent by w, captured or passed as an argument
      return [=](const NamedArray& start) {
        auto p = start;
        for (int k = 0; k < 3; ++k) p = p - 0.1 * grad(loss)(p);
        return Leaves{p, loss(p)};
      };
    };
    auto unchunked = steps([&](const NamedArray& p) { return logits(x, p); })(w);
    auto given = steps([&](const NamedArray& p) {
      return chunked_reduce("tokens", o, [=](const NamedArray& a, const NamedArray& b) {
        return logits(a, b);
      })(x, p);
    });
    auto captured = steps([&](const NamedArray& p) {
      return chunked_reduce("tokens", o, [=](const NamedArray& a) { return logits(a, p); })(x);
    });
    same(given(w), unchunked);
    same(captured(w), unchunked);
    same(jit(given)(w), unchunked);
    same(jit(captured)(w), unchunked);
    // An argument that depends on an earlier value, or on its gradient; an op that mixes positions
    // between two calls.
    auto chunked = chunked_reduce("tokens", o, [](const NamedArray& a) { return sum(square(a)); });
    auto plain = [](const NamedArray& a) { return sum(square(a)); };
    auto ascent = [&](auto loss) {
      return [=](const NamedArray& a) { return loss(a + 0.3 * loss(a) + 0.1 * grad(loss)(a)); };
    };
    same(Leaves{grad(ascent(chunked))(x)}, Leaves{grad(ascent(plain))(x)});
    auto rolled = [&](auto loss) {
      return [=](const NamedArray& a) { return loss(roll(a + loss(a), 1, "tokens") * a); };
    };
    same(Leaves{grad(rolled(chunked))(x)}, Leaves{grad(rolled(plain))(x)});
  }
}

TEST_CASE("chunked_reduce: ids of any integer dtype index a tiled table") {
  const Axis Bytes{"bytes", 256};
  auto table = normal(1, {Bytes, Embed}), place = arange(Tokens);
  for (DType d : {DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32, DType::i64,
                  DType::u64}) {
    CAPTURE(std::string(name_of(d)));
    auto ids = (place * (d == DType::i8 ? 11 : 25)).astype(d).eval();  // up to 110, or 250
    auto pick = [=](const NamedArray& w) { return take(w, Bytes, ids); };
    auto by_hand = take(table, Bytes, ids.astype(DType::i32)).eval();
    CHECK(difference(chunked_reduce(Bytes, {.chunk = 7}, pick)(table), by_hand, 0) == "");
    JitOptions two{.mesh = Mesh{{{"data", 2}}}};
    two.axis_resources = Mapping{{"bytes", "data"}};
    CHECK(difference(named_jit(pick, two)(table), by_hand, 0) == "");
    auto squares = [=](const NamedArray& w) { return sum(square(pick(w))); };
    CHECK(difference(named_jit([=](const NamedArray& w) { return grad(squares)(w); }, two)(table),
                     grad(squares)(table), 1e-13) == "");
  }
}

TEST_CASE("chunked_reduce: tiled losses accept labels of any dtype") {
  const Axis P{"position", 12}, V{"vocab", 200};
  auto x = normal(1, {P, Embed}), w = normal(2, {V, Embed});
  auto loss = [=](DType d, nn::LinearCrossEntropyOptions o) {
    auto ids = (arange(P) * 10).astype(d).eval();
    return value_and_grad([=](const NamedArray& q) {
      return nn::linear_cross_entropy(q, w, ids, Embed, V, o).loss;
    })(x);
  };
  auto [expected, by_x] = loss(DType::i32, {});
  for (DType d : {DType::i8, DType::u8, DType::i16, DType::u16, DType::i32, DType::u32, DType::i64,
                  DType::u64}) {
    CAPTURE(std::string(name_of(d)));
    for (auto& o : {nn::LinearCrossEntropyOptions{.chunks = {.chunk = 4}, .vocab_chunk = 64},
                    {.walked = V, .chunks = {.chunk = 64}},
                    {.chunks = {.chunk = 5}}}) {
      auto [got, g] = loss(d, o);
      CHECK(difference(got, expected, 1e-12) == "");
      CHECK(difference(g, by_x, 1e-12) == "");
    }
  }
}
