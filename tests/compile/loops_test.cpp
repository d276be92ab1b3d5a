// chunked_reduce and the merge pass: the number of contractions with the head, the number of loops,
// the planned memory, and the values.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"

using namespace haliax;

namespace {

const Axis Tokens{"tokens", 12}, Embed{"embed", 5}, Vocab{"vocab", 7};

struct Parameters {
  NamedArray x, w;
};  // x (tokens, embed), w (vocab, embed)

// Every program below consists of logits = x w^T, one chunk of tokens at a time.
NamedArray losses(const NamedArray& x, const NamedArray& w, const NamedArray& ids,
                  std::int64_t chunk, ChunkForm form = ChunkForm::automatic) {
  return nn::chunked_cross_entropy(x, w, ids, Embed, Vocab, Tokens,
                                   {.chunks = {.chunk = chunk, .form = form}});
}
NamedArray unchunked_losses(const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
  return nn::cross_entropy_loss(dot(x, w, Embed), Vocab, ids, {.reduction = nn::Reduction::none});
}

struct Data {
  NamedArray x = random::normal(random::key(1), {Tokens, Embed}, DType::f64),
             w = random::normal(random::key(2), {Vocab, Embed}, DType::f64),
             ids = random::randint(random::key(3), Tokens, 0, int(Vocab.size)),
             given = random::uniform(random::key(4), Tokens, 0., 1., DType::f64);
};

void same(const NamedArray& got, const NamedArray& expected, double tolerance = 1e-13) {
  REQUIRE(got.axes() == expected.axes());
  auto a = got.doubles(), b = expected.doubles();
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    REQUIRE(std::abs(a[i] - b[i]) <= tolerance * std::max(1., std::abs(b[i])));
  }
}

struct Counts {
  int contractions, loops;
  friend bool operator==(const Counts&, const Counts&) = default;
};
std::ostream& operator<<(std::ostream& os, const Counts& c) {
  return os << c.contractions << " contractions, " << c.loops << " loops";
}

// Runs f jitted and counts parts of its Program. The results must match `unchunked`, which runs
// without chunks.
template <class F, class G, class... A> Counts counts(F f, G unchunked, const A&... args) {
  auto jitted = jit(f);
  auto got = flatten(jitted(args...)), expected = flatten(unchunked(args...));
  REQUIRE(got.size() == expected.size());
  for (std::size_t k = 0; k < got.size(); ++k) same(got[k], expected[k]);
  return {jitted.report().contractions, jitted.report().loops};
}

// The table: a loss of (parameters, ids, given), computed from the losses of single tokens.
using Losses = NamedArray (*)(const NamedArray& x, const NamedArray& w, const NamedArray& ids,
                              std::int64_t chunk);
NamedArray in_chunks(const NamedArray& x, const NamedArray& w, const NamedArray& ids,
                     std::int64_t chunk) {
  return losses(x, w, ids, chunk);
}
NamedArray at_once(const NamedArray& x, const NamedArray& w, const NamedArray& ids, std::int64_t) {
  return unchunked_losses(x, w, ids);
}

template <class Loss> Counts gradient_counts(Loss loss, std::int64_t chunk = 4) {
  Data d;
  auto with = [&](Losses how) {
    return [=](const Parameters& p, const NamedArray& ids, const NamedArray& given) {
      return value_and_grad([=](const Parameters& q, const NamedArray& i, const NamedArray& g) {
        return loss(how, q, i, g, chunk);
      })(p, ids, given);
    };
  };
  return counts(with(in_chunks), with(at_once), Parameters{d.x, d.w}, d.ids, d.given);
}

}  // namespace

TEST_CASE("loops: the forward pass has 1 contraction with the head") {
  Data d;
  auto with = [](Losses how) {
    return
        [how](const Parameters& p, const NamedArray& ids) { return mean(how(p.x, p.w, ids, 4)); };
  };
  CHECK(counts(with(in_chunks), with(at_once), Parameters{d.x, d.w}, d.ids) == Counts{1, 1});
}

TEST_CASE("loops: loss and gradients have 3 contractions, in one loop") {
  auto loss = [](Losses how, const Parameters& p, const NamedArray& ids, const NamedArray&,
                 std::int64_t chunk) { return mean(how(p.x, p.w, ids, chunk)); };
  CHECK(gradient_counts(loss) == Counts{3, 1});
  // the partial last chunk is a separate body, with one iteration
  CHECK(gradient_counts(loss, 5) == Counts{6, 2});
  CHECK(gradient_counts(loss, 12) == Counts{3, 0});  // one chunk
}

TEST_CASE("loops: a frozen head has 2 contractions") {
  Data d;
  auto with = [](Losses how) {
    return [how](const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
      return value_and_grad([how](const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
        return mean(how(x, w, ids, 4));
      })(x, w, ids);
    };
  };
  CHECK(counts(with(in_chunks), with(at_once), d.x, d.w, d.ids) == Counts{2, 1});
}

TEST_CASE("loops: cotangents that are given for each token have 3 contractions") {
  auto loss = [](Losses how, const Parameters& p, const NamedArray& ids, const NamedArray& given,
                 std::int64_t c) { return sum(given * how(p.x, p.w, ids, c)); };
  CHECK(gradient_counts(loss) == Counts{3, 1});
}

TEST_CASE("loops: cotangents computed from that token's own loss have 3 contractions") {
  auto loss = [](Losses how, const Parameters& p, const NamedArray& ids, const NamedArray&,
                 std::int64_t c) { return mean(exp(-how(p.x, p.w, ids, c))); };
  CHECK(gradient_counts(loss) == Counts{3, 1});
}

TEST_CASE("loops: cotangents that need all losses recompute: 4 contractions in two loops") {
  auto loss = [](Losses how, const Parameters& p, const NamedArray& ids, const NamedArray&,
                 std::int64_t c) { return logsumexp(how(p.x, p.w, ids, c)); };
  CHECK(gradient_counts(loss) == Counts{4, 2});
}

TEST_CASE("loops: a tied table has 3 contractions, and one carry for both uses") {
  Data d;
  auto with = [](Losses how) {
    return
        [how](const NamedArray& w, const NamedArray& ids) {  // x is computed from the table itself
          return value_and_grad([how](const NamedArray& w, const NamedArray& ids) {
            return mean(how(tanh(take(w, Vocab, ids)), w, ids, 4));
          })(w, ids);
        };
  };
  CHECK(counts(with(in_chunks), with(at_once), d.w, d.ids) == Counts{3, 1});
}

TEST_CASE("loops: a second loss term in a separate loop has 3 contractions") {
  auto loss = [](Losses how, const Parameters& p, const NamedArray& ids, const NamedArray& given,
                 std::int64_t c) {
    return mean(how(p.x, p.w, ids, c)) + sum(given * how(p.x, p.w, (ids + 1) % int(Vocab.size), c));
  };
  CHECK(gradient_counts(loss) == Counts{3, 1});
}

TEST_CASE("loops: a metric in a separate loop has 3 contractions") {
  Data d;
  auto right = [](const NamedArray& x, const NamedArray& w, const NamedArray& ids) {
    return sum(astype(argmax(dot(x, w, Embed), Vocab) == ids, DType::f64));
  };
  auto with = [=](Losses how, bool chunked) {
    return [=](const Parameters& p, const NamedArray& ids) {
      auto metric = chunked ? chunked_reduce(Tokens, {.chunk = 4}, right)(p.x, p.w, ids)
                            : right(p.x, p.w, ids);
      auto r = value_and_grad([how](const Parameters& q, const NamedArray& i) {
        return mean(how(q.x, q.w, i, 4));
      })(p, ids);
      return std::pair{r, metric};
    };
  };
  CHECK(counts(with(in_chunks, true), with(at_once, false), Parameters{d.x, d.w}, d.ids) ==
        Counts{3, 1});
}

TEST_CASE("loops: values do not depend on the chunk size or on the backend") {
  Data d;
  auto N = Tokens.size;
  auto step = [](const Parameters& p, const NamedArray& ids, const NamedArray& given, Losses how,
                 std::int64_t chunk) {
    return value_and_grad([=](const Parameters& q, const NamedArray& i, const NamedArray& g) {
      auto l = how(q.x, q.w, i, chunk);
      return mean(l) + sum(g * l) + mean(exp(-l)) + square(sum(l));
    })(p, ids, given);
  };
  auto expected = flatten(step({d.x, d.w}, d.ids, d.given, at_once, 0));
  for (auto chunk : {std::int64_t(1), std::int64_t(3), std::int64_t(7), N - 1, N, N + 1})
    for (const char* backend : {"cpu", "reference"}) {
      CAPTURE(chunk);
      CAPTURE(backend);
      auto f = jit([=](const Parameters& p, const NamedArray& ids,
                       const NamedArray& given) { return step(p, ids, given, in_chunks, chunk); },
                   {.backend = backend});
      auto got = flatten(f(Parameters{d.x, d.w}, d.ids, d.given));
      REQUIRE(got.size() == expected.size());
      for (std::size_t k = 0; k < got.size(); ++k) same(got[k], expected[k], 1e-12);
    }
}

TEST_CASE("loops: second derivatives pass through chunks") {
  Data d;
  auto of = [&](Losses how) {
    auto g = [how](const Parameters& p, const NamedArray& ids) {
      auto inner = grad([how](const Parameters& q, const NamedArray& i) {
        return mean(how(q.x, q.w, i, 5));
      })(p, ids);
      return sum(square(inner.x)) + sum(square(inner.w));
    };
    return flatten(jit(grad(g))(Parameters{d.x, d.w}, d.ids));
  };
  auto got = of(in_chunks), expected = of(at_once);
  for (std::size_t k = 0; k < got.size(); ++k) same(got[k], expected[k], 1e-12);
}

TEST_CASE(
    "loops: many loops, each reading the result of the previous one, compile in linear time") {
  auto f = [](NamedArray x) {  // x (tokens)
    for (int k = 0; k < 40; ++k)
      x = map([y = sum(x)](const NamedArray& v) { return v * 0.5 + y * 0.01; }, Tokens)(x);
    return x;
  };
  auto x = arange(Tokens).astype(DType::f64);
  auto report = jit(f).compile(x);
  CHECK(report.loops == 40);
  // a traversal from each later loop to each earlier one would not finish
  CHECK(report.trace_s + report.compile_s < 20);
  same(jit(f)(x), jit(f, {.backend = "reference"})(x));
}

TEST_CASE(
    "chunked: a sum over iterations that is also a result does not start from its later addend") {
  auto sums = chunked_reduce(Tokens, {.chunk = 4},
                             [](const NamedArray& x) { return sum(square(x), Tokens); });
  auto f = jit([&](const NamedArray& x, const NamedArray& more) {
    auto s = sums(x);
    return std::pair{s, s + more};
  });
  Data d;
  auto more = random::normal(random::key(5), Embed, DType::f64);
  auto [s, t] = f(d.x, more);
  same(s, sum(square(d.x), Tokens));
  same(t, sum(square(d.x), Tokens) + more);
}
