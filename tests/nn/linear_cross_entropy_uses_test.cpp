// Tests of linear_cross_entropy: invalid input, next-token losses, sampling, and other losses
// computed with it.
#include <doctest/doctest.h>

#include "nn/linear_cross_entropy_model.h"

using namespace haliax;
using namespace haliax::lce_model;

TEST_CASE("linear cross entropy: a token with a logit of -inf has probability 0") {
  const auto p = parameters();
  const auto never = where(arange(Vocab) < 3, -INFINITY, zeros(Vocab, DType::f64));
  const auto targets = (ids() % 13 + 3).eval();
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)}) {
    auto f = [=](const Parameters& q) {
      auto r = nn::linear_cross_entropy(
          q.x, q.w, targets, Embed, Vocab,
          {.walked = axes, .chunks = {.chunk = 5}, .bias = never, .outputs = {.entropy = true}});
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

// ---- invalid input ----

TEST_CASE("linear cross entropy: invalid input raises with the name of the argument") {
  const auto p = parameters(DType::f32);
  auto refused = [&](const NamedArray& targets, nn::LinearCrossEntropyOptions o, const char* why) {
    CAPTURE(why);
    auto text = message([&] { nn::linear_cross_entropy(p.x, p.w, targets, Embed, Vocab, o); });
    CAPTURE(text);
    CHECK(text.find(why) != std::string::npos);
    CHECK(text.find("linear_cross_entropy_uses_test.cpp") != std::string::npos);
  };
  refused(normal(3, Tokens, DType::f32), {},
          "are probabilities, but (tokens=12) has no axis vocab; ids must be integers");
  refused(one_hot(ids(), Vocab, DType::i32), {}, "are ids, which have no axis vocab");
  refused(ids() > 3, {}, "got bool");
  refused(zeros(Axis("token", 12), DType::i32), {}, "did you mean tokens?");
  refused(zeros(Axis("tokens", 7), DType::i32), {},
          "axis tokens has size 7 in the targets (tokens=7) and 12 in the logits");
  refused(ids(), {.walked = "words"}, "the tiled axis words");
  refused(ids(), {.walked = "embed"}, "the tiled axis embed");
  refused(ids(), {.chunks = {.chunk = -4}}, "a chunk has -4 positions; it must be positive");
  refused(ids(), {.chunks = {.chunk = 0}}, "a chunk has 0 positions; it must be positive");
  refused(ids(), {.chunks = {.memory = -1}}, "memory is -1 bytes; it must be positive");
  refused(ids(), {.vocab_chunk = -4}, "must be positive");
  refused(ids(), {.chunks = {.memory = 8}},
          "one position of tokens=12 needs 256 bytes, more than the 8 allowed");
  refused(ids(), {.chunks = {.memory = 8}, .ignore_index = 3}, "one position of tokens=12 needs ");
  refused(ids(), {.chunks = {.memory = -1}, .ignore_index = 3},
          "memory is -1 bytes; it must be positive");
  refused(ids(), {.chunks = {.chunk = 0}, .ignore_index = 3},
          "a chunk has 0 positions; it must be positive");
  refused(ids(), {.mask = ones(Tokens)}, "mask: expected bool, got f32");
  refused(ids(), {.mask = arange(Axis("batch", 2)) > 0}, "axis batch of the mask");
  refused(ids(), {.weights = ids()}, "weights: expected floats");
  refused(ids(), {.bias = zeros(Tokens)}, "the bias has the axes (tokens=12); it needs (vocab=16)");
  refused(ids(), {.temperature = 0}, "temperature is 0");
  refused(ids(), {.soft_cap = -1}, "soft_cap is -1");
  refused(ids(), {.label_smoothing = 1.5}, "label_smoothing is 1.5; it must be");
  refused(ids(), {.outputs = {.top_k = 17}},
          "top_k is 17; it must be from 0 (none) to the size of vocab=16");
  refused(ids(), {.outputs = {.top_k = -1}}, "top_k is -1; it must be from 0 (none)");
  refused(ids(), {.walked = Vocab, .outputs = {.top_k = 16}},
          "top_k is the size of vocab=16, which is not supported if this axis is tiled");
  refused(ids(), {.vocab_chunk = 4, .outputs = {.top_k = 16}},
          "top_k is the size of vocab=16, which is not supported if this axis is tiled");
  refused(ids(), {.z_loss = NAN}, "z_loss is nan; it must be a finite number");
  for (const ChunkOptions& both : {ChunkOptions{.chunk = 4, .memory = 1 << 20},
                                   {.chunk = 4, .chunks = {4}},
                                   {.chunks = {4}, .memory = 1 << 20}})
    refused(ids(), {.chunks = both},
            "`chunk`, `chunks` and `memory` each specify the chunk size; use only one of them");
  refused(ids().astype(DType::u8), {.ignore_index = -100},
          "ignore_index is -100, which u8 cannot represent");
  refused(ids().astype(DType::i8), {.ignore_index = 128},
          "ignore_index is 128, which i8 cannot represent");
  refused(ids(), {.walked = "vocab", .vocab_chunk = 4}, "axis vocab is already in `walked`");
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
    "linear cross entropy: targets outside the vocabulary are masked, and raise with checked") {
  const auto p = parameters();
  // Ids whose dtype cannot represent the vocabulary size.
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
  CHECK(text.find("2 of 12 targets are not ids of vocab=16") != std::string::npos);
  text = message([&] { loss(wrong, {.ignore_index = -100, .checked = true}); });
  CHECK(text.find("1 of 12 targets") != std::string::npos);
  // While tracing, ids have no values: the loss is NaN instead.
  auto traced = jit(
      [=](const NamedArray& t) { return loss(t, {.ignore_index = -100, .checked = true}).loss; });
  CHECK(std::isnan(traced(wrong).item()));
  CHECK(std::isfinite(traced(where(wrong == 16, 0, wrong)).item()));
  CHECK(loss(ids(), {.checked = true}).loss.item() == doctest::Approx(loss(ids(), {}).loss.item()));
}

// ---- next tokens, sampling and its memory ----

TEST_CASE(
    "linear next token loss matches next_token_loss on full logits, with a mask and under vmap") {
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

TEST_CASE("linear cross entropy: sampled ids do not depend on the chunk, the tile or the shard") {
  const auto p = parameters();
  const auto key = random::key(7);
  // The noise is a function of the token and the id, for any chunk and shard.
  const auto logits = dot(p.x, p.w, Embed) / 0.5;
  const auto expected =
      argmax(logits + random::gumbel(key, {Tokens, Vocab}, DType::f64), Vocab).integers();
  CHECK(random::categorical(key, logits, Vocab).integers() == expected);
  auto drawn = [=](const Parameters& q, nn::LinearCrossEntropyOptions o) {
    o.temperature = 0.5;
    o.outputs = {.sample = key};
    return losses(q, o).sample;
  };
  std::vector<nn::LinearCrossEntropyOptions> all_options{
      {.chunks = {.chunk = 5}, .vocab_chunk = 3},
      {.chunks = {.chunk = 7}, .vocab_chunk = 9},
      {.chunks = {.memory = 1024, .form = ChunkForm::tile}}};
  for (AxisSelection axes : {AxisSelection(Tokens), AxisSelection(Vocab)})
    for (std::int64_t chunk : {1, 5, 16})
      for (bool reverse : {false, true})
        all_options.push_back({.walked = axes, .chunks = {.chunk = chunk, .reverse = reverse}});
  for (auto& options : all_options) {
    CAPTURE(std::size_t(&options - all_options.data()));
    CHECK(drawn(p, options).integers() == expected);
    auto once = [=](const Parameters& q) { return drawn(q, options); };
    CHECK(jit(once)(p).integers() == expected);
    for (const char* axis : {"tokens", "vocab", "embed"}) {
      CAPTURE(std::string(axis));
      CHECK(named_jit(once,
                      {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{axis, "data"}}})(p)
                .integers() == expected);
    }
  }
  // Each example of a batch has its own key.
  const Axis Batch{"batch", 3};
  const auto keys = random::split(key, Batch);
  const auto batched = normal(9, {Batch, Tokens, Embed});
  auto one = [=](const NamedArray& x, const Key& k) {
    return nn::linear_cross_entropy(x, p.w, ids(), Embed, Vocab,
                                    {.chunks = {.chunk = 5}, .outputs = {.sample = k}})
        .sample;
  };
  auto unchunked = [=](const NamedArray& x, const Key& k) {
    return random::categorical(k, dot(x, p.w, Embed), Vocab);
  };
  CHECK(vmap(one, Batch)(batched, keys).integers() ==
        vmap(unchunked, Batch)(batched, keys).integers());
  // Neither logits nor noise of size tokens x vocab are materialized, also with chunked_reduce
  // itself.
  const Axis Many{"tokens", 256}, Large{"vocab", 4096};
  const auto x = normal(1, {Many, Embed}, DType::f32), w = normal(2, {Large, Embed}, DType::f32);
  auto sample = [=](const NamedArray& a, const NamedArray& u) {
    return argmax(dot(a, u, Embed) + random::gumbel(key, {Many, Large}), Large);
  };
  for (AxisSelection axes :
       {AxisSelection(Many), AxisSelection(Large), AxisSelection{"tokens", "vocab"}}) {
    auto run = jit([=](const NamedArray& a, const NamedArray& u) {
      return chunked_reduce(axes, {.memory = 1 << 18}, sample)(a, u);
    });
    CHECK(run(x, w).integers() == sample(x, w).integers());
    CHECK(run.report().arena_bytes <= 1 << 18);
  }
}

// ---- other losses ----

TEST_CASE("chunked: a DPO loss over full sequences matches the unchunked one, in two loops") {
  const Axis Pair{"pair", 3}, Pos{"position", 8};
  struct Policies {
    NamedArray chosen, rejected, w;  // hidden states (pair, position, embed), the head
  };
  const Policies p{normal(1, {Pair, Pos, Embed}), normal(2, {Pair, Pos, Embed}),
                   normal(3, {Vocab, Embed})};
  const auto better = random::randint(random::key(4), {Pair, Pos}, 0, 16).eval(),
             worse = random::randint(random::key(5), {Pair, Pos}, 0, 16).eval();
  // The difference of the log-probabilities of a frozen model.
  const auto reference = normal(6, Pair);
  // The log-probabilities have the axes (pair, position).
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
  // One loop for both sequences, and a second one once all losses are complete.
  CHECK(costs_of(with_gradient(chunked), p) == Cost{8, 2});
}

TEST_CASE("linear cross entropy: distillation with a final norm uses one loop") {
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
  // Three contractions of the student, one of the teacher.
  CHECK(costs_of(with_gradient(chunked), s) == Cost{4, 1});
}

TEST_CASE("chunked: a contrastive loss with chunked similarities matches the unchunked one") {
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
  for (AxisSelector axis : {AxisSelector(Images), AxisSelector(Texts)})
    for (std::int64_t chunk : {1, 5, 12})
      same([=](const Towers& a) { return chunked_reduce(axis, {.chunk = chunk}, clip_loss)(a); },
           clip_loss, t);
}

TEST_CASE(
    "linear cross entropy: every method of the chunked_loss example has the same loss and "
    "gradients, within its memory") {
  const chunked_loss::Sizes sizes{
      .tokens = 96, .embed = 8, .vocab = 512, .chunk = 16, .memory = 1 << 15};
  const auto p = chunked_loss::make_parameters(sizes);
  const auto targets = chunked_loss::make_ids(sizes);
  std::vector<NamedArray> expected;
  auto ways = chunked_loss::methods(sizes);
  for (auto& more : chunked_loss::sweep(sizes)) ways.push_back(more);
  for (auto& way : ways) {
    CAPTURE(way.name);
    auto step = jit([loss = way.loss](const chunked_loss::Parameters& q, const NamedArray& i) {
      return value_and_grad(loss)(q, i);
    });
    auto got = flatten(step(p, targets));
    if (expected.empty()) expected = got;
    for (std::size_t k = 0; k < got.size(); ++k) CHECK(difference(got[k], expected[k], 1e-6) == "");
    const auto logits = sizes.tokens * sizes.vocab * 4;
    if (way.name.starts_with("chunked")) CHECK(step.report().arena_bytes < logits / 2);
    if (way.name == "as is") CHECK(step.report().arena_bytes >= logits);
  }
}

TEST_CASE("linear cross entropy: lazy training steps with a mask match full logits") {
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
  auto expected = full(w);
  for (std::int64_t chunk : {0, 7, 300}) {
    nn::LinearCrossEntropyOptions o;
    if (chunk) o.chunks.chunk = chunk;
    CHECK(difference(chunked(o)(w), expected, 1e-6) == "");
    CHECK(difference(jit(chunked(o))(w), expected, 1e-6) == "");
  }
}

TEST_CASE(
    "linear cross entropy: a mask changes neither "
    "the input of the norm nor the validation of options") {
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
