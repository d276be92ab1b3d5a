// Sharded equals unsharded: small programs on a mesh of two virtual devices, values and gradients,
// even and uneven sizes.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"

using namespace haliax;

namespace {

const Mesh two{{{"data", 2}}};

void close(const NamedArray& got, const NamedArray& expected) {
  REQUIRE(got.axes() == expected.axes());
  auto a = got.doubles(), b = expected.doubles();
  double most =
      1;  // sums have another order: the error of an element is relative to the largest element
  for (double x : b) most = std::max(most, std::abs(x));
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(a[i] - b[i]) <= 1e-6 * most);
  }
}

// Compares f on one device with f on two, with the axes sharded one by one, and as many as possible
// at once.
template <class F, class... A>
void agrees(F f, const std::vector<std::string>& sharded_axes, const A&... args) {
  auto expected = flatten(jit(f)(args...));
  for (auto& axis : sharded_axes)
    for (const char* backend : {"cpu", "reference"}) {
      CAPTURE(axis);
      CAPTURE(std::string(backend));
      auto sharded = named_jit(
          f, {.backend = backend, .mesh = two, .axis_resources = Mapping{{axis.c_str(), "data"}}});
      auto got = flatten(sharded(args...));
      REQUIRE(got.size() == expected.size());
      for (std::size_t k = 0; k < got.size(); ++k) close(got[k], expected[k]);
    }
}

NamedArray normal(int seed, const AxisSpec& axes) {
  return random::normal(random::key(seed), axes);
}

struct Layer {
  NamedArray in, out, scale;
};

}  // namespace

TEST_CASE("partition: an MLP with a layer norm, its loss and gradients, match one device") {
  struct Sizes {
    int batch, embed, mlp;
  };
  for (Sizes s : {Sizes{4, 6, 8}, {5, 7, 3}, {1, 2, 9}, {3, 1, 1}}) {
    Axis Batch{"batch", s.batch}, Embed{"embed", s.embed}, Mlp{"mlp", s.mlp};
    CAPTURE(to_string(make_axes(Batch, Embed, Mlp)));
    Layer layer{normal(1, {Embed, Mlp}), normal(2, {Mlp, Embed}), normal(3, Embed)};
    auto loss = [=](const Layer& l, const NamedArray& x) {
      auto y = standardize(x, Embed) * l.scale;
      auto out = dot(nn::gelu(dot(y, l.in, Embed)), l.out, Mlp);
      return mean(square(out + x));
    };
    agrees([=](const Layer& l, const NamedArray& x) { return value_and_grad(loss)(l, x); },
           {"batch", "embed", "mlp"}, layer, normal(4, {Batch, Embed}));
  }
}

TEST_CASE("partition: embedding, head and cross entropy match with a sharded vocabulary") {
  struct Sizes {
    int vocab, tokens;
  };
  for (Sizes s : {Sizes{8, 6}, {7, 5}, {3, 1}}) {
    CAPTURE(s.vocab);
    Axis Vocab{"vocab", s.vocab}, Tokens{"tokens", s.tokens}, Embed{"embed", 4};
    auto ids = random::randint(random::key(5), Tokens, 0, s.vocab),
         next = random::randint(random::key(6), Tokens, 0, s.vocab);
    auto loss = [=](const NamedArray& table, const NamedArray& i, const NamedArray& n) {  // tied
      return nn::cross_entropy_loss(dot(tanh(take(table, Vocab, i)), table, Embed), Vocab, n);
    };
    agrees([=](const NamedArray& t, const NamedArray& i,
               const NamedArray& n) { return value_and_grad(loss)(t, i, n); },
           {"vocab", "tokens", "embed"}, normal(7, {Vocab, Embed}), ids, next);
  }
}

TEST_CASE("partition: attention matches with sharded heads, positions or batch") {
  Axis Batch{"batch", 3}, Pos{"pos", 5}, KPos{"kpos", 5}, Heads{"heads", 3}, Size{"size", 4};
  auto loss = [=](const std::vector<NamedArray>& qkv) {
    auto y = nn::dot_product_attention("kpos", Size, qkv[0], qkv[1], qkv[2],
                                       {.mask = nn::causal_mask(Pos, KPos)});
    return sum(square(y)) / 100.;
  };
  std::vector<NamedArray> qkv{normal(1, {Batch, Pos, Heads, Size}),
                              normal(2, {Batch, KPos, Heads, Size}),
                              normal(3, {Batch, KPos, Heads, Size})};
  agrees([=](const std::vector<NamedArray>& x) { return value_and_grad(loss)(x); },
         {"heads", "pos", "kpos", "batch", "size"}, qkv);
}

TEST_CASE("partition: ops that need the full axis, and ops that do not, match") {
  for (int size : {4, 5}) {
    CAPTURE(size);
    Axis A{"a", size}, B{"b", 3};
    auto f = [=](const NamedArray& x, const NamedArray& y) {
      return std::vector<NamedArray>{max(x, A),
                                     argmax(x, A),
                                     prod(x, A),
                                     cumsum(x, A),
                                     sort(x, A),
                                     softmax(x, A),
                                     logsumexp(x, A),
                                     slice(x, A, 1, 2),
                                     concatenate("a", {x, y}),
                                     roll(x, 1, A),
                                     flip(x, A),
                                     x - mean(x, A),
                                     sum(x),
                                     where(x > 0., x, y),
                                     arange(A).astype(DType::f32) * x,
                                     dot(x, y, A),
                                     flatten_axes(x, {"a", "b"}, "c")};
    };
    agrees(f, {"a", "b"}, normal(1, {A, B}), normal(2, {A, B}));
  }
}

TEST_CASE("partition: positions move along an axis, and its mesh axis moves to another axis") {
  Axis A{"a", 8}, D{"d", 8};
  const Mesh eight{{{"x", 4}, {"y", 2}}};
  auto x = normal(1, {A, Axis("b", 3), D});
  for (int by : {-3, 1, 4}) {
    auto f = [=](const NamedArray& v) { return roll(v, by, D); };
    auto both = Mapping{{"a", "x"}, {"d", "y"}};
    auto g = named_jit(
        f, {.mesh = eight, .axis_resources = both, .in = Mapping{{"d", "x"}}, .out = both});
    CHECK(g.plan(x).calls == 1);
    close(g(x), f(x));
  }
}

TEST_CASE(
    "partition: devices with empty blocks issue their collectives in the order of the others") {
  Axis D{"d", 1};
  auto loss = [=](const NamedArray& x) {
    auto moved = slice(concatenate("d", {slice(x, D, 0, 1), x * 2.}), D.resize(2), 1, 1);
    auto terms = tanh(top_k(x, D, 1).first) + 2. * tanh(x) + tanh(moved);
    return sum(terms);
  };
  auto f = [=](const NamedArray& x) {
    auto [value, grad] = value_and_grad(loss)(x);
    return std::pair(grad, value);
  };
  auto x = normal(1, D);
  Mapping sharded{{"d", "x"}};
  auto g = named_jit(f, {.mesh = Mesh{{{"x", 5}}},
                         .axis_resources = sharded,
                         .in = sharded,
                         .out = Mapping{},
                         .regather = false});
  auto got = g(x), expected = f(x);
  close(got.first, expected.first);
  close(got.second, expected.second);
}

TEST_CASE(
    "partition: a stack of layers in a loop matches, "
    "with different shardings of weights and activations") {
  for (int embed : {4, 5}) {
    CAPTURE(embed);
    Axis Layers{"layers", 3}, Embed{"embed", embed}, Batch{"batch", 6};
    auto loss = [=](const NamedArray& w, const NamedArray& x) {
      axis_mapping inside(Mapping{{"batch", "data"}});
      auto y = fold(
          [=](const NamedArray& h, const NamedArray& layer) {
            return h + rename(tanh(dot(h, layer, "embed")), {{"out", "embed"}});
          },
          Layers, {.checkpoint = "carries"})(x, w);
      return mean(square(y));
    };
    agrees([=](const NamedArray& w, const NamedArray& x) { return value_and_grad(loss)(w, x); },
           {"embed", "batch", "layers", "out"}, normal(1, {Layers, Embed, Embed.alias("out")}),
           normal(2, {Batch, Embed}));
  }
}

TEST_CASE("partition: rematerialized chunks match, from their partial sums") {
  struct Sizes {
    int chunks, tokens, vocab;
  };
  for (Sizes s : {Sizes{3, 2, 8}, {4, 3, 5}, {1, 2, 2}}) {
    Axis Chunk{"chunk", s.chunks}, Tokens{"tokens", s.tokens}, Vocab{"vocab", s.vocab},
        Embed{"embed", 6};
    CAPTURE(to_string(make_axes(Chunk, Tokens, Vocab)));
    auto loss = [=](const NamedArray& w, const NamedArray& x) {
      auto body = [=](const NamedArray& all, const NamedArray& x) {
        return all + sum(logsumexp(dot(x, w, Embed), Vocab));
      };
      return square(fold(body, Chunk, {.checkpoint = "carries"})(zeros({}), x));
    };
    auto both = [=](const NamedArray& w, const NamedArray& x) {
      return value_and_grad([=](const std::pair<NamedArray, NamedArray>& p) {
        return loss(p.first, p.second);
      })(std::pair(w, x));
    };
    agrees(both, {"vocab", "embed", "tokens", "chunk"}, normal(1, {Embed, Vocab}),
           normal(2, {Chunk, Tokens, Embed}));
  }
}

TEST_CASE("partition: a loop over a sharded axis runs over each device's own part") {
  Axis A{"a", 6}, B{"b", 4};
  auto f = [=](const NamedArray& x) {
    auto each = map([=](const NamedArray& row) { return softmax(row, B); }, A)(x);
    auto all = fold([=](const NamedArray& sum, const NamedArray& row,
                        const NamedArray& i) { return sum + tanh(row) * cos(i); },
                    A)(zeros(B), x, arange(A).astype(DType::f32));
    return std::pair{each, all};
  };
  agrees(f, {"a", "b"}, normal(1, {A, B}));
  auto sharded = named_jit(f, {.mesh = two, .axis_resources = Mapping{{"a", "data"}}});
  sharded(normal(1, {A, B}));
  // one sum: an all-reduce over two devices
  CHECK(sharded.report().sent_bytes == B.size * 4);
}

TEST_CASE("partition: a part of an axis may have the name of the full axis") {
  Axis A{"a", 6}, B{"b", 4};
  auto f = [=](const NamedArray& x) {
    auto y = unflatten_axis(x, "a", {Axis("a", 3), Axis("inner", 2)});
    return std::pair{dot(y, ones(B), B), flatten_axes(tanh(y), {"a", "b"}, "b")};
  };
  agrees(f, {"a", "inner", "b"}, normal(1, {A, B}));
}

TEST_CASE("partition: parts of an axis and the full axis match, for all blocks") {
  const Mesh four{{{"data", 4}}}, grid{{{"data", 3}, {"model", 2}}};
  Axis A{"a", 5}, B{"b", 6}, C{"c", 3};
  auto x = normal(1, {A, B, C}), y = normal(2, {Axis("ab", 30), C});
  auto f = [=](const NamedArray& x, const NamedArray& y) {
    auto loss = [=](const std::pair<NamedArray, NamedArray>& v) {
      auto flat = auto_sharded(flatten_axes(v.first, {"a", "b"}, "ab")),
           parts = auto_sharded(unflatten_axis(v.second, "ab", {A, B}));
      // a part with the name of the full axis
      auto other = unflatten_axis(flat * 2., "ab", {Axis("ab", 2), Axis("inner", 15)});
      return sum(square(flat * v.second)) + sum(tanh(parts * v.first)) + sum(sin(other));
    };
    return std::tuple{value_and_grad(loss)(std::pair(x, y)), flatten_axes(x, {"a", "b"}, "ab"),
                      unflatten_axis(y, "ab", {A, B})};
  };
  auto expected = flatten(jit(f)(x, y));
  struct Case {
    const Mesh& mesh;
    Mapping m;
  };
  for (auto& c :
       {Case{four, {{"a", "data"}, {"ab", "data"}}}, Case{four, {{"b", "data"}, {"ab", "data"}}},
        Case{four, {{"a", "data"}}}, Case{four, {{"ab", "data"}}},
        Case{grid, {{"a", "data"}, {"b", "model"}}},
        Case{grid, {{"a", "data"}, {"b", "model"}, {"ab", {"model", "data"}}}},
        Case{grid, {{"a", "model"}, {"ab", "data"}}}, Case{grid, {{"ab", {"data", "model"}}}},
        Case{grid, {{"ab", "model"}, {"inner", "data"}, {"b", "data"}}}})
    for (const char* backend : {"cpu", "reference"}) {
      CAPTURE(to_string(c.m));
      auto got =
          flatten(named_jit(f, {.backend = backend, .mesh = c.mesh, .axis_resources = c.m})(x, y));
      REQUIRE(got.size() == expected.size());
      for (std::size_t k = 0; k < got.size(); ++k) close(got[k], expected[k]);
    }
}

TEST_CASE("partition: top_k of a sharded axis handles uneven blocks, equal values and NaN") {
  const Mesh four{{{"data", 4}}};
  for (int size : {16, 13, 9, 5, 3})
    for (int k : {1, 2, 3}) {
      CAPTURE(size);
      CAPTURE(k);
      Axis A{"a", size}, B{"b", 3};
      auto x = round(normal(size, {B, A}));  // many are equal
      x = where(arange(A) == 2, std::numeric_limits<double>::quiet_NaN(), x);
      // Values below the fill of a short block, which must not be among the largest.
      auto ids = (round(normal(size, {A, B}) * 3.) - 100.).astype(DType::i32);
      auto f = [=](const NamedArray& x, const NamedArray& i) {
        auto [v, at] = top_k(x, "a", k);
        auto [w, there] = top_k(i, "a", k);
        return std::vector{isnan(v).astype(DType::i32),
                           at,
                           w,
                           there,
                           argmax(i, A),
                           argmin(x, A),
                           slice(argsort(i, A), A, 0, k),
                           take(i, A, slice(argsort(sin(x), A), A, 0, k)),
                           slice(argsort(i * 2 + arange(A) % 3, A), A, 0, k)};
      };
      auto expected = flatten(jit(f)(x, ids));
      auto got =
          flatten(named_jit(f, {.mesh = four, .axis_resources = Mapping{{"a", "data"}}})(x, ids));
      for (std::size_t n = 0; n < got.size(); ++n) CHECK(got[n].doubles() == expected[n].doubles());
    }
  // Block by block: 7 blocks of 7, and one of 1.
  Axis A{"a", 50}, B{"b", 16};
  auto ids = (round(normal(3, {A, B}) * 9.) - 100.).astype(DType::i32);
  auto f = [](const NamedArray& i) { return top_k(i, "a", 4).first; };
  auto g = named_jit(f, {.mesh = Mesh{{{"data", 8}}}, .axis_resources = Mapping{{"a", "data"}}});
  CHECK(g(ids).doubles() == jit(f)(ids).doubles());
  CHECK(g.report().sent_bytes < double(ids.nbytes()) / 8);  // less than the rows
}

TEST_CASE("partition: positions under another name of their axis match") {
  Axis A{"a", 8}, B{"b", 6}, C{"c", 8};
  auto x = normal(1, {A, B}), y = normal(2, {A, C});
  agrees([=](const NamedArray& x) { return x * rename(arange(C), "c", "a"); }, {"a", "b"}, x);
  agrees(
      [=](const NamedArray& y) {
        return y * rename(arange(A) - 2 * broadcast_axis(arange(C), A), {{"a", "c"}, {"c", "a"}});
      },
      {"a", "c"}, y);
  agrees(
      [=](const NamedArray& y) {  // one iota under both names
        auto away = arange(A) - broadcast_axis(rename(arange(A), "a", "c"), A);
        return where(greater(away, 2), y, 0.);
      },
      {"a", "c"}, y);
  agrees(
      [=](const NamedArray& x) {
        return vmap([](const NamedArray& i, const NamedArray& x) { return x * i; }, "a")(arange(A),
                                                                                         x);
      },
      {"a", "b"}, x);
  agrees(
      [=](const NamedArray& x) {
        return vmap([=](const NamedArray& i, const NamedArray& x) { return x * one_hot(i % 6, B); },
                    "a")(arange(A), x);
      },
      {"a", "b"}, x);
}

TEST_CASE("partition: random draws do not depend on the mesh") {
  Axis A{"a", 7}, B{"b", 4};
  auto f = [=](const NamedArray& x) {
    return std::pair{random::normal(random::key(3), {A, B}) + x,
                     random::uniform(random::key(4), {B, A}) * x};
  };
  agrees(f, {"a", "b"}, normal(1, {A, B}));
}

TEST_CASE("partition: the chunked loss matches on a mesh") {
  Axis Tokens{"tokens", 12}, Embed{"embed", 4}, Vocab{"vocab", 7}, Batch{"batch", 3};
  auto ids = random::randint(random::key(5), {Batch, Tokens}, 0, 7);
  auto loss = [=](const std::pair<NamedArray, NamedArray>& p, const NamedArray& i) {
    return mean(nn::chunked_cross_entropy(p.first, p.second, i, Embed, Vocab, Tokens,
                                          {.chunks = {.chunk = 5}}));
  };
  agrees([=](const std::pair<NamedArray, NamedArray>& p,
             const NamedArray& i) { return value_and_grad(loss)(p, i); },
         {"batch", "embed", "vocab", "tokens"},
         std::pair{normal(1, {Batch, Tokens, Embed}), normal(2, {Vocab, Embed})}, ids);
}

TEST_CASE("partition: mistakes raise") {
  Axis A{"a", 4}, B{"b", 4};
  auto x = normal(1, {A, B});
  auto f = [](const NamedArray& v) { return v + 1.; };
  CHECK_THROWS_AS(
      named_jit(f, {.mesh = two, .axis_resources = Mapping{{"a", "data"}, {"b", "data"}}})(x),
      Error);  // one mesh axis twice
  // an unknown mesh axis
  CHECK_THROWS_AS(named_jit(f, {.mesh = two, .axis_resources = Mapping{{"a", "dta"}}})(x), Error);
}
