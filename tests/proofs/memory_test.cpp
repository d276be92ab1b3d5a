// Planned memory, asserted to the byte, and the memory that the process uses.
#include <doctest/doctest.h>

#include "examples/models/gpt2.h"
#include "haliax/jit.h"
#include "ops/prim.h"
#include "support/memory.h"
#include "program/views.h"
#include "compile/pipeline.h"

using namespace haliax;

namespace {

struct Parameters {
  NamedArray x, w;
};
const Axis Tokens{"tokens", 256}, Embed{"embed", 32}, Vocab{"vocab", 512};

std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Returns the arena of a program without the scratch memory of matmuls, which depends on the
// backend.
std::int64_t arena_of(const Leaves& results) {
  Nodes roots;
  for (auto& r : results)
    if (!r.empty()) roots.push_back(r.node());
  Compilation c{roots, {}};
  run(c);
  return c.program->arena_bytes;
}
Parameters parameters() {
  return {random::normal(random::key(1), {Tokens, Embed}).eval(),
          random::normal(random::key(2), {Vocab, Embed}).eval()};
}
NamedArray targets() { return random::randint(random::key(3), Tokens, 0, int(Vocab.size)).eval(); }

}  // namespace

TEST_CASE("proof: a chunked loss holds one chunk of logits, forward and backward") {
  const auto p = parameters();
  const auto ids = targets();
  for (std::int64_t chunk : {32, 64, 60}) {
    CAPTURE(chunk);
    auto loss = [=](const Parameters& q) {
      return mean(nn::chunked_cross_entropy(q.x, q.w, ids, Embed, Vocab, Tokens,
                                            {.chunks = {.chunk = chunk}}));
    };
    const auto logits = padded(chunk * Vocab.size * 4), losses = padded(Tokens.size * 4);
    CHECK(arena_of({loss(p)}) == logits + losses);
    // The gradient of the logits reuses their memory.
    CHECK(arena_of(flatten(value_and_grad(loss)(p))) == logits + losses);
  }
  auto unchunked = [=](const Parameters& q) {
    return nn::cross_entropy_loss(dot(q.x, q.w, Embed), Vocab, ids);
  };
  CHECK(arena_of(flatten(value_and_grad(unchunked)(p))) >= Tokens.size * Vocab.size * 4);
}

TEST_CASE("proof: a chunked loss with scratch memory has no buffer of tokens x vocab") {
  const auto ids = targets();
  const auto step = jit([=](const Parameters& p) {
    return value_and_grad([=](const Parameters& q) {
      return mean(nn::chunked_cross_entropy(q.x, q.w, ids, Embed, Vocab, Tokens,
                                            {.chunks = {.chunk = 32}}));
    })(p);
  });
  step(parameters());
  CHECK(step.report().arena_bytes < Tokens.size * Vocab.size * 4 / 2);
}

TEST_CASE("proof: a loop over layers saves the softmax weights, so no exp is computed twice") {
  const Axis Layers("layers", 3), Pos("pos", 16), Size("d", 8);
  auto x = random::normal(random::key(1), {Pos, Size}).eval(),
       w = random::normal(random::key(2), {Layers, Size}).eval();
  auto attend = [](const NamedArray& x, const NamedArray& w) {
    auto y = x * w, keys = rename(y, "pos", "key");
    return dot(softmax(dot(y, keys, "d"), "key"), keys, "key");
  };
  auto g = grad([&](const NamedArray& w) { return sum(square(fold(attend, "layers")(x, w))); })(w);
  Compilation c{{g.node()}, {}};
  run(c);
  int exps = 0;
  each_step(c.program->steps, [&](auto& s) {
    for (auto& i : s.fused.code) exps += i.code == program::Code::exp;
  });
  CHECK(exps == 1);
}

TEST_CASE("proof: checkpointed loops save less memory") {
  const Axis Layers{"layers", 16}, E{"embed", 16}, Batch{"batch", 512};
  const auto w = random::normal(random::key(5), {Layers, E, E.alias("out")}).eval(),
             x = random::normal(random::key(6), {Batch, E}).eval();
  std::int64_t planned[3];
  int i = 0;
  for (const char* policy : {"none", "carries", "nested"}) {
    auto layer = [=](const NamedArray& c, const NamedArray& l) {
      return rename(tanh(dot(tanh(c) * c, l, "embed")), {{"out", "embed"}});
    };
    auto loss = [=](const NamedArray& v) {
      return sum(fold(layer, Layers, {.checkpoint = policy})(x, v));
    };
    planned[i++] = arena_of({grad(loss)(w)});
  }
  const std::int64_t carry = Batch.size * E.size * 4;
  CHECK(planned[0] >= 3 * 16 * carry);  // per layer: the carry and two intermediates
  CHECK(planned[1] >= 16 * carry);      // per layer: the carry
  CHECK(planned[1] < 16 * carry + 8 * carry);
  CHECK(planned[2] < planned[1]);  // the carry of every fourth layer
  CHECK(planned[2] >= 8 * carry);
}

TEST_CASE("proof: AdamW with donated arguments updates in place and plans memory for two scalars") {
  const auto optimizer = optim::adamw({.learning_rate = 0.1, .weight_decay = 0.1});
  const auto p = parameters();
  const auto state = optimizer.init(p);
  const auto update = [=](const Parameters& q, const decltype(state)& s, const Parameters& g) {
    auto [updates, next] = optimizer.update(g, s, q);
    return std::pair{optim::apply_updates(q, updates), next};
  };
  const auto step = jit(update, {.donate = {0, 1}}), copying = jit(update);
  const Parameters g{(p.x * 1.).eval(), (p.w * 1.).eval()};
  copying(p, state, g);
  step(Parameters{(p.x * 2.).eval(), (p.w * 2.).eval()},
       tree_map([](const NamedArray& a) { return (a + a).eval(); }, state), g);
  CHECK(step.report().not_donated.empty());
  CHECK(step.report().arena_bytes == 2 * 64);  // the two bias corrections
  CHECK(step.report().peak_bytes == 2 * 64);
  const auto weights = (Tokens.size + Vocab.size) * Embed.size * 4;
  // The weights, both moments and the count.
  CHECK(copying.report().peak_bytes == 2 * 64 + 3 * weights + 4);
}

TEST_CASE("proof: the memory of the process grows by at most the plan and 8 MiB") {
  if (sanitized) return;
  const models::GPT2Config config{
      .vocab_size = 512, .n_positions = 64, .n_embd = 64, .n_layer = 4, .n_head = 4};
  const Axis Batch{"batch", 8};
  auto model = models::GPT2LMHeadModel::init(config, random::key(0));
  model = tree_map([](const NamedArray& a) { return a.empty() ? a : a.eval(); }, model);
  const auto ids =
      random::randint(random::key(1), {Batch, config.Pos()}, 0, int(config.vocab_size)).eval();
  const auto optimizer = optim::adamw();
  auto state = optimizer.init(model);
  state = tree_map([](const NamedArray& a) { return a.empty() ? a : (a + a).eval(); }, state);
  const auto step = jit(
      [=](const models::GPT2LMHeadModel& m, const decltype(state)& s, const NamedArray& i) {
        auto [loss, g] = value_and_grad([](const models::GPT2LMHeadModel& q, const NamedArray& t) {
          return nn::next_token_loss("pos", "vocab", q(t, random::key(2)), t);
        })(m, i);
        auto [updates, next] = optimizer.update(g, s, m);
        return std::tuple(loss, optim::apply_updates(m, updates), next);
      },
      {.donate = {0, 1}});
  const auto before = resident_bytes();
  for (int i = 0; i < 20; ++i) {
    NamedArray loss;
    std::tie(loss, model, state) = step(model, state, ids);
  }
  CAPTURE(step.report().peak_bytes);
  CHECK(resident_bytes() - before <= step.report().peak_bytes + (std::int64_t(8) << 20));
}
