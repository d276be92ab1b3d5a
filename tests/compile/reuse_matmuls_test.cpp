// Matmuls that a loop computes and a later loop repeats are stored in memory that is idle between
// the loops.
#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <random>

#include "haliax/chunked.h"
#include "haliax/jit.h"
#include "haliax/losses.h"
#include "haliax/nn.h"
#include "haliax/ops.h"
#include "haliax/random.h"
#include "program/devices.h"
#include "support/near.h"
#include "compile/memory/memory.h"
#include "compile/pipeline.h"

using namespace haliax;
using program::Code;
using program::Home;
using program::Program;
using program::Step;
using program::View;

namespace {

// s[i] = sum over v of (x w^T)[i, v];  g[v, k] = sum over i of s[i] (x w^T)[i, v] x[i, k]
// Both run in iterations over v. Slots: 0 x (rows, depth), 1 w (`iterations` * width, depth), 2 g,
// 3 s (rows), 4 and 5 the matmul of an iteration, 6 the matmul times s.
struct Example {
  std::int64_t rows = 32, depth = 128, width = 16, iterations = 8;

  View view(int slot, program::Dims strides, int loop = -1, std::int64_t step = 0) const {
    View v{slot, DType::f32, 0, std::move(strides), {}};
    if (loop >= 0) v.terms.push_back({.loop = loop, .stride = step});
    return v;
  }
  Step product(int loop, int out) const {  // out (rows, width)
    Step s;
    s.kind = program::Kind::contract;
    s.contract = {{},
                  {rows},
                  {width},
                  {depth},
                  view(0, {depth, 0, 1}),
                  view(1, {0, depth, 1}, loop, width * depth),
                  view(out, {width, 1, 0})};
    return s;
  }
  Step fused(int outer, std::vector<program::Instr> code) const {
    Step s;
    s.fused = {{rows, width}, outer, std::move(code)};
    return s;
  }
  static Step loop(int variable, std::int64_t trips, std::vector<Step> body) {
    Step s;
    s.kind = program::Kind::loop;
    s.loop = {.variable = variable, .trips = trips};
    s.body = std::move(body);
    return s;
  }
  Program make() const {
    Program p;
    p.arguments = 2;
    p.results = 1;
    p.loops = 2;
    p.argument_slots = {0, 1};
    p.result_slots = {2};
    p.slots = {{rows * depth * 4, Home::argument, 0},
               {iterations * width * depth * 4, Home::argument, 1},
               {iterations * width * depth * 4, Home::result, 0},
               {rows * 4},
               {rows * width * 4},
               {rows * width * 4},
               {rows * width * 4}};
    Step zero;
    zero.fused = {{rows},
                  1,
                  {{.code = Code::constant, .view = {}},
                   {.code = Code::store, .args = {0, -1, -1, -1}, .view = view(3, {1})}}};
    auto summed =
        fused(1, {{.code = Code::load, .inner = true, .view = view(4, {width, 1})},
                  {.code = Code::reduce_sum, .args = {0, -1, -1, -1}, .view = {}},
                  {.code = Code::store_add, .args = {1, -1, -1, -1}, .view = view(3, {1, 0})}});
    auto scaled = fused(1, {{.code = Code::load, .inner = true, .view = view(5, {width, 1})},
                            {.code = Code::load, .view = view(3, {1, 0})},
                            {.code = Code::mul, .args = {0, 1, -1, -1}, .inner = true, .view = {}},
                            {.code = Code::store,
                             .args = {2, -1, -1, -1},
                             .inner = true,
                             .view = view(6, {width, 1})}});
    Step back;
    back.kind = program::Kind::contract;
    back.contract = {{},
                     {width},
                     {depth},
                     {rows},
                     view(6, {1, 0, width}),
                     view(0, {0, 1, depth}),
                     view(2, {depth, 1, 0}, 1, width * depth)};
    p.steps = {zero, loop(0, iterations, {product(0, 4), summed}),
               loop(1, iterations, {product(1, 5), scaled, back})};
    return p;
  }
};

std::vector<float> run(Program p, program::Device& device) {
  plan_memory(p, {false, false}, true, true);
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> in, out;
  for (int s : p.argument_slots) {
    auto& values = in.emplace_back(std::size_t(p.slots[std::size_t(s)].bytes / 4));
    for (auto& v : values) v = normal(engine);
  }
  out.emplace_back(std::size_t(p.slots[std::size_t(p.result_slots[0])].bytes / 4));
  const std::unique_ptr<void, decltype(&std::free)> arena(
      std::aligned_alloc(64, std::size_t(p.arena_bytes + 64)), &std::free);
  device.compile(std::make_shared<const Program>(p))
      ->run({in[0].data(), in[1].data()}, {out[0].data()}, arena.get(), nullptr);
  return out[0];
}

}  // namespace

TEST_CASE(
    "reuse matmuls: stores as many iterations as fit, "
    "bitwise identical, without a byte more memory") {
  struct {
    std::int64_t rows, width, iterations, stored;
  } cases[] = {
      // an iteration writes more than it stores: the writes must not reach memory that the last
      // stored iteration reads
      {32, 16, 8, 7},  {256, 16, 8, 3},   // it stores more than it writes: memory for three
      {128, 16, 8, 7},                    // equal sizes
      {8, 16, 40, 39}, {1024, 16, 8, 0},  // not even one iteration fits
  };
  for (auto& c : cases) {
    CAPTURE(c.rows);
    Example e{.rows = c.rows, .width = c.width, .iterations = c.iterations};
    auto p = e.make();
    auto rewritten = reuse_matmuls(p);
    REQUIRE(bool(rewritten) == (c.stored > 0));
    if (!rewritten) continue;
    REQUIRE(rewritten->steps.size() == 5);
    CHECK(rewritten->steps[1].loop.trips == c.stored);
    CHECK(rewritten->steps[2].loop.trips == c.iterations - c.stored);
    CHECK(rewritten->steps[3].loop.trips == c.stored);
    CHECK(rewritten->steps[3].body.size() == 2);
    CHECK(rewritten->steps[4].loop.trips == c.iterations - c.stored);
    CHECK(multiplications(p.steps) - multiplications(rewritten->steps) ==
          double(c.stored * c.rows * c.width * e.depth));
    auto before = p, after = *rewritten;
    plan_memory(before, {false, false}, true, true);
    plan_memory(after, {false, false}, true, true);
    CHECK(after.peak_bytes <= before.peak_bytes);
    auto reference = reference::make_reference_device();
    CHECK(run(*rewritten, *reference) == run(p, *reference));
    auto cpu = cpu::make_cpu_device(0);
    CHECK(run(*rewritten, *cpu) == run(p, *cpu));
  }
}

TEST_CASE("reuse matmuls: requires idle memory, and equal matmuls") {
  auto reuses = [](const std::function<void(Program&)>& change, Example e = {}) {
    auto p = e.make();
    change(p);
    return bool(reuse_matmuls(p));
  };
  auto recomputed = [](Program& p) -> program::Contract& { return p.steps[2].body[0].contract; };
  auto back = [](Program& p) -> program::Contract& { return p.steps[2].body[2].contract; };
  CHECK(reuses([](Program&) {}));
  CHECK(!reuses(
      [&](Program& p) { back(p).accumulate = true; }));  // the gradient has an initial value
  CHECK(
      !reuses([&](Program& p) { back(p).out.terms.clear(); }));  // each iteration writes all of it
  // the memory is in use before the loops
  CHECK(!reuses([](Program& p) { p.steps.insert(p.steps.begin(), Example().product(-1, 2)); }));
  // ... and between them
  CHECK(!reuses([](Program& p) { p.steps.insert(p.steps.begin() + 2, Example().product(-1, 2)); }));
  // an operand changes between them
  CHECK(!reuses([](Program& p) { p.steps.insert(p.steps.begin() + 2, Example().product(-1, 1)); }));
  // the matmul is modified after its computation
  CHECK(!reuses([](Program& p) { p.steps[1].body.push_back(Example().product(0, 4)); }));
  CHECK(!reuses([&](Program& p) { recomputed(p).b.offset = 1; }));  // another matmul
  CHECK(
      !reuses([](Program& p) { p.steps[1].loop.reverse = true; }));  // another order of iterations
  CHECK(!reuses([](Program& p) { p.steps[1].loop.trips = 7; }));
  CHECK(!reuses([](Program& p) {  // iterations that may be skipped
    Step conditional;
    conditional.kind = program::Kind::conditional;
    conditional.conditional.flag = {3, DType::boolean, 0, {}, {}};
    conditional.body = std::exchange(p.steps[1].body, {});
    p.steps[1].body = {conditional};
  }));
  // it is read after the loop
  CHECK(!reuses([](Program& p) { p.steps.push_back(Example().product(-1, 5)); }));
  CHECK(reuses([](Program&) {}, Example{.depth = 96}));
  CHECK(!reuses([](Program&) {}, Example{.depth = 95}));  // recomputation is as fast as a read
}

TEST_CASE("reuse matmuls: the gradient of a head stores its logits") {
  Axis Tokens("tokens", 64), Embed("embed", 128), Vocab("vocab", 2048);
  auto x = random::normal(random::key(1), {Tokens, Embed}).eval(),
       w = random::normal(random::key(2), {Vocab, Embed}).eval();
  auto ids = random::randint(random::key(3), Tokens, 0, int(Vocab.size)).eval();
  auto gradients = [&](const ChunkOptions& chunks) {
    auto loss = [](const NamedArray& p, const NamedArray& q, const NamedArray& t) {
      return nn::cross_entropy_loss(dot(p, q, "embed"), "vocab", t);
    };
    return value_and_grad([=](const NamedArray& q) {
      return chunked_reduce({"vocab", "tokens"}, chunks, loss)(x, q, ids);
    })(w);
  };
  auto [loss, gradient] = gradients({.memory = 48 << 10});
  auto expected = gradients({});
  Compilation low{{loss.node(), gradient.node()}, {}};
  run(low);
  auto each = double(Tokens.size * Embed.size * Vocab.size),
       made = multiplications(low.program->steps);
  CHECK(made > 2 * each);  // 3 per tile without reuse: logits, the same again, and the gradient
  CHECK(made < 2.25 * each);
  CHECK(low.saved_work == doctest::Approx(1 - made / (3 * each)));
  CHECK(difference(loss, expected.first, 1e-6) == "");
  CHECK(difference(gradient, expected.second, 1e-6) == "");
}
