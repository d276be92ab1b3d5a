// The exact memory of a chunked loss, the selected form and its reason, where gradients accumulate,
// and deterministic results.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "ops/prim.h"
#include "support/head_model.h"
#include "support/near.h"
#include "compile/pipeline.h"

using namespace haliax;

namespace {

const Axis Tokens{"tokens", 256}, Embed{"embed", 32}, Vocab{"vocab", 512};

using Parameters = test::HeadParameters;
const test::HeadModel model{Tokens, Embed, Vocab};
NamedArray normal(int seed, const AxisSpec& axes, DType d = DType::f32) {
  return test::normal(seed, axes, d);
}
Parameters parameters(DType d = DType::f32) { return model.parameters(d); }
const NamedArray& ids() {
  static const NamedArray a = model.ids();
  return a;
}
nn::LinearCrossEntropy losses(const Parameters& p, const nn::LinearCrossEntropyOptions& o) {
  return nn::linear_cross_entropy(p.x, p.w, ids(), Embed, Vocab, o);
}

constexpr std::int64_t line = 64;
// Returns the arena of a program in bytes, without the scratch of a backend's matmuls.
template <class F> std::int64_t planned(F f, const Parameters& p) {
  Nodes roots;
  for (auto& r : flatten(f(p)))
    if (!r.empty()) roots.push_back(r.node());
  Compilation c{roots, {}};
  run(c);
  return c.program->arena_bytes;
}
// Returns the arena and the results in bytes, without results that reuse the memory of the donated
// `given`.
std::int64_t peak_of(const NamedArray& result, const NamedArray& given = {}) {
  Nodes inputs;
  if (!given.empty()) inputs.push_back(given.node());
  Compilation c{{result.node()}, inputs, {.donated = std::vector<bool>(inputs.size(), true)}};
  run(c);
  return c.program->peak_bytes;
}
template <class F> auto with_gradients(F loss) {
  return [=](const Parameters& p) { return value_and_grad(loss)(p); };
}
template <class F> auto by_head(F loss) {
  return [=](const Parameters& p) {
    return value_and_grad([=](const NamedArray& w) { return loss(Parameters{p.x, w}); })(p.w);
  };
}
template <class F> auto by_x(F loss) {
  return [=](const Parameters& p) {
    return value_and_grad([=](const NamedArray& x) { return loss(Parameters{x, p.w}); })(p.x);
  };
}
template <class F> JitReport report_of(F f, const Parameters& p = parameters()) {
  return jit(f).compile(p);
}

}  // namespace

TEST_CASE(
    "chunked plan: every form holds the expected bytes, and contracts with the head the expected "
    "number of times") {
  struct Form {
    const char* name;
    nn::LinearCrossEntropyOptions options;
    std::int64_t positions, ids;   // size of the largest value
    std::int64_t loss, gradients;  // bytes in addition to it
    int both, by_x, by_head;       // contractions
  };
  // a scalar for each token, and for each token of a chunk
  const std::int64_t tokens = Tokens.size * 4, row = 64 * 4;
  const Form forms[] = {
      {"sweep",
       {.chunks = {.chunk = 64}},
       64,
       Vocab.size,
       3 * row + line,
       3 * row + 3 * line,
       3,
       2,
       2},
      {"recompute",
       {.chunks = {.chunk = 64, .form = ChunkForm::recompute}},
       64,
       Vocab.size,
       3 * row + line,
       2 * tokens + row + line,
       4,
       3,
       3},
      {"by the vocabulary",
       {.walked = Vocab, .chunks = {.chunk = 64}},
       Tokens.size,
       64,
       3 * tokens,
       3 * tokens,
       4,
       3,
       3},
      {"tiles",
       {.chunks = {.chunk = 64}, .vocab_chunk = 128},
       64,
       128,
       3 * row + line,
       3 * row + 3 * line,
       4,
       3,
       3},
  };
  for (auto& f : forms) {
    CAPTURE(f.name);
    auto loss = [=](const Parameters& q) { return losses(q, f.options).loss; };
    const std::int64_t largest = f.positions * f.ids * 4;
    CHECK(planned(loss, parameters()) == largest + f.loss);
    CHECK(planned(with_gradients(loss), parameters()) == largest + f.gradients);
    CHECK(report_of(loss).contractions == 1);
    CHECK(report_of(with_gradients(loss)).contractions == f.both);
    CHECK(report_of(by_x(loss)).contractions == f.by_x);
    CHECK(report_of(by_head(loss)).contractions == f.by_head);
  }
  auto late = [](const Parameters& q) {
    return square(
        mean(losses(q, {.chunks = {.chunk = 64}, .reduction = nn::Reduction::none}).loss));
  };
  CHECK(planned(with_gradients(late), parameters()) == 64 * Vocab.size * 4 + 3 * tokens + line);
  CHECK(report_of(with_gradients(late)).contractions == 4);
}

TEST_CASE("chunked plan: explain names the form and its reason") {
  auto explained = [](auto f, nn::LinearCrossEntropyOptions o, bool gradients = true) {
    auto loss = [=](const Parameters& q) { return f(losses(q, o).loss); };
    auto text = gradients ? report_of(with_gradients(loss)).explain : report_of(loss).explain;
    return text.substr(0, text.find("on one device"));  // before the tables
  };
  auto sum_of = [](const NamedArray& l) { return sum(l); };
  auto squared = [](const NamedArray& l) { return square(mean(l)); };
  const auto none = nn::Reduction::none;
  CHECK(explained(sum_of, {.chunks = {.chunk = 64}}, false) ==
        "forward over tokens: no gradients; chunks of 64 along tokens=256, as requested\n");
  CHECK(explained(sum_of, {.chunks = {.chunk = 64}, .reduction = none}) ==
        "sweep over tokens: values and gradients in one pass, since no gradient depends on its "
        "end; chunks of 64 along "
        "tokens=256, as requested\n");
  CHECK(explained(squared, {.chunks = {.chunk = 64}, .reduction = none}) ==
        "recompute over tokens: chunks are recomputed, since later values depend on the end of a "
        "pass; chunks of 64 along "
        "tokens=256, as requested\n");
  CHECK(explained(sum_of, {.chunks = {.chunk = 64, .form = ChunkForm::recompute}}) ==
        "recompute over tokens: chunks are recomputed, since later values depend on the end of a "
        "pass; chunks of 64 along "
        "tokens=256, as requested\n");
  CHECK(explained(sum_of, {.walked = Vocab, .chunks = {.chunk = 64}}) ==
        "recompute over vocab: chunks are recomputed, since later values depend on the end of a "
        "pass; chunks of 64 along "
        "vocab=512, as requested\n");
  CHECK(explained(sum_of, {.chunks = {.chunk = 64}, .vocab_chunk = 128}) ==
        "sweep over tokens: values and gradients in one pass, since no gradient depends on its "
        "end; chunks of 64 along "
        "tokens=256, as requested\n"
        "recompute over vocab: chunks are recomputed, since later values depend on the end of a "
        "pass; chunks of 128 along "
        "vocab=512, as requested\n");
  // With a budget: its use, and the cost of the other form.
  auto planned = explained(sum_of, {.chunks = {.memory = 160 << 10}});
  CAPTURE(planned);
  CHECK(planned.starts_with("sweep over tokens: "));
  // per token, also with a partial last chunk
  CHECK(planned.find(": 3 contractions, ") != std::string::npos);
  CHECK(planned.find(" would require 4 contractions ") != std::string::npos);
  CHECK(planned.find(" KiB of 160.0 KiB") != std::string::npos);
  CHECK(planned.find("% longer") != std::string::npos);
  planned = explained(sum_of, {.chunks = {.memory = 160 << 10, .form = ChunkForm::sweep}});
  CAPTURE(planned);
  CHECK(planned.find("the form was requested") != std::string::npos);
  // Without chunks.
  planned = explained(sum_of, {});
  CAPTURE(planned);
  CHECK(planned.starts_with("untiled along tokens: the full region fits: 3 contractions, "));
  CHECK(planned.find("of 32.0 MiB\n") != std::string::npos);
  CHECK(explained(sum_of, {}, false)
            .starts_with("untiled along tokens: the full region fits: 1 contraction, "));
  CHECK(explained(sum_of, {.chunks = {.chunk = 256}})
            .starts_with("untiled along tokens: one chunk holds the full axis, as requested\n"));
}

// ---- 16-bit floats ----

TEST_CASE("chunked plan: bf16 operands are multiplied as bf16, and summed in f32") {
  const auto p = parameters(DType::bf16);
  const std::int64_t chunk = 64, wide = chunk * Vocab.size * 4, narrow = chunk * Vocab.size * 2,
                     head = Vocab.size * Embed.size * 4;
  auto loss = [=](const Parameters& q) { return losses(q, {.chunks = {.chunk = chunk}}).loss; };
  // A chunk of logits, their gradient as a matmul operand, the head's gradient in f32. No copy of
  // the head or of x.
  CHECK(planned(with_gradients(loss), p) <= wide + narrow + head + 8 * chunk * 4);
  CHECK(planned(with_gradients(loss), p) >= wide + narrow + head);
  CHECK(planned(by_x(loss), p) <= wide + narrow + 8 * chunk * 4);
  CHECK(planned(loss, p) <= wide + 8 * chunk * 4);
  // Every matmul of a chunk reads bf16: the head itself, x itself, and the gradient of the logits.
  auto program = report_of(with_gradients(loss), p).program;
  CHECK(program.find("cast f32 arg") == std::string::npos);

  // Compared with f64 of the same values: one rounding of the logits' gradient and one of the
  // result, for any number of chunks.
  const Parameters exact{p.x.astype(DType::f64), p.w.astype(DType::f64)};
  auto by_the_book = [](const Parameters& q) {
    return nn::cross_entropy_loss(dot(q.x, q.w, Embed), Vocab, ids());
  };
  auto expected = flatten(jit(with_gradients(by_the_book))(exact));
  auto relative = [](const NamedArray& got, const NamedArray& right) {
    auto off = got.astype(DType::f64) - right;
    return std::sqrt(sum(square(off)).item() / sum(square(right)).item());
  };
  for (auto& [axis, most] : {std::pair{Tokens, Tokens.size}, std::pair{Vocab, Vocab.size}})
    for (std::int64_t c : {std::int64_t(1), std::int64_t(7), most}) {
      CAPTURE(axis.name.text());
      CAPTURE(c);
      auto chunked = [=, w = axis](const Parameters& q) {
        return losses(q, {.walked = w, .chunks = {.chunk = c}}).loss;
      };
      auto got = flatten(jit(with_gradients(chunked))(p));
      CHECK(relative(got[0], expected[0]) < 1e-6);
      CHECK(got[1].dtype() == DType::bf16);
      CHECK(relative(got[1], expected[1]) < 3e-3);
      CHECK(relative(got[2], expected[2]) < 3e-3);
      // A gradient that is read as f32 is never rounded to bf16.
      auto master = jit([=](const NamedArray& w) {
        return grad([=](const NamedArray& v) { return chunked({p.x, v.astype(DType::bf16)}); })(w);
      })(p.w.astype(DType::f32).eval());
      CHECK(relative(master, expected[2]) < 2e-3);
      CHECK(relative(master.astype(DType::bf16), master.astype(DType::f64)) > 1e-4);
    }
}

TEST_CASE("chunked plan: sums that are scaled with a running maximum are f32, too") {
  const Axis Keys{"keys", 1024}, Queries{"queries", 4};
  const auto q = normal(1, {Queries, Embed}, DType::bf16),
             k = normal(2, {Keys, Embed}, DType::bf16), v = normal(3, {Keys, Embed}, DType::bf16);
  // attention over the keys
  auto attend = [](const NamedArray& a, const NamedArray& b, const NamedArray& c) {
    auto scores = dot(a, b, Embed, {.preferred_element_type = DType::f32});
    auto e = exp(scores * 0.1 - max(scores * 0.1, "keys"));
    return dot(e.astype(c.dtype()), c, "keys") / sum(e, "keys").astype(c.dtype());
  };
  auto wide = [](const NamedArray& a) { return a.astype(DType::f64); };
  auto scores = dot(wide(q), wide(k), Embed) * 0.1;
  auto expected = dot(softmax(scores, "keys"), wide(v), "keys");
  for (std::int64_t chunk : {1, 16, 1024}) {
    CAPTURE(chunk);
    auto run = jit([=](const NamedArray& a, const NamedArray& b, const NamedArray& c) {
      return chunked_reduce("keys", {.chunk = chunk}, attend)(a, b, c);
    });
    auto got = run(q, k, v);
    CHECK(run.report().loops == (chunk < Keys.size ? 1 : 0));
    CHECK(got.dtype() == DType::bf16);
    CHECK(std::sqrt(sum(square(wide(got) - expected)).item() / sum(square(expected)).item()) <
          6e-3);
  }
}

// ---- gradients that exist already ----

TEST_CASE("chunked plan: the head's gradient is added to an existing one, in place") {
  const std::int64_t chunk = 64, logits = chunk * Vocab.size * 4, row = chunk * 4,
                     head = Vocab.size * Embed.size * 4, x = Tokens.size * Embed.size * 4;
  auto loss = [=](const Parameters& q) { return losses(q, {.chunks = {.chunk = chunk}}).loss; };
  auto head_gradient = [=](const NamedArray& hidden, const NamedArray& w) {
    return grad([=](const NamedArray& v) { return loss({hidden, v}); })(w);
  };
  for (DType d : {DType::f32, DType::bf16}) {
    CAPTURE(name_of(d));
    const auto p = parameters(d);
    const std::int64_t buffer =
        // bf16: also the gradient of the logits, as a matmul operand
        d == DType::f32 ? logits : logits + logits / 2;
    // A sum of gradients that is donated and returned: no memory of the head's size is planned.
    auto add = [=](const NamedArray& so_far, const Parameters& q) {
      return so_far + head_gradient(q.x, q.w).astype(DType::f32);
    };
    auto added = jit(add, {.donate = {0}});
    auto first = ones({Vocab, Embed}).eval();
    auto expected = (first + head_gradient(p.x.astype(DType::f32), p.w.astype(DType::f32))).eval();
    CHECK(peak_of(add(first, p), first) <= buffer + 8 * row);
    CHECK(max(abs(added(first, p) - expected)).item() < (d == DType::f32 ? 1e-6 : 1e-3));
    // Microbatches: the carry of the loop is the sum, and the result.
    const Axis Micro{"micro", 4};
    auto batches = normal(7, {Micro, Tokens, Embed}, d);
    auto step = [=](const NamedArray& so_far, const NamedArray& one) {
      return so_far + head_gradient(one, p.w).astype(DType::f32);
    };
    CHECK(peak_of(fold(step, Micro)(zeros({Vocab, Embed}), batches)) <= head + buffer + 8 * row);
  }
  // A tied table: the gradients of the rows that were read are added to the head's gradient, which
  // is the result.
  auto tied = [=](const NamedArray& w) { return loss({tanh(take(w, Vocab, ids())), w}); };
  CHECK(peak_of(grad(tied)(parameters().w)) <= head + logits + 2 * x + 8 * row);
}

TEST_CASE(
    "chunked plan: results are bitwise identical from run to run, for any number of threads") {
  const Axis Large{"vocab", 1000}, Wide{"embed", 64}, Many{"tokens", 96};
  const auto targets = random::randint(random::key(3), Many, 0, int(Large.size)).eval();
  using Options = nn::LinearCrossEntropyOptions;
  const Options forms[] = {{.chunks = {.chunk = 40}},
                           {.chunks = {.chunk = 40, .form = ChunkForm::recompute}},
                           {.walked = Large, .chunks = {.chunk = 300}},
                           {.chunks = {.chunk = 40}, .vocab_chunk = 300},
                           {.chunks = {.chunk = 40}, .ignore_index = 7},
                           {.chunks = {.memory = 200 << 10}},
                           {.chunks = {.memory = 100 << 10, .form = ChunkForm::tile}}};
  for (DType d : {DType::f32, DType::bf16}) {
    const Parameters p{normal(1, {Many, Wide}, d), normal(2, {Large, Wide}, d)};
    for (auto& form : forms) {
      CAPTURE(std::size_t(&form - forms));
      std::vector<std::vector<std::byte>> expected;
      for (int threads : {1, 2, 3, 5, 5}) {
        CAPTURE(threads);
        set_threads(threads);
        auto run = jit(with_gradients([=](const Parameters& q) {
          return nn::linear_cross_entropy(q.x, q.w, targets, Wide, Large, form).loss;
        }));
        for (int repeat : {0, 1}) {
          CAPTURE(repeat);
          std::vector<std::vector<std::byte>> got;
          for (auto& a : flatten(run(p))) got.push_back(a.bytes());
          if (expected.empty()) expected = got;
          CHECK(got == expected);
        }
      }
    }
  }
  set_threads(0);
}

TEST_CASE("chunked plan: the choice for a budget does not depend on the number of threads") {
  struct Sizes {
    std::int64_t tokens, embed, vocab, memory;
  };
  for (auto [tokens, embed, vocab, memory] :
       {Sizes{1024, 256, 8000, 0}, Sizes{300, 768, 5000, 1 << 20}}) {
    CAPTURE(memory);
    const Axis Large{"vocab", vocab}, Wide{"embed", embed}, Many{"tokens", tokens};
    const auto targets = random::randint(random::key(3), Many, 0, int(vocab)).eval();
    const Parameters p{normal(1, {Many, Wide}, DType::f32), normal(2, {Large, Wide}, DType::f32)};
    nn::LinearCrossEntropyOptions options{.chunks = {.memory = memory}};
    std::string form;
    std::vector<std::vector<std::byte>> expected;
    for (int threads : {1, 2, 4, 8}) {
      CAPTURE(threads);
      set_threads(threads);
      auto run = jit(with_gradients([=](const Parameters& q) {
        return nn::linear_cross_entropy(q.x, q.w, targets, Wide, Large, options).loss;
      }));
      std::vector<std::vector<std::byte>> got;
      for (auto& a : flatten(run(p))) got.push_back(a.bytes());
      auto chosen = run.report().explain.substr(0, run.report().explain.find('\n'));
      if (expected.empty()) {
        expected = got;
        form = chosen;
      }

      CHECK(chosen == form);
      CHECK(got == expected);
    }
  }
  set_threads(0);
}

TEST_CASE("chunked plan: the reported need of one position is enough, and a byte less is not") {
  const Axis Large{"vocab", 1000}, Wide{"embed", 64}, Many{"tokens", 96};
  const auto targets = random::randint(random::key(3), Many, 0, int(Large.size)).eval();
  for (DType d : {DType::f32, DType::bf16})
    for (std::optional<AxisSelector> axis :
         {std::optional<AxisSelector>(), std::optional<AxisSelector>(Large)}) {
      CAPTURE(name_of(d));
      CAPTURE(axis.has_value());
      const Parameters p{normal(1, {Many, Wide}, d), normal(2, {Large, Wide}, d)};
      auto planned = [&](std::int64_t memory) -> std::string {
        nn::LinearCrossEntropyOptions options{.chunks = {.memory = memory}};
        if (axis) options.walked = *axis;
        try {
          jit(with_gradients([=](const Parameters& q) {
            return nn::linear_cross_entropy(q.x, q.w, targets, Wide, Large, options).loss;
          }))(p);
          return "";
        } catch (const Error& e) {
          return e.what();
        }
      };
      // The loss alone may need less than the loss with gradients; the last reported need suffices
      // for both.
      std::int64_t needs = 1;
      for (int k = 0; k < 3; ++k) {
        auto message = planned(needs);
        auto at = message.find(" needs ");
        if (at == message.npos) break;
        needs = std::stoll(message.substr(at + 7));
      }
      CHECK(planned(needs) == "");
      if (needs > 1) CHECK(planned(needs - 1).find("more than the") != std::string::npos);
    }
}

// Every subset of the values that a surrounding loop leaves unchanged: the head, the inputs, the
// targets.
TEST_CASE("chunked plan: the reads of later ops count in a call's budget, their gradients do not") {
  const Axis Out{"out", 64};
  auto v = normal(7, {Vocab, Out});
  // memory that `sum` reads; the largest value of a position
  const std::int64_t read = 256 * 64 * 4, of_position = 512 * 4;
  for (std::int64_t memory : {2 * read, 3 * read}) {
    auto loss = [&](const Parameters& p) {
      auto out = chunked_reduce("tokens", {.memory = memory},
                                [&](const NamedArray& x, const NamedArray& w) {
                                  return dot(tanh(dot(x, w, Embed)), v, Vocab);  // (tokens, out)
                                })(p.x, p.w);
      return sum(out * out);
    };
    auto bytes = planned(loss, parameters());
    CHECK(bytes <= memory);
    CHECK(bytes > memory - 2 * of_position);  // chunks are as large as the budget allows
    // the cotangent of the value that was read
    CHECK(planned(with_gradients(loss), parameters()) <= memory + read);
  }
}

TEST_CASE("chunked plan: a call inside a loop holds as much as the call alone") {
  const Axis Iterations{"turns", 3}, Batch{"batch", 2}, Long{"position", 512}, Wide{"embed", 16},
      Many{"vocab", 4096};
  const auto xs = normal(1, {Iterations, Batch, Long, Wide}) * 0.3,
             w = normal(2, {Many, Wide}) * 0.3;
  const auto targets =
      random::randint(random::key(3), {Iterations, Batch, Long}, 0, Many.size).eval();
  const double logits = 2. * 512 * 4096 * 4;
  // x, ids, w; with 0 the call is outside of the loop that it was traced in
  for (int moving = 0; moving < 8; ++moving)
    for (bool ignores : {false, true})
      for (bool remade : {false, true}) {
        CAPTURE(moving);
        CAPTURE(ignores);
        nn::LinearCrossEntropyOptions options{.chunks = {.chunk = 64}};
        if (ignores) options.ignore_index = 7;
        auto body = [&](const NamedArray& w, const NamedArray& x, const NamedArray& ids,
                        const NamedArray& i) {
          auto head = moving & 4 ? w * (1 + 0.1 * i) : w;
          return nn::linear_cross_entropy(moving & 1 ? x : at(xs, Iterations, 1), head,
                                          moving & 2 ? ids : at(targets, Iterations, 2), Wide, Many,
                                          options)
              .loss;
        };
        auto looped = [&](const NamedArray& w) {
          auto add = [&](const NamedArray& sum, const NamedArray& x, const NamedArray& ids,
                         const NamedArray& i) { return sum + body(w, x, ids, i); };
          return fold(add, Iterations, {.checkpoint = ScanCheckpoint(remade)})(
                     zeros({}), xs, targets, arange(Iterations))
              .scalar();
        };
        auto unrolled = [&](const NamedArray& w) {
          NamedArray sum = zeros({});
          for (int i = 0; i < 3; ++i)
            sum = sum + body(w, at(xs, Iterations, i), at(targets, Iterations, i),
                             arange(Iterations).unbind("turns")[std::size_t(i)]);
          return sum.scalar();
        };
        auto run = jit([&](const NamedArray& w) { return value_and_grad(looped)(w); });
        auto [value, gradient] = run(w);
        auto [wanted, by] = value_and_grad(unrolled)(w);
        CHECK(std::abs(value.item() - wanted.item()) <= 1e-5 * std::abs(wanted.item()));
        CHECK(difference(gradient, by, 2e-5) == "");
        CHECK(!run.report().chunked.empty());
        CHECK(double(run.report().arena_bytes) < 0.6 * logits);
      }
}

TEST_CASE("chunked plan: a loop may read a part of a result that its call computed outside of it") {
  const Axis Q{"q", 16}, D{"d", 4};
  const auto x = normal(1, {Q, D}), w = normal(2, {D});
  auto second = [&](bool chunks) {
    auto unchunked = [](const NamedArray& x, const NamedArray& p) { return mean(x * x * p); };
    auto added = [=](const NamedArray& x, const NamedArray& p) {
      return x + (chunks ? chunked_reduce("q", ChunkOptions{.chunk = 5}, unchunked)(x, p)
                         : unchunked(x, p));
    };
    auto waves = [](const NamedArray& x, const NamedArray& p) { return sin(x * p); };
    auto loss = [=](const NamedArray& x, const NamedArray& p) {
      return sum(sin(cond(sum(p) > 0.1f, waves, added)(x, p))).scalar();
    };
    auto squares = [=](const NamedArray& x, const NamedArray& p) {
      return sum(square(grad([=](const NamedArray& x) { return loss(x, p); })(x))).scalar();
    };
    return [=](const NamedArray& x, const NamedArray& p) {
      auto [gx, gp] = grad([=](const std::pair<NamedArray, NamedArray>& z) {
        return squares(z.first, z.second);
      })(std::pair(x, p));
      return std::pair(gx, gp);
    };
  };
  for (float sign : {1.f, -1.f}) {
    auto [gx, gp] = jit(second(true))(x, abs(w) * sign);
    auto [wanted_x, wanted_p] = jit(second(false))(x, abs(w) * sign);
    CHECK(difference(gx, wanted_x, 1e-5) == "");
    CHECK(difference(gp, wanted_p, 1e-5) == "");
  }
}

TEST_CASE(
    "chunked plan: a call whose function loops along "
    "the axis has second derivatives inside a loop") {
  for (std::int64_t size : {1, 5})
    for (std::int64_t chunk : {2, 5}) {
      const Axis T{"time", size}, E{"embed", 2};
      const auto x = normal(1, {T, E}), c = normal(2, {E});
      auto run = [&](bool chunks) {
        auto all = [=](const NamedArray& m) {
          return fold([](const NamedArray& c, const NamedArray& row) { return sin(c + row); }, T)(
              c, m);
        };
        auto inner = [=](const NamedArray& m) {
          return chunks ? chunked_reduce(T, {.chunk = chunk}, all)(m) : all(m);
        };
        auto loss = [=](const NamedArray& x) {
          return sum(fold(
              [=](const NamedArray& c, const NamedArray& row) { return sin(inner(x) * c + row); },
              T)(c, x));
        };
        return grad([=](const NamedArray& x) { return sum(sin(grad(loss)(x))); });
      };
      CHECK(difference(jit(run(true))(x), jit(run(false))(x), 1e-5) == "");
    }
}

TEST_CASE(
    "chunked plan: a call may read the results "
    "of an earlier loop along its axis inside a later loop") {
  const Axis T{"time", 6}, E{"embed", 2};
  const auto x = normal(1, {T, E}), c = normal(2, {E});
  auto run = [&](bool chunks) {
    return [=](const NamedArray& x) {
      auto ys = map([](const NamedArray& row) { return sin(row); }, T)(x);
      auto body = [=](const NamedArray& d, const NamedArray& row) {
        auto all = [=](const NamedArray& m) { return logsumexp(m * d, T); };
        return sin(d + row + (chunks ? chunked_reduce(T, {.chunk = 2}, all)(ys) : all(ys)));
      };
      return fold(body, T)(c, x);
    };
  };
  CHECK(difference(jit(run(true))(x), jit(run(false))(x), 1e-5) == "");
}

TEST_CASE(
    "chunked plan: an axis sharded over many devices "
    "is tiled in chunks of any size that the search tries") {
  const Axis Rows("rows", 8 * 17), Wide("wide", 1024);
  auto x = normal(1, {Rows, Embed}), w = normal(2, {Embed, Wide});
  auto of_rows = [](const NamedArray& x, const NamedArray& w) {
    return sum(square(dot(x, w, Embed)));
  };
  // 4 KiB per row: more rows than four devices have fit
  for (int kib : {150, 300, 500}) {
    auto chunked = [&](const NamedArray& x, const NamedArray& w) {
      return chunked_reduce(Rows, {.memory = kib << 10},
                            [&](const NamedArray& x) { return of_rows(x, w); })(x);
    };
    auto f = named_jit(chunked,
                       {.mesh = Mesh{{{"data", 8}}}, .axis_resources = Mapping{{"rows", "data"}}});
    CHECK(f(x, w).item() == doctest::Approx(of_rows(x, w).item()).epsilon(1e-5));
  }
}
