// Running a compiled step: without allocations, and with bitwise identical results for any number
// of threads.
#include <doctest/doctest.h>

#include "examples/models/gpt2.h"
#include "haliax/jit.h"
#include "ops/prim.h"
#include "runtime/run.h"
#include "support/allocations.h"

using namespace haliax;

namespace {

// A program that jit compiled, with its arguments (the captured arrays), results and arena.
struct Ready {
  Compiled compiled;
  std::vector<void*> arguments, outs;
  std::vector<std::unique_ptr<Buffer>> memory;
  Buffer arena;

  explicit Ready(const Leaves& results)
      : compiled(compile(roots_of(results), "cpu")), arena(compiled.program->arena_bytes) {
    for (auto& n : compiled.captured) arguments.push_back(n->value.get()->data());
    for (int slot : compiled.program->result_slots) {
      memory.push_back(std::make_unique<Buffer>(compiled.program->slots[std::size_t(slot)].bytes));
      outs.push_back(memory.back()->data());
    }
  }
  static Nodes roots_of(const Leaves& results) {
    Nodes roots;
    for (auto& r : results)
      if (!r.empty()) roots.push_back(r.node());
    return roots;
  }
  void run() { compiled.executable->run(arguments, outs, arena.data(), nullptr); }
};

const models::GPT2Config config{
    .vocab_size = 130, .n_positions = 32, .n_embd = 48, .n_layer = 3, .n_head = 3};
const Axis Batch{"batch", 3};

template <class T> T made(const T& tree) {
  return tree_map([](const NamedArray& a) { return a.empty() ? a : a.eval(); }, tree);
}
// One training step with dropout and a chunked loss. It uses all kinds of kernels.
template <class State, class Optimizer>
auto train(const models::GPT2LMHeadModel& m, const State& s, const NamedArray& ids,
           const Optimizer& optimizer) {
  auto [loss, g] = value_and_grad([](const models::GPT2LMHeadModel& q, const NamedArray& i) {
    auto x = q.transformer(i, random::key(7));
    return mean(nn::chunked_cross_entropy(x, q.head(), i, "embed", "vocab", "pos",
                                          {.chunks = {.chunk = 10}}));
  })(m, ids);
  auto [updates, next] = optimizer.update(g, s, m);
  return std::tuple(loss, optim::apply_updates(m, updates), next);
}

}  // namespace

TEST_CASE("proof: a step without contractions allocates nothing") {
  const Axis A{"a", 300}, B{"b", 70};
  const auto optimizer = optim::adamw();
  const auto w = random::normal(random::key(1), {A, B}).eval(),
             x = random::normal(random::key(2), {A, B}).eval();
  const auto state = made(optimizer.init(w));
  const auto g = grad([=](const NamedArray& v) {
    return mean(square(softmax(nn::gelu(v * x), B) - standardize(x, B)));
  })(w);
  const auto [updates, next] = optimizer.update(g, state, w);
  Ready step(flatten(std::pair{optim::apply_updates(w, updates), next}));
  step.run();
  CHECK(allocations_of([&] { step.run(); }).all == 0);
}

TEST_CASE("proof: a GPT-2 training step has no allocations other than those inside oneDNN") {
  const auto model = made(models::GPT2LMHeadModel::init(config, random::key(0)));
  const auto ids =
      random::randint(random::key(1), {Batch, config.Pos()}, 0, int(config.vocab_size)).eval();
  const auto optimizer = optim::adamw();
  Ready step(flatten(train(model, made(optimizer.init(model)), ids, optimizer)));
  step.run();
  const Allocations made = allocations_of([&] { step.run(); });
  CHECK(made.all == made.by_onednn);  // oneDNN 2.6 creates a context for each call of a primitive
}

TEST_CASE("proof: results are bitwise identical with 1, 2 and 4 threads") {
  const auto optimizer = optim::adamw();
  std::vector<std::vector<std::byte>> expected;
  for (int threads : {1, 2, 4}) {
    CAPTURE(threads);
    set_threads(threads);
    auto model = made(models::GPT2LMHeadModel::init(config, random::key(0)));
    auto state = optimizer.init(model);
    const auto ids =
        random::randint(random::key(1), {Batch, config.Pos()}, 0, int(config.vocab_size));
    const auto step = jit([=](const models::GPT2LMHeadModel& m, const decltype(state)& s,
                              const NamedArray& i) { return train(m, s, i, optimizer); });
    NamedArray loss;
    for (int i = 0; i < 3; ++i) std::tie(loss, model, state) = step(model, state, ids);
    std::vector<std::vector<std::byte>> got;
    for (auto& leaf : flatten(std::tuple(loss, model, state)))
      if (!leaf.empty()) got.push_back(leaf.bytes());
    if (threads == 1) expected = got;
    CHECK(got == expected);
  }
  set_threads(0);
}
