// Tests of linear_cross_entropy: counts of contractions and loops, masked tokens, and regressions
// (mistakes that are common in implementations of this loss).
#include <doctest/doctest.h>

#include "nn/linear_cross_entropy_model.h"

using namespace haliax;
using namespace haliax::lce_model;

TEST_CASE("linear cross entropy: counts of contractions with the head") {
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)}) {
    auto o = per_token(4);
    o.walked = axes;
    CHECK(costs_of([=](const Parameters& p) { return losses(p, o).loss; }, parameters()) ==
          Cost{1, 1});
  }
  auto both = [](auto f) { return costs_of(with_gradient(f), parameters()); };
  auto of_losses = [&](auto f) {
    return both([=](const Parameters& p) { return f(losses(p, per_token(4)).loss); });
  };
  // Cotangents that do not depend on a final result: one loop computes the loss and the gradients.
  CHECK(both([](const Parameters& p) { return losses(p, {.chunks = {.chunk = 4}}).loss; }) ==
        Cost{3, 1});
  CHECK(of_losses([](const NamedArray& l) { return mean(l); }) == Cost{3, 1});
  CHECK(of_losses([](const NamedArray& l) { return 0.5 * sum(l * (arange(Tokens) < 5)); }) ==
        Cost{3, 1});
  // The cotangent depends on the token's own loss.
  CHECK(of_losses([](const NamedArray& l) { return mean(l * stop_gradient(exp(-l))); }) ==
        Cost{3, 1});
  CHECK(of_losses([](const NamedArray& l) { return sum(tanh(l)); }) == Cost{3, 1});
  // Cotangents that depend on all losses.
  CHECK(of_losses([](const NamedArray& l) { return square(mean(l)); }) == Cost{4, 2});
  CHECK(of_losses([](const NamedArray& l) { return logsumexp(l); }) == Cost{4, 2});
  // Only the gradient of the head, or only the gradient of `x`.
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
  // Recomputes the logits of each chunk: on request, and always if the vocabulary is chunked, since
  // the softmax of a token is complete only after the last chunk.
  CHECK(both([](const Parameters& p) {
          return mean(losses(p, per_token(4, ChunkForm::recompute)).loss);
        }) == Cost{4, 2});
  CHECK(both([](const Parameters& p) {
          return losses(p, {.walked = Vocab, .chunks = {.chunk = 4}}).loss;
        }) == Cost{4, 2});
}

TEST_CASE(
    "linear cross entropy: one loop over the vocabulary computes every output except the entropy") {
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
  // The entropy is the sum of p * (logsumexp - l), which keeps its precision for large logits. It
  // needs the logsumexp first, hence two loops.
  CHECK(walk({.entropy = true}) == Cost{2 * once.first, 2 * once.second});
}

TEST_CASE("linear cross entropy: two heads with the same tokens share one loop") {
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

  // A metric is a sum and a weight, so the perplexity does not depend on the chunk size or on the
  // number of chunks.
  auto log_p = log_softmax(dot(h.x, h.text, Embed), Vocab);
  auto nll = -sum(log_p * one_hot(ids(), Vocab, DType::f64), Vocab);
  auto perplexity = exp(mean(nll, {}, {.where = is_text})).item();
  for (std::int64_t chunk : {1, 5, 12})
    CHECK(exp(both(h, chunk).first.nll.mean()).item() ==
          doctest::Approx(perplexity).epsilon(1e-13));
  CHECK(out.second.second.weight.item() == 4);
}

TEST_CASE(
    "linear cross entropy: with two masked heads in one loop, "
    "each head reads only its own tokens") {
  const Axis Audio{"audio", 40};
  struct Heads {
    NamedArray for_text, for_audio, text, audio;  // hidden states (tokens, embed), heads
  };
  // Eight tokens belong to the text head and four, in between, to the audio head. The hidden states
  // of the other tokens are NaN, which would propagate even if multiplied by 0.
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
      auto expected = jit(with_gradient([=](const Heads& h) {
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
      if (form == ChunkForm::recompute) continue;  // its first loop computes all logsumexps
      CHECK(difference(value, expected.first, 1e-12) == "");
      for (auto part : {&Heads::for_text, &Heads::for_audio, &Heads::text, &Heads::audio})
        CHECK(difference(g.*part, expected.second.*part, 1e-12) == "");
    }
}

// ---- regressions: common mistakes of implementations ----

TEST_CASE("regression: a last block that starts past half of the vocabulary") {
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
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)})
    same(
        [=](const Parameters& p) {
          return losses(p, {.walked = axes, .chunks = {.chunk = 5}, .soft_cap = 1}).loss;
        },
        [](const Parameters& p) {
          return nn::cross_entropy_loss(tanh(dot(p.x, p.w, Embed)), Vocab, ids());
        },
        parameters());
}

TEST_CASE("regression: each token's loss can have its own cotangent") {
  const auto c = normal(9, Tokens);
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)})
    same(
        [=](const Parameters& p) {
          auto o = per_token(5);
          o.walked = axes;
          return sum(c * losses(p, o).loss);
        },
        [=](const Parameters& p) {
          return sum(c * nn::cross_entropy_loss(dot(p.x, p.w, Embed), Vocab, ids(),
                                                {.reduction = nn::Reduction::none}));
        },
        parameters());
}

TEST_CASE(
    "regression: the cotangent of the z-loss, as an option and through the logsumexp output") {
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)}) {
    auto by_the_book = [](const Parameters& p) {
      auto logits = dot(p.x, p.w, Embed);
      return nn::cross_entropy_loss(logits, Vocab, ids()) +
             0.3 * mean(square(logsumexp(logits, Vocab)));
    };
    same(
        [=](const Parameters& p) {
          return losses(p, {.walked = axes, .chunks = {.chunk = 5}, .z_loss = 0.3}).loss;
        },
        by_the_book, parameters());
    same(
        [=](const Parameters& p) {
          auto r =
              losses(p, {.walked = axes, .chunks = {.chunk = 5}, .outputs = {.logsumexp = true}});
          return r.loss + 0.3 * mean(square(r.logsumexp));
        },
        by_the_book, parameters());
  }
}

TEST_CASE("regression: the bias is added once, for any number of vocabulary blocks") {
  struct Biased {
    NamedArray x, w, b;
  };
  const Biased at{normal(1, {Tokens, Embed}), normal(2, {Vocab, Embed}), normal(3, Vocab)};
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)})
    for (std::int64_t chunk : {1, 3, 10})
      same(
          [=](const Biased& p) {
            return nn::linear_cross_entropy(
                       p.x, p.w, ids(), Embed, Vocab,
                       {.walked = axes, .chunks = {.chunk = chunk}, .bias = p.b})
                .loss;
          },
          [](const Biased& p) {
            return nn::cross_entropy_loss(dot(p.x, p.w, Embed) + p.b, Vocab, ids());
          },
          at);
}

TEST_CASE("regression: the perplexity does not depend on the chunk size") {
  const auto p = parameters();
  const auto log_p = log_softmax(dot(p.x, p.w, Embed), Vocab);
  const double expected =
      std::exp(-sum(log_p * one_hot(ids(), Vocab, DType::f64)).item() / double(Tokens.size));
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)})
    for (std::int64_t chunk : {1, 5, 12}) {
      nn::LinearCrossEntropyOptions o{
          .walked = axes, .chunks = {.chunk = chunk}, .outputs = {.nll = true}};
      CHECK(exp(losses(p, o).nll.mean()).item() == doctest::Approx(expected).epsilon(1e-13));
      // The exp applies to the mean over all tokens inside of `f` too, and the losses of parts of a
      // batch can be summed.
      auto inside = [](const NamedArray& l) { return exp(mean(logsumexp(l, Vocab))); };
      const auto logits = dot(p.x, p.w, Embed);
      CHECK(difference(chunked_reduce("tokens", {.chunk = chunk}, inside)(logits), inside(logits),
                       1e-13) == "");
      o.mask = (arange(Tokens) < 3).eval();
      auto some = losses(p, o).nll;
      o.mask = (arange(Tokens) >= 3).eval();
      CHECK(exp((some + losses(p, o).nll).mean()).item() ==
            doctest::Approx(expected).epsilon(1e-13));
    }
}

TEST_CASE("regression: the loss of bf16 arrays accumulates in f32") {
  const Axis Many{"tokens", 600};
  const auto x = normal(1, {Many, Embed}, DType::bf16), w = normal(2, {Vocab, Embed}, DType::bf16);
  const auto targets = random::randint(random::key(3), Many, 0, int(Vocab.size)).eval();
  const auto logits = dot(x.astype(DType::f64), w.astype(DType::f64), Embed);
  const double expected = nn::cross_entropy_loss(logits, Vocab, targets).item();
  for (std::int64_t chunk : {1, 2, 64, 600}) {
    auto loss = jit([=](const NamedArray& a, const NamedArray& b) {
      return nn::linear_cross_entropy(a, b, targets, Embed, Vocab, {.chunks = {.chunk = chunk}})
          .loss;
    })(x, w);
    CHECK(loss.dtype() == DType::f32);
    CHECK(loss.item() == doctest::Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE(
    "regression: the loss is finite if all tokens are masked, "
    "and a masked token has a zero gradient") {
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

TEST_CASE("linear cross entropy: a chunk without unmasked tokens is skipped") {
  const Axis Audio{"audio", 40}, Some{"tokens", 8};
  struct Heads {
    NamedArray x, text, audio;
  };
  // The hidden states of the last chunk are NaN, which would propagate even if multiplied by 0.
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
  const auto expected = jit(with_gradient(by_the_book))(good);
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
      // Masks tokens by `mask`, or by `ignore_index`. With two heads in one loop, a chunk is
      // skipped if both heads mask all of its tokens.
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
      CHECK(run.report().program.find("\n  if %") != std::string::npos);
      CHECK(difference(value, expected.first, 1e-12) == "");
      CHECK(difference(slice(g.x, Tokens, 0, 8), expected.second.x, 1e-12) == "");
      CHECK(max(abs(slice(g.x, Tokens, 8, 4))).item() == 0);
      CHECK(difference(g.text, expected.second.text, 1e-12) == "");
      CHECK(difference(g.audio, expected.second.audio, 1e-12) == "");
    }
  // An output that covers every token is computed for every token.
  auto every = jit([=](const NamedArray& a) {
    auto r = nn::linear_cross_entropy(
        a, at.text, ids(), Embed, Vocab,
        {.chunks = {.chunk = 4}, .mask = is_text, .outputs = {.logsumexp = true}});
    return std::pair{r.loss, r.logsumexp};
  });
  CHECK(difference(every(x).second, logsumexp(dot(x, at.text, Embed), Vocab), 1e-12) == "");
}

TEST_CASE("linear cross entropy: masked tokens at any position are skipped") {
  const Axis Batch{"batch", 2}, Pos{"position", 6};
  // The hidden state of a masked token is NaN, which would propagate even if multiplied by 0.
  const auto live = (mod(arange(Tokens), Arr(3)) != 0).eval();
  const auto order = argsort(~live, Tokens);
  const auto first = rename(slice(order, Tokens, 0, 8), "tokens", "live").eval();
  const Parameters good = parameters(), bad{where(live, good.x, NAN).eval(), good.w};
  auto by_the_book = [=](const Parameters& p) {
    return nn::cross_entropy_loss(dot(take(p.x, Tokens, first), p.w, Embed), Vocab,
                                  take(ids(), Tokens, first));
  };
  const auto expected = jit(with_gradient(by_the_book))(good);
  auto check = [&](auto loss, const Parameters& p, int loops) {
    auto run = jit(with_gradient(loss));
    auto [value, g] = run(p);
    CHECK(run.report().loops == loops);
    CHECK(difference(value, expected.first, 1e-12) == "");
    CHECK(difference(flatten_axes(g.x, without_axes(g.x.axes(), Embed), Tokens), expected.second.x,
                     1e-12) == "");
    CHECK(difference(g.w, expected.second.w, 1e-12) == "");
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
      // Tokens over two axes, with and without tiles of the vocabulary, and with metrics.
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
    auto masked = losses(good, {.mask = live, .outputs = {.losses = true}});
    if (by_mask) CHECK(difference(r.nll.sum, sum(masked.losses), 1e-12) == "");
    CHECK(r.accuracy.weight.item() == 8);
    // The losses of the tokens are in the original order, bitwise identical.
    o.outputs.losses = true;
    auto given = jit([=](const Parameters& p) {
      return nn::linear_cross_entropy(p.x, p.w, labels, Embed, Vocab, o).losses;
    })(good);
    auto o2 = o;
    o2.reduction = nn::Reduction::none;  // iterates over the tokens in their order
    auto unreduced = jit([=](const Parameters& p) {
      return nn::linear_cross_entropy(p.x, p.w, labels, Embed, Vocab, o2).losses;
    })(good);
    CHECK(all(given == unreduced).item() == 1);
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

TEST_CASE("linear cross entropy: masked tokens are skipped with chunks of two sizes too") {
  const Axis Many{"tokens", 600};  // chunks of 300 and of 128
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
  // Shares of unmasked tokens: none, all, one small chunk, one large chunk and some small ones.
  for (double share : {-1., 2., 0.1, 0.6}) {
    CAPTURE(share);
    const auto live = (random::uniform(random::key(4), Many) < share).eval();
    auto expected =
        jit(value_and_grad([=](const Parameters& q) { return by_the_book(q, live); }))(p);
    auto [value, g] = step(p, live);
    CHECK(difference(value, expected.first, 1e-12) == "");
    CHECK(difference(g.x, expected.second.x, 1e-12) == "");
    CHECK(difference(g.w, expected.second.w, 1e-12) == "");
  }
  CHECK(step.report().loops == 3);  // the last small chunk is smaller
  CHECK(step.report().traces == 1);
  // If the vocabulary is a chunked axis too, an ignored index does not add loops.
  auto tiled = jit([=](const Parameters& q) {
    return nn::linear_cross_entropy(q.x, q.w, labels, Embed, Vocab,
                                    {.walked = {Vocab, Many}, .ignore_index = 3})
        .loss;
  });
  tiled(p);
  CHECK(tiled.report().loops == 0);
}
