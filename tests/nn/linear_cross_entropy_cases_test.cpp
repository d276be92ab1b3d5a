// linear_cross_entropy: what it costs, what it refuses, mistakes that others have made, and losses
// that are no cross entropy.
#include <doctest/doctest.h>

#include <cmath>

#include "examples/chunked_loss/methods.h"
#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "support/head_model.h"
#include "support/near.h"

using namespace haliax;

namespace {

const Axis Tokens{"tokens", 12}, Embed{"embed", 6}, Vocab{"vocab", 16};

using Parameters = test::HeadParameters;
const test::HeadModel model{Tokens, Embed, Vocab};
NamedArray normal(int seed, const AxisSpec& axes, DType d = DType::f64) {
  return test::normal(seed, axes, d);
}
Parameters parameters(DType d = DType::f64) { return model.parameters(d); }
NamedArray ids() { return model.ids(); }

nn::LinearCrossEntropy losses(const Parameters& p, nn::LinearCrossEntropyOptions o = {}) {
  return nn::linear_cross_entropy(p.x, p.w, ids(), Embed, Vocab, o);
}
nn::LinearCrossEntropyOptions per_token(std::int64_t chunk, ChunkForm form = ChunkForm::automatic) {
  return {.chunks = {.chunk = chunk, .form = form}, .reduction = nn::Reduction::none};
}
using Cost = std::pair<int, int>;                             // contractions, loops
template <class F, class P> Cost costs_of(F f, const P& p) {  // f(p) -> a scalar or a tree
  auto r = jit(f).compile(p);
  return {r.contractions, r.loops};
}
template <class F> auto with_gradient(F f) {
  return [=](const auto& p) { return value_and_grad(f)(p); };
}

// Both, and their gradients, are the same.
template <class F, class G, class P>
void same(F f, G by_the_book, const P& p, double tolerance = 1e-12) {
  auto got = flatten(jit(value_and_grad(f))(p)),
       want = flatten(jit(value_and_grad(by_the_book))(p));
  REQUIRE(got.size() == want.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    CHECK(difference(got[k], want[k], tolerance) == "");
  }
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

TEST_CASE("linear cross entropy: how many contractions with the head") {
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)}) {
    auto o = per_token(4);
    o.walked = walked;
    CHECK(costs_of([=](const Parameters& p) { return losses(p, o).loss; }, parameters()) ==
          Cost{1, 1});
  }
  auto both = [](auto f) { return costs_of(with_gradient(f), parameters()); };
  auto of_losses = [&](auto f) {
    return both([=](const Parameters& p) { return f(losses(p, per_token(4)).loss); });
  };
  // Cotangents that need no final result: loss and gradients in one sweep.
  CHECK(both([](const Parameters& p) { return losses(p, {.chunks = {.chunk = 4}}).loss; }) ==
        Cost{3, 1});
  CHECK(of_losses([](const NamedArray& l) { return mean(l); }) == Cost{3, 1});
  CHECK(of_losses([](const NamedArray& l) { return 0.5 * sum(l * (arange(Tokens) < 5)); }) ==
        Cost{3, 1});
  // of its own loss
  CHECK(of_losses([](const NamedArray& l) { return mean(l * stop_gradient(exp(-l))); }) ==
        Cost{3, 1});
  CHECK(of_losses([](const NamedArray& l) { return sum(tanh(l)); }) == Cost{3, 1});
  // Those that need all losses first.
  CHECK(of_losses([](const NamedArray& l) { return square(mean(l)); }) == Cost{4, 2});
  CHECK(of_losses([](const NamedArray& l) { return logsumexp(l); }) == Cost{4, 2});
  // A frozen head, or a frozen body.
  auto by = [&](bool head) {
    auto f = [=](const Parameters& p) {
      return value_and_grad([=](const NamedArray& a) {
        return losses(head ? Parameters{p.x, a} : Parameters{a, p.w}, {.chunks = {.chunk = 4}})
            .loss;
      })(head ? p.w : p.x);
    };
    return costs_of(f, parameters());
  };
  CHECK(by(false) == Cost{2, 1});
  CHECK(by(true) == Cost{2, 1});
  // Asked for: the chunk made again. By the vocabulary it has to be, since a token's softmax is
  // known at the end.
  CHECK(both([](const Parameters& p) {
          return mean(losses(p, per_token(4, ChunkForm::recompute)).loss);
        }) == Cost{4, 2});
  CHECK(both([](const Parameters& p) {
          return losses(p, {.walked = Vocab, .chunks = {.chunk = 4}}).loss;
        }) == Cost{4, 2});
}

TEST_CASE(
    "linear cross entropy: one walk over the vocabulary gives all but what is weighted by the "
    "softmax itself") {
  const nn::TokenOutputs streamed[] = {
      {.losses = true}, {.logsumexp = true}, {.log_prob = true}, {.ids = true},
      {.nll = true},    {.accuracy = true},  {.top_k = 3},       {.sample = random::key(7)}};
  auto walk = [](const nn::TokenOutputs& outputs) {
    return costs_of(
        [=](const Parameters& p) {
          return losses(p, {.walked = Vocab, .chunks = {.chunk = 5}, .outputs = outputs});
        },
        parameters());
  };
  const Cost once = walk({});
  for (auto& outputs : streamed) {
    CAPTURE(std::size_t(&outputs - streamed));
    CHECK(walk(outputs) == once);
  }
  // The entropy as sum of p * (logsumexp - l), which loses no digits far from zero, needs the
  // logsumexp first.
  CHECK(walk({.entropy = true}) == Cost{2 * once.first, 2 * once.second});
}

TEST_CASE("linear cross entropy: several heads in one walk") {
  struct Heads {
    NamedArray x, text, audio;
  };
  const Axis Audio{"audio", 9};
  const Heads h{normal(1, {Tokens, Embed}), normal(2, {Vocab, Embed}), normal(3, {Audio, Embed})};
  const auto sounds = random::randint(random::key(4), Tokens, 0, int(Audio.size)).eval();
  const auto is_text = (arange(Tokens) % 3 != 0).eval();
  auto both = [=](const Heads& p, std::int64_t chunk) {
    nn::LinearCrossEntropyOptions o{
        .walked = Tokens, .chunks = {.chunk = chunk}, .outputs = {.nll = true, .accuracy = true}};
    o.mask = is_text;
    auto text = nn::linear_cross_entropy(p.x, p.text, ids(), Embed, Vocab, o);
    o.mask = ~is_text;
    auto audio = nn::linear_cross_entropy(p.x, p.audio, sounds, Embed, Audio, o);
    return std::pair{text, audio};
  };
  auto step = jit([=](const Heads& p) {
    return value_and_grad([=](const Heads& q) {
      auto [text, audio] = both(q, 4);
      return std::pair{(text.total + audio.total).mean(), std::pair{text.nll, audio.accuracy}};
    })(p);
  });
  auto [out, gradient] = step(h);
  CHECK(step.report().contractions == 6);
  CHECK(step.report().loops == 1);

  // A metric is a sum and a weight, so that it does not depend on the chunk, nor a perplexity on
  // how many there are.
  auto log_p = log_softmax(dot(h.x, h.text, Embed), Vocab);
  auto nll = -sum(log_p * one_hot(ids(), Vocab, DType::f64), Vocab);
  auto perplexity = exp(mean(nll, {}, {.where = is_text})).item();
  for (std::int64_t chunk : {1, 5, 12})
    CHECK(exp(both(h, chunk).first.nll.mean()).item() ==
          doctest::Approx(perplexity).epsilon(1e-13));
  CHECK(out.second.second.weight.item() == 4);
}

TEST_CASE(
    "linear cross entropy: in a walk of several heads each is computed for its own tokens alone") {
  const Axis Audio{"audio", 40};
  struct Heads {
    NamedArray for_text, for_audio, text, audio;  // hidden states (tokens, embed), heads
  };
  // Eight tokens of text and four of sounds, scattered. The hidden states of the others would make
  // NaN of everything, even times 0.
  const auto x = normal(1, {Tokens, Embed});
  const auto is_text = (mod(arange(Tokens), Arr(3)) != 0).eval();
  const Heads at{where(is_text, x, NAN).eval(), where(is_text, NAN, x).eval(),
                 normal(2, {Vocab, Embed}), normal(3, {Audio, Embed})};
  const Heads good{x, x, at.text, at.audio};
  const auto sounds = (ids() + 20).eval();
  for (ChunkForm form : {ChunkForm::sweep, ChunkForm::recompute})
    for (bool by_mask : {true, false}) {
      CAPTURE(int(form));
      CAPTURE(by_mask);
      auto run = jit(with_gradient([=](const Heads& h) {
        auto head = [&](const NamedArray& a, const NamedArray& w, const Axis& Ids,
                        const NamedArray& targets, const NamedArray& mask) {
          nn::LinearCrossEntropyOptions o{.chunks = {.chunk = 4, .form = form}};
          if (by_mask)
            o.mask = mask;
          else
            o.ignore_index = -1;
          return nn::linear_cross_entropy(a, w, by_mask ? targets : where(mask, targets, -1), Embed,
                                          Ids, o)
              .total;
        };
        return (head(h.for_text, h.text, Vocab, ids(), is_text) +
                head(h.for_audio, h.audio, Audio, sounds, ~is_text))
            .mean();
      }));
      auto want = jit(with_gradient([=](const Heads& h) {
        auto nll = [&](const NamedArray& a, const NamedArray& w, const Axis& Ids,
                       const NamedArray& targets) {
          return nn::cross_entropy_loss(dot(a, w, Embed), Ids, targets,
                                        {.reduction = nn::Reduction::none});
        };
        return mean(where(is_text, nll(h.for_text, h.text, Vocab, ids()),
                          nll(h.for_audio, h.audio, Audio, sounds)));
      }))(good);
      auto [value, g] = run(at);
      CHECK(run.report().contractions == (form == ChunkForm::sweep ? 6 : 8));
      CHECK(run.report().loops == (form == ChunkForm::sweep ? 1 : 2));
      if (form == ChunkForm::recompute) continue;  // its first sweep makes all logsumexps
      CHECK(difference(value, want.first, 1e-12) == "");
      for (auto part : {&Heads::for_text, &Heads::for_audio, &Heads::text, &Heads::audio})
        CHECK(difference(g.*part, want.second.*part, 1e-12) == "");
    }
}

// ---- mistakes that others have made ----

TEST_CASE("regression: a last block when one block holds more than half of the vocabulary") {
  for (std::int64_t block : {9, 10, 15}) {
    CAPTURE(block);
    same(
        [=](const Parameters& p) {
          return losses(p, {.walked = Vocab, .chunks = {.chunk = block}}).loss;
        },
        [](const Parameters& p) {
          return nn::cross_entropy_loss(dot(p.x, p.w, Embed), Vocab, ids());
        },
        parameters());
  }
}

TEST_CASE("regression: the derivative of the soft cap") {
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)})
    same(
        [=](const Parameters& p) {
          return losses(p, {.walked = walked, .chunks = {.chunk = 5}, .soft_cap = 1}).loss;
        },
        [](const Parameters& p) {
          return nn::cross_entropy_loss(tanh(dot(p.x, p.w, Embed)), Vocab, ids());
        },
        parameters());
}

TEST_CASE("regression: every token's loss has a cotangent of its own") {
  const auto c = normal(9, Tokens);
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)})
    same(
        [=](const Parameters& p) {
          auto o = per_token(5);
          o.walked = walked;
          return sum(c * losses(p, o).loss);
        },
        [=](const Parameters& p) {
          return sum(c * nn::cross_entropy_loss(dot(p.x, p.w, Embed), Vocab, ids(),
                                                {.reduction = nn::Reduction::none}));
        },
        parameters());
}

TEST_CASE(
    "regression: the cotangent of the z-loss, as an option and by the logsumexp that comes out") {
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)}) {
    auto by_the_book = [](const Parameters& p) {
      auto logits = dot(p.x, p.w, Embed);
      return nn::cross_entropy_loss(logits, Vocab, ids()) +
             0.3 * mean(square(logsumexp(logits, Vocab)));
    };
    same(
        [=](const Parameters& p) {
          return losses(p, {.walked = walked, .chunks = {.chunk = 5}, .z_loss = 0.3}).loss;
        },
        by_the_book, parameters());
    same(
        [=](const Parameters& p) {
          auto r =
              losses(p, {.walked = walked, .chunks = {.chunk = 5}, .outputs = {.logsumexp = true}});
          return r.loss + 0.3 * mean(square(r.logsumexp));
        },
        by_the_book, parameters());
  }
}

TEST_CASE("regression: the bias counts once, however many blocks there are") {
  struct Biased {
    NamedArray x, w, b;
  };
  const Biased at{normal(1, {Tokens, Embed}), normal(2, {Vocab, Embed}), normal(3, Vocab)};
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)})
    for (std::int64_t chunk : {1, 3, 10})
      same(
          [=](const Biased& p) {
            return nn::linear_cross_entropy(
                       p.x, p.w, ids(), Embed, Vocab,
                       {.walked = walked, .chunks = {.chunk = chunk}, .bias = p.b})
                .loss;
          },
          [](const Biased& p) {
            return nn::cross_entropy_loss(dot(p.x, p.w, Embed) + p.b, Vocab, ids());
          },
          at);
}

TEST_CASE("regression: the perplexity does not depend on the chunk") {
  const auto p = parameters();
  const auto log_p = log_softmax(dot(p.x, p.w, Embed), Vocab);
  const double want =
      std::exp(-sum(log_p * one_hot(ids(), Vocab, DType::f64)).item() / double(Tokens.size));
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)})
    for (std::int64_t chunk : {1, 5, 12}) {
      nn::LinearCrossEntropyOptions o{
          .walked = walked, .chunks = {.chunk = chunk}, .outputs = {.nll = true}};
      CHECK(exp(losses(p, o).nll.mean()).item() == doctest::Approx(want).epsilon(1e-13));
      // Inside of f too the exp stands on the mean of all, and parts of a batch add up.
      auto inside = [](const NamedArray& l) { return exp(mean(logsumexp(l, Vocab))); };
      const auto logits = dot(p.x, p.w, Embed);
      CHECK(difference(chunked_reduce("tokens", {.chunk = chunk}, inside)(logits), inside(logits),
                       1e-13) == "");
      o.mask = (arange(Tokens) < 3).eval();
      auto some = losses(p, o).nll;
      o.mask = (arange(Tokens) >= 3).eval();
      CHECK(exp((some + losses(p, o).nll).mean()).item() == doctest::Approx(want).epsilon(1e-13));
    }
}

TEST_CASE("regression: the loss of bf16 arrays is not summed in bf16") {
  const Axis Many{"tokens", 600};
  const auto x = normal(1, {Many, Embed}, DType::bf16), w = normal(2, {Vocab, Embed}, DType::bf16);
  const auto targets = random::randint(random::key(3), Many, 0, int(Vocab.size)).eval();
  const auto logits = dot(x.astype(DType::f64), w.astype(DType::f64), Embed);
  const double want = nn::cross_entropy_loss(logits, Vocab, targets).item();
  for (std::int64_t chunk : {1, 2, 64, 600}) {
    auto loss = jit([=](const NamedArray& a, const NamedArray& b) {
      return nn::linear_cross_entropy(a, b, targets, Embed, Vocab, {.chunks = {.chunk = chunk}})
          .loss;
    })(x, w);
    CHECK(loss.dtype() == DType::f32);
    CHECK(loss.item() == doctest::Approx(want).epsilon(1e-6));
  }
}

TEST_CASE(
    "regression: nothing counts, nothing is NaN; a token that does not count gives no gradient") {
  const auto p = parameters();
  nn::LinearCrossEntropyOptions o{.chunks = {.chunk = 5}};
  o.mask = (arange(Tokens) < 0).eval();
  auto [loss, g] = value_and_grad([=](const Parameters& q) { return losses(q, o).loss; })(p);
  CHECK(loss.item() == 0);
  CHECK(max(abs(g.x)).item() == 0);
  CHECK(max(abs(g.w)).item() == 0);
  o.mask = (arange(Tokens) >= 4).eval();
  auto half = grad([=](const Parameters& q) { return losses(q, o).loss; })(p);
  CHECK(max(abs(slice(half.x, Tokens, 0, 4))).item() == 0);
  CHECK(min(max(abs(slice(half.x, Tokens, 4, 8)), Embed)).item() > 0);
}

TEST_CASE("linear cross entropy: a chunk in which nothing counts is not computed") {
  const Axis Audio{"audio", 40}, Some{"tokens", 8};
  struct Heads {
    NamedArray x, text, audio;
  };
  // The last chunk's hidden states would make NaN of everything, even times 0.
  const auto x = normal(1, {Tokens, Embed});
  const Heads at{where(arange(Tokens) < 8, x, NAN).eval(), normal(2, {Vocab, Embed}),
                 normal(3, {Audio, Embed})};
  const Heads good{slice(x, Tokens, 0, 8).eval(), at.text, at.audio};
  const auto counts = (arange(Tokens) < 8).eval(), is_text = (arange(Tokens) < 6).eval();
  const auto sounds = (ids() + 20).eval();
  auto by_the_book = [=](const Heads& h) {
    auto nll = [&](const NamedArray& w, const Axis& Ids, const NamedArray& targets) {
      return nn::cross_entropy_loss(dot(h.x, w, Embed), Ids, slice(targets, Tokens, 0, 8),
                                    {.reduction = nn::Reduction::none});
    };
    auto first = arange(Some) < 6;
    return (sum(where(first, nll(h.text, Vocab, ids()), 0.)) +
            sum(where(first, 0., nll(h.audio, Audio, sounds)))) /
           8.;
  };
  const auto want = jit(with_gradient(by_the_book))(good);
  auto head = [](const Heads& h, const NamedArray& w, const Axis& Ids, const NamedArray& targets,
                 const NamedArray& mask, ChunkForm form) {
    return nn::linear_cross_entropy(
               h.x, w, targets, Embed, Ids,
               {.walked = Tokens, .chunks = {.chunk = 4, .form = form}, .mask = mask})
        .total;
  };
  for (bool by_mask : {true, false})
    for (ChunkForm form : {ChunkForm::sweep, ChunkForm::recompute}) {
      CAPTURE(by_mask);
      CAPTURE(int(form));
      // By a mask, or by ids that are none. Two heads in one walk: where neither has a token.
      const auto words = by_mask ? ids() : where(is_text, ids(), -1).eval(),
                 noises = by_mask ? sounds : where(counts & ~is_text, sounds, -1).eval();
      const auto any_text = by_mask ? is_text : ones_like(is_text),
                 any_audio = by_mask ? (counts & ~is_text).eval() : ones_like(is_text);
      auto loss = [=](const Heads& h) {
        return (head(h, h.text, Vocab, words, any_text, form) +
                head(h, h.audio, Audio, noises, any_audio, form))
            .mean();
      };
      auto run = jit(with_gradient(loss));
      auto [value, g] = run(at);
      CHECK(run.report().program.find("skip the rest unless") != std::string::npos);
      CHECK(difference(value, want.first, 1e-12) == "");
      CHECK(difference(slice(g.x, Tokens, 0, 8), want.second.x, 1e-12) == "");
      CHECK(max(abs(slice(g.x, Tokens, 8, 4))).item() == 0);
      CHECK(difference(g.text, want.second.text, 1e-12) == "");
      CHECK(difference(g.audio, want.second.audio, 1e-12) == "");
    }
  // What is asked for every token is made for every token.
  auto every = jit([=](const NamedArray& a) {
    auto r = nn::linear_cross_entropy(
        a, at.text, ids(), Embed, Vocab,
        {.chunks = {.chunk = 4}, .mask = is_text, .outputs = {.logsumexp = true}});
    return std::pair{r.loss, r.logsumexp};
  });
  CHECK(difference(every(x).second, logsumexp(dot(x, at.text, Embed), Vocab), 1e-12) == "");
}

TEST_CASE("linear cross entropy: masked tokens cost nothing, wherever they lie") {
  const Axis Batch{"batch", 2}, Pos{"position", 6};
  // Where a token is masked its hidden state makes NaN of all that is computed with it, even times
  // 0.
  const auto live = (mod(arange(Tokens), Arr(3)) != 0).eval();
  const auto order = argsort(~live, Tokens);
  const auto first = rename(slice(order, Tokens, 0, 8), "tokens", "live").eval();
  const Parameters good = parameters(), bad{where(live, good.x, NAN).eval(), good.w};
  auto by_the_book = [=](const Parameters& p) {
    return nn::cross_entropy_loss(dot(take(p.x, Tokens, first), p.w, Embed), Vocab,
                                  take(ids(), Tokens, first));
  };
  const auto want = jit(with_gradient(by_the_book))(good);
  auto check = [&](auto loss, const Parameters& p, int loops) {
    auto run = jit(with_gradient(loss));
    auto [value, g] = run(p);
    CHECK(run.report().loops == loops);
    CHECK(difference(value, want.first, 1e-12) == "");
    CHECK(difference(flatten_axes(g.x, without_axes(g.x.axes(), Embed), Tokens), want.second.x,
                     1e-12) == "");
    CHECK(difference(g.w, want.second.w, 1e-12) == "");
  };
  for (bool by_mask : {true, false}) {
    CAPTURE(by_mask);
    nn::LinearCrossEntropyOptions o{.chunks = {.chunk = 4},
                                    .outputs = {.nll = true, .accuracy = true}};
    if (by_mask)
      o.mask = live;
    else
      o.ignore_index = 3;
    const auto labels = by_mask ? ids() : where(live, where(ids() == 3, 2, ids()), 3).eval();
    if (by_mask) {
      check(
          [=](const Parameters& p) {
            return nn::linear_cross_entropy(p.x, p.w, labels, Embed, Vocab, o).loss;
          },
          bad, 1);
      // Over several axes; by tiles; with all that is summed beside the loss.
      auto two = [=](const NamedArray& a) { return unflatten_axis(a, Tokens, {Batch, Pos}); };
      for (std::int64_t tile : {0, 5}) {
        auto t = o;
        t.mask = two(live).eval();
        t.vocab_chunk = tile;
        check(
            [=](const Parameters& p) {
              return nn::linear_cross_entropy(p.x, p.w, two(labels), Embed, Vocab, t).loss;
            },
            {two(bad.x).eval(), bad.w}, tile ? 5 : 1);
      }
    }
    auto r = jit([=](const Parameters& p) {
      return nn::linear_cross_entropy(p.x, p.w, labels, Embed, Vocab, o);
    })(bad);
    auto whole = losses(good, {.mask = live, .outputs = {.losses = true}});
    if (by_mask) CHECK(difference(r.nll.sum, sum(whole.losses), 1e-12) == "");
    CHECK(r.accuracy.weight.item() == 8);
    // The loss of each is in its place, to the bit.
    o.outputs.losses = true;
    auto given = jit([=](const Parameters& p) {
      return nn::linear_cross_entropy(p.x, p.w, labels, Embed, Vocab, o).losses;
    })(good);
    auto o2 = o;
    o2.reduction = nn::Reduction::none;  // walked as they lie
    auto apart = jit([=](const Parameters& p) {
      return nn::linear_cross_entropy(p.x, p.w, labels, Embed, Vocab, o2).losses;
    })(good);
    CHECK(all(given == apart).item() == 1);
  }
  // A mask for each example of a vmap.
  const Axis Example{"example", 3};
  const auto masks = (random::uniform(random::key(9), {Example, Tokens}) < 0.5).eval();
  auto mapped = [=](std::optional<std::int64_t> chunk, bool reduced) {
    return jit([=](const Parameters& p, const NamedArray& all) {
      return vmap(
          [=](const NamedArray& mask) {
            return grad([=](const Parameters& q) {
              auto how = reduced ? nn::Reduction::sum : nn::Reduction::none;
              return sum(
                  losses(q, {.chunks = {.chunk = chunk}, .mask = mask, .reduction = how}).loss);
            })(p);
          },
          Example)(all);
    })(good, masks);
  };
  auto chunked = mapped(4, true), plain = mapped(std::nullopt, false);
  CHECK(difference(chunked.x, plain.x, 1e-12) == "");
  CHECK(difference(chunked.w, plain.w, 1e-12) == "");
}

TEST_CASE("linear cross entropy: masked tokens cost nothing in large turns either") {
  const Axis Many{"tokens", 600};  // turns of 300 and of 128
  const Parameters p{normal(1, {Many, Embed}), normal(2, {Vocab, Embed})};
  const auto labels = random::randint(random::key(3), Many, 0, int(Vocab.size)).eval();
  auto by_the_book = [=](const Parameters& q, const NamedArray& live) {
    return sum(where(live,
                     nn::cross_entropy_loss(dot(q.x, q.w, Embed), Vocab, labels,
                                            {.reduction = nn::Reduction::none}),
                     0.));
  };
  auto step = jit([=](const Parameters& q, const NamedArray& live) {
    return value_and_grad([=](const Parameters& r) {
      return nn::linear_cross_entropy(r.x, r.w, labels, Embed, Vocab,
                                      {.mask = live, .reduction = nn::Reduction::sum})
          .loss;
    })(q);
  });
  // None, all, one small turn, one large turn and small ones.
  for (double share : {-1., 2., 0.1, 0.6}) {
    CAPTURE(share);
    const auto live = (random::uniform(random::key(4), Many) < share).eval();
    auto want = jit(value_and_grad([=](const Parameters& q) { return by_the_book(q, live); }))(p);
    auto [value, g] = step(p, live);
    CHECK(difference(value, want.first, 1e-12) == "");
    CHECK(difference(g.x, want.second.x, 1e-12) == "");
    CHECK(difference(g.w, want.second.w, 1e-12) == "");
  }
  CHECK(step.report().loops == 3);  // the last small turn is smaller
  CHECK(step.report().traces == 1);
  // Walked by the vocabulary as well, nobody's turn is one id.
  auto tiled = jit([=](const Parameters& q) {
    return nn::linear_cross_entropy(q.x, q.w, labels, Embed, Vocab,
                                    {.walked = {Vocab, Many}, .ignore_index = 3})
        .loss;
  });
  tiled(p);
  CHECK(tiled.report().loops == 0);
}

TEST_CASE("linear cross entropy: a logit of -inf says never") {
  const auto p = parameters();
  const auto never = where(arange(Vocab) < 3, -INFINITY, zeros(Vocab, DType::f64));
  const auto targets = (ids() % 13 + 3).eval();
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)}) {
    auto f = [=](const Parameters& q) {
      auto r = nn::linear_cross_entropy(
          q.x, q.w, targets, Embed, Vocab,
          {.walked = walked, .chunks = {.chunk = 5}, .bias = never, .outputs = {.entropy = true}});
      return r.loss + sum(r.entropy);
    };
    same(
        f,
        [=](const Parameters& q) {
          auto log_p = log_softmax(dot(q.x, slice(q.w, Vocab, 3, 13), Embed), "vocab");
          return -mean(sum(log_p * one_hot(targets - 3, Vocab.resize(13), DType::f64), "vocab")) -
                 sum(exp(log_p) * log_p);
        },
        p);
  }
}

// ---- what is refused ----

TEST_CASE("linear cross entropy: bad input is told by name") {
  const auto p = parameters(DType::f32);
  auto refused = [&](const NamedArray& targets, nn::LinearCrossEntropyOptions o, const char* why) {
    CAPTURE(why);
    auto text = message([&] { nn::linear_cross_entropy(p.x, p.w, targets, Embed, Vocab, o); });
    CAPTURE(text);
    CHECK(text.find(why) != std::string::npos);
    CHECK(text.find("linear_cross_entropy_cases_test.cpp") != std::string::npos);
  };
  refused(normal(3, Tokens, DType::f32), {},
          "are probabilities, but (tokens=12) has no axis vocab; ids must be integers");
  refused(one_hot(ids(), Vocab, DType::i32), {}, "are ids, which have no axis vocab");
  refused(ids() > 3, {}, "these are bool");
  refused(zeros(Axis("token", 12), DType::i32), {}, "did you mean tokens?");
  refused(zeros(Axis("tokens", 7), DType::i32), {},
          "axis tokens has size 7 in the targets (tokens=7) and 12 in the logits");
  refused(ids(), {.walked = "words"}, "the walked axis words");
  refused(ids(), {.walked = "embed"}, "the walked axis embed");
  refused(ids(), {.chunks = {.chunk = -4}}, "a chunk of -4 positions; it must be positive");
  refused(ids(), {.chunks = {.chunk = 0}}, "a chunk of 0 positions; it must be positive");
  refused(ids(), {.chunks = {.memory = -1}}, "a budget of -1 bytes; it must be positive");
  refused(ids(), {.vocab_chunk = -4}, "must be positive");
  refused(ids(), {.chunks = {.memory = 8}},
          "one position of tokens=12 needs 256 bytes, more than the 8 allowed");
  refused(ids(), {.chunks = {.memory = 8}, .ignore_index = 3}, "one position of tokens=12 needs ");
  refused(ids(), {.chunks = {.memory = -1}, .ignore_index = 3},
          "a budget of -1 bytes; it must be positive");
  refused(ids(), {.chunks = {.chunk = 0}, .ignore_index = 3},
          "a chunk of 0 positions; it must be positive");
  refused(ids(), {.mask = ones(Tokens)}, "the mask is f32; it must be bool");
  refused(ids(), {.mask = arange(Axis("batch", 2)) > 0}, "axis batch of the mask");
  refused(ids(), {.weights = ids()}, "weights are floats");
  refused(ids(), {.bias = zeros(Tokens)}, "the bias has the axes (tokens=12); it needs (vocab=16)");
  refused(ids(), {.temperature = 0}, "temperature is 0");
  refused(ids(), {.soft_cap = -1}, "soft_cap is -1");
  refused(ids(), {.label_smoothing = 1.5}, "label_smoothing is 1.5");
  refused(ids(), {.outputs = {.top_k = 17}},
          "top_k is 17; it must be from 0 (none) to the size of vocab=16");
  refused(ids(), {.outputs = {.top_k = -1}}, "top_k is -1; it must be from 0 (none)");
  refused(ids(), {.walked = Vocab, .outputs = {.top_k = 16}},
          "top_k is all of vocab=16, in order, which a walk over it does not hold");
  refused(ids(), {.vocab_chunk = 4, .outputs = {.top_k = 16}},
          "top_k is all of vocab=16, in order, which a walk over it does not hold");
  refused(ids(), {.z_loss = NAN}, "z_loss is nan; it must be a finite number");
  for (const ChunkOptions& both : {ChunkOptions{.chunk = 4, .memory = 1 << 20},
                                   {.chunk = 4, .chunks = {4}},
                                   {.chunks = {4}, .memory = 1 << 20}})
    refused(ids(), {.chunks = both},
            "`chunk`, `chunks` and `memory` each say what a turn holds; give one of them");
  refused(ids().astype(DType::u8), {.ignore_index = -100},
          "ignore_index is -100, which targets of u8 never are");
  refused(ids().astype(DType::i8), {.ignore_index = 128},
          "ignore_index is 128, which targets of i8 never are");
  refused(ids(), {.walked = "vocab", .vocab_chunk = 4}, "axis vocab is walked already");
  refused(ids(), {.teacher = nn::LinearHead{p.x, normal(3, {Embed}, DType::f32), "embed"}},
          "vocab");
  refused(ids(), {.teacher = nn::LinearHead{ones({Axis("pair", 2), Embed}), p.w, "embed"}},
          "axis pair of the teacher's x");
  CHECK(message([&] { nn::linear_cross_entropy(p.x, p.w, ids(), Embed, "words"); }).find("words") !=
        std::string::npos);
  CHECK(message([&] {
          nn::linear_cross_entropy(p.x, p.w, ids(), "embd", Vocab);
        }).find("did you mean embed?") != std::string::npos);
  CHECK(message([&] {
          nn::linear_cross_entropy(p.w, p.w, ids(), Embed, Vocab);
        }).find("already has the axis vocab") != std::string::npos);
  CHECK(message([&] {
          nn::linear_next_token_loss("tokens", slice(p.x, Tokens, 0, 1), p.w,
                                     slice(ids(), Tokens, 0, 1), Embed, Vocab);
        }).find("has no next position") != std::string::npos);
}

TEST_CASE(
    "linear cross entropy: targets outside the vocabulary do not count, or are told when checked") {
  const auto p = parameters();
  // ids that cannot count to the vocabulary
  for (auto d : {DType::u8, DType::i8, DType::u16, DType::u32, DType::i64, DType::u64}) {
    const Axis Large("vocab", 300);
    const auto w = normal(7, {Large, Embed}), x = p.x;
    auto of = [&](const NamedArray& t) {
      return nn::linear_cross_entropy(x, w, t, Embed, Large,
                                      {.chunks = {.chunk = 5}, .ignore_index = 127})
          .loss;
    };
    CHECK(difference(of(ids().astype(d)), of(ids()), 0) == "");
    CHECK(difference(nn::cross_entropy_loss(dot(x, w, Embed), Large, ids().astype(d)), of(ids()),
                     1e-12) == "");
  }
  auto wrong = where(arange(Tokens) < 2, where(arange(Tokens) < 1, -100, 16), ids()).eval();
  auto loss = [=](const NamedArray& targets, nn::LinearCrossEntropyOptions o) {
    o.chunks = {.chunk = 5};
    o.outputs = {.log_prob = true, .nll = true};
    return nn::linear_cross_entropy(p.x, p.w, targets, Embed, Vocab, o);
  };
  auto r = loss(wrong, {});
  CHECK(r.total.weight.item() == 10);
  CHECK(
      r.loss.item() ==
      doctest::Approx(
          mean(slice(loss(ids(), {.reduction = nn::Reduction::none}).loss, Tokens, 2, 10)).item()));
  CHECK(r.log_prob.doubles()[0] == 0);
  auto text = message([&] { loss(wrong, {.checked = true}); });
  CHECK(text.find("2 of 12 targets are no ids of vocab=16") != std::string::npos);
  text = message([&] { loss(wrong, {.ignore_index = -100, .checked = true}); });
  CHECK(text.find("1 of 12 targets") != std::string::npos);
  // Where ids have no value yet, the loss says it.
  auto traced = jit(
      [=](const NamedArray& t) { return loss(t, {.ignore_index = -100, .checked = true}).loss; });
  CHECK(std::isnan(traced(wrong).item()));
  CHECK(std::isfinite(traced(where(wrong == 16, 0, wrong)).item()));
  CHECK(loss(ids(), {.checked = true}).loss.item() == doctest::Approx(loss(ids(), {}).loss.item()));
}

// ---- memory, bits, next tokens, draws ----

TEST_CASE("linear next token loss") {
  const Axis Batch{"batch", 3}, Pos{"position", 7};
  const Parameters p{normal(1, {Batch, Pos, Embed}), normal(2, {Vocab, Embed})};
  const auto text = random::randint(random::key(3), {Batch, Pos}, 0, int(Vocab.size)).eval();
  const auto real = broadcast_axis(arange(Batch) < 2, Pos).eval();
  for (bool masked : {false, true}) {
    nn::LinearCrossEntropyOptions o{.chunks = {.chunk = 4}};
    if (masked) o.mask = real;
    auto by_the_book = [=](const Parameters& q) {
      auto logits = dot(q.x, q.w, Embed);
      if (!masked) return nn::next_token_loss(Pos, Vocab, logits, text);
      return nn::next_token_loss(Pos, Vocab, slice(logits, Batch, 0, 2), slice(text, Batch, 0, 2));
    };
    same(
        [=](const Parameters& q) {
          return nn::linear_next_token_loss(Pos, q.x, q.w, text, Embed, Vocab, o).loss;
        },
        by_the_book, p);
    auto one = [=](const Parameters& q, const NamedArray& ids) {
      return nn::linear_next_token_loss(Pos, q.x, q.w, ids, Embed, Vocab, {.chunks = {.chunk = 4}})
          .loss;
    };
    if (!masked)
      same(
          [=](const Parameters& q) {
            return mean(vmap(
                [=](const NamedArray& x, const NamedArray& ids) {
                  return one({x, q.w}, ids);
                },
                Batch)(q.x, text));
          },
          by_the_book, p);
  }
}

TEST_CASE("linear cross entropy: a drawn id is the same in any chunk, tile and shard") {
  const auto p = parameters();
  const auto key = random::key(7);
  // The noise belongs to a token and an id, wherever they are made.
  const auto logits = dot(p.x, p.w, Embed) / 0.5;
  const auto want =
      argmax(logits + random::gumbel(key, {Tokens, Vocab}, DType::f64), Vocab).integers();
  CHECK(random::categorical(key, logits, Vocab).integers() == want);
  auto drawn = [=](const Parameters& q, nn::LinearCrossEntropyOptions o) {
    o.temperature = 0.5;
    o.outputs = {.sample = key};
    return losses(q, o).sample;
  };
  std::vector<nn::LinearCrossEntropyOptions> cuts{
      {.chunks = {.chunk = 5}, .vocab_chunk = 3},
      {.chunks = {.chunk = 7}, .vocab_chunk = 9},
      {.chunks = {.memory = 1024, .form = ChunkForm::tile}}};
  for (AxisSelection walked : {AxisSelection(Tokens), AxisSelection(Vocab)})
    for (std::int64_t chunk : {1, 5, 16})
      for (bool reverse : {false, true})
        cuts.push_back({.walked = walked, .chunks = {.chunk = chunk, .reverse = reverse}});
  for (auto& cut : cuts) {
    CAPTURE(std::size_t(&cut - cuts.data()));
    CHECK(drawn(p, cut).integers() == want);
    auto once = [=](const Parameters& q) { return drawn(q, cut); };
    CHECK(jit(once)(p).integers() == want);
    for (const char* axis : {"tokens", "vocab", "embed"}) {
      CAPTURE(std::string(axis));
      CHECK(named_jit(once,
                      {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{axis, "data"}}})(p)
                .integers() == want);
    }
  }
  // For each example of a batch, by a key of its own.
  const Axis Batch{"batch", 3};
  const auto keys = random::split(key, Batch);
  const auto batched = normal(9, {Batch, Tokens, Embed});
  auto one = [=](const NamedArray& x, const Key& k) {
    return nn::linear_cross_entropy(x, p.w, ids(), Embed, Vocab,
                                    {.chunks = {.chunk = 5}, .outputs = {.sample = k}})
        .sample;
  };
  auto whole = [=](const NamedArray& x, const Key& k) {
    return random::categorical(k, dot(x, p.w, Embed), Vocab);
  };
  CHECK(vmap(one, Batch)(batched, keys).integers() == vmap(whole, Batch)(batched, keys).integers());
  // No array of tokens by ids, of logits or of noise; nor with the primitive by itself.
  const Axis Many{"tokens", 256}, Large{"vocab", 4096};
  const auto x = normal(1, {Many, Embed}, DType::f32), w = normal(2, {Large, Embed}, DType::f32);
  auto sample = [=](const NamedArray& a, const NamedArray& u) {
    return argmax(dot(a, u, Embed) + random::gumbel(key, {Many, Large}), Large);
  };
  for (AxisSelection walked :
       {AxisSelection(Many), AxisSelection(Large), AxisSelection{"tokens", "vocab"}}) {
    auto run = jit([=](const NamedArray& a, const NamedArray& u) {
      return chunked_reduce(walked, {.memory = 1 << 18}, sample)(a, u);
    });
    CHECK(run(x, w).integers() == sample(x, w).integers());
    CHECK(run.report().arena_bytes <= 1 << 18);
  }
}

// ---- losses that are no cross entropy ----

TEST_CASE("chunked: DPO, whose pairs need whole sequences") {
  const Axis Pair{"pair", 3}, Pos{"position", 8};
  struct Policies {
    NamedArray chosen, rejected, w;  // hidden states (pair, position, embed), the head
  };
  const Policies p{normal(1, {Pair, Pos, Embed}), normal(2, {Pair, Pos, Embed}),
                   normal(3, {Vocab, Embed})};
  const auto better = random::randint(random::key(4), {Pair, Pos}, 0, 16).eval(),
             worse = random::randint(random::key(5), {Pair, Pos}, 0, 16).eval();
  // the difference of the log-probabilities of a frozen model
  const auto reference = normal(6, Pair);
  // log-probabilities (pair, position)
  auto dpo = [=](const NamedArray& chosen, const NamedArray& rejected) {
    return -mean(nn::log_sigmoid(0.1 * (sum(chosen, Pos) - sum(rejected, Pos) - reference)));
  };
  auto chunked = [=](const Policies& q) {
    auto log_prob = [&](const NamedArray& x, const NamedArray& ids) {
      return nn::linear_cross_entropy(
                 x, q.w, ids, Embed, Vocab,
                 {.walked = Pos, .chunks = {.chunk = 4}, .outputs = {.log_prob = true}})
          .log_prob;
    };
    return dpo(log_prob(q.chosen, better), log_prob(q.rejected, worse));
  };
  auto by_the_book = [=](const Policies& q) {
    auto log_prob = [&](const NamedArray& x, const NamedArray& ids) {
      return sum(log_softmax(dot(x, q.w, Embed), Vocab) * one_hot(ids, Vocab, DType::f64), Vocab);
    };
    return dpo(log_prob(q.chosen, better), log_prob(q.rejected, worse));
  };
  same(chunked, by_the_book, p);
  // Both in one walk, and once more when all losses are known.
  CHECK(costs_of(with_gradient(chunked), p) == Cost{8, 2});
}

TEST_CASE("linear cross entropy: distillation, with a final norm, in one walk") {
  const Axis Wide{"wide", 10};
  struct Student {
    NamedArray x, gain, w;
  };
  const Student s{normal(1, {Tokens, Embed}), normal(2, Embed), normal(3, {Vocab, Embed})};
  const auto teacher_x = normal(4, {Tokens, Wide}), teacher_w = normal(5, {Vocab, Wide});
  auto norm = [](const NamedArray& x, const NamedArray& gain) {
    return x * rsqrt(mean(square(x), Embed) + 1e-5) * gain;
  };
  auto chunked = [=](const Student& q) {
    auto r = nn::linear_cross_entropy(q.x, q.w, ids(), Embed, Vocab,
                                      {.chunks = {.chunk = 4},
                                       .norm = [=](const NamedArray& x) { return norm(x, q.gain); },
                                       .temperature = 2,
                                       .teacher = nn::LinearHead{teacher_x, teacher_w, Wide}});
    return r.loss + 4. * mean(r.kl);
  };
  auto by_the_book = [=](const Student& q) {
    auto log_p = log_softmax(dot(norm(q.x, q.gain), q.w, Embed) / 2., Vocab),
         log_t = log_softmax(dot(teacher_x, teacher_w, Wide) / 2., Vocab);
    return 4. * mean(sum(exp(log_t) * (log_t - log_p), Vocab)) -
           mean(sum(log_p * one_hot(ids(), Vocab, DType::f64), Vocab));
  };
  same(chunked, by_the_book, s);
  // three of the student, one of the teacher
  CHECK(costs_of(with_gradient(chunked), s) == Cost{4, 1});
}

TEST_CASE("chunked: a contrastive loss over a batch by batch similarity") {
  const Axis Images{"images", 12}, Texts{"texts", 12};
  struct Towers {
    NamedArray images, texts, log_scale;
  };
  const Towers t{normal(1, {Images, Embed}), normal(2, {Texts, Embed}),
                 NamedArray(0.3).astype(DType::f64).eval()};
  auto clip_loss = [=](const Towers& a) {
    auto unit = [](const NamedArray& v) { return v * rsqrt(sum(square(v), Embed)); };
    // (images, texts)
    auto similarity = dot(unit(a.images), unit(a.texts), Embed) * exp(a.log_scale);
    auto paired = broadcast_axis(arange(Images), Texts) == arange(Texts);
    return mean(logsumexp(similarity, Texts)) + mean(logsumexp(similarity, Images)) -
           2. * sum(where(paired, similarity, 0.)) / 12.;
  };
  for (AxisSelector walked : {AxisSelector(Images), AxisSelector(Texts)})
    for (std::int64_t chunk : {1, 5, 12})
      same([=](const Towers& a) { return chunked_reduce(walked, {.chunk = chunk}, clip_loss)(a); },
           clip_loss, t);
}

TEST_CASE(
    "linear cross entropy: every way of the example gives the same loss and gradients, in the "
    "memory that it should") {
  const chunked_loss::Sizes sizes{
      .tokens = 96, .embed = 8, .vocab = 512, .chunk = 16, .memory = 1 << 15};
  const auto p = chunked_loss::make_parameters(sizes);
  const auto targets = chunked_loss::make_ids(sizes);
  std::vector<NamedArray> want;
  auto ways = chunked_loss::methods(sizes);
  for (auto& more : chunked_loss::sweep(sizes)) ways.push_back(more);
  for (auto& way : ways) {
    CAPTURE(way.name);
    auto step = jit([loss = way.loss](const chunked_loss::Parameters& q, const NamedArray& i) {
      return value_and_grad(loss)(q, i);
    });
    auto got = flatten(step(p, targets));
    if (want.empty()) want = got;
    for (std::size_t k = 0; k < got.size(); ++k) CHECK(difference(got[k], want[k], 1e-6) == "");
    const auto logits = sizes.tokens * sizes.vocab * 4;
    if (way.name.starts_with("chunked")) CHECK(step.report().arena_bytes < logits / 2);
    if (way.name == "as is") CHECK(step.report().arena_bytes >= logits);
  }
}

TEST_CASE("linear cross entropy: steps of training with a mask, before anybody reads a value") {
  const Axis Many{"tokens", 300};
  auto x = normal(1, {Many, Embed}).eval(), w = normal(2, {Vocab, Embed}).eval();
  auto targets = random::randint(random::key(3), Many, 0, 16).eval(),
       mask = (arange(Many) % 3 == 0).eval();
  auto steps = [&](auto loss) {
    return [=](const NamedArray& start) {
      auto p = start;
      for (int k = 0; k < 3; ++k) p = p - 0.1 * grad(loss)(p);
      return loss(p);
    };
  };
  auto chunked = [&](nn::LinearCrossEntropyOptions o) {
    o.mask = mask;
    return steps([=](const NamedArray& p) {
      return nn::linear_cross_entropy(x, p, targets, Embed, Vocab, o).loss;
    });
  };
  auto full = steps([=](const NamedArray& p) {
    auto t = nn::cross_entropy_loss(dot(x, p, Embed), Vocab, targets,
                                    {.reduction = nn::Reduction::none});
    return sum(where(mask, t, 0.)) / 100.;
  });
  auto want = full(w);
  for (std::int64_t chunk : {0, 7, 300}) {
    nn::LinearCrossEntropyOptions o;
    if (chunk) o.chunks.chunk = chunk;
    CHECK(difference(chunked(o)(w), want, 1e-6) == "");
    CHECK(difference(jit(chunked(o))(w), want, 1e-6) == "");
  }
}

TEST_CASE("linear cross entropy: a mask changes neither what a norm sees nor what is refused") {
  auto p = parameters();
  auto residual = normal(7, {Tokens, Embed}).eval(), mask = (arange(Tokens) % 2 == 0).eval();
  auto norm = [=](const NamedArray& a) -> NamedArray { return a + residual; };
  auto masked = losses(p, {.mask = mask, .norm = norm}).loss;
  CHECK(difference(masked,
                   losses(p, {.mask = mask, .norm = norm, .outputs = {.logsumexp = true}}).loss,
                   1e-12) == "");
  auto moved = p;
  moved.x = p.x + residual;
  CHECK(difference(masked, losses(moved, {.mask = mask}).loss, 1e-12) == "");
  for (nn::LinearCrossEntropyOptions o :
       {nn::LinearCrossEntropyOptions{.walked = {"tokens", "tokens"}},
        nn::LinearCrossEntropyOptions{.walked = Axis{"tokens", 13}},
        nn::LinearCrossEntropyOptions{.chunks = {.chunks = {3, 4}}}}) {
    auto without = message([&] { losses(p, o); });
    o.mask = mask;
    CHECK(message([&] { losses(p, o); }) == without);
    CHECK(without != "");
  }
  const Axis None{"tokens", 0};
  auto empty = nn::linear_cross_entropy(zeros({None, Embed}), zeros({Vocab, Embed}),
                                        zeros({None}, DType::i32), Embed, Vocab,
                                        {.mask = zeros({None}, DType::boolean)});
  CHECK(empty.loss.item() == 0);
}
