// The code of docs/how-to/memory.md, compiled and run. Its table is compared with plans.
#include <doctest/doctest.h>

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "haliax/haliax.h"

using namespace haliax;

namespace {

const Axis Vocab("vocab", 8192), Embed("embed", 256), Mlp("mlp", 1024), Layers("layers", 16);
const Axis Batch("batch", 8), Pos("position", 256);

struct Block {
  nn::RmsNorm norm;
  nn::Linear up, down;

  static Block init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::RmsNorm::init(Embed), nn::Linear::init(Embed, Mlp, k_up),
            nn::Linear::init(Mlp, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return x + down(nn::gelu(up(norm(x)))); }
};

struct Model {
  nn::Embedding tokens;
  nn::Stacked<Block> blocks;

  static Model init(const Key& key, ScanCheckpoint checkpoint) {
    auto [k_tokens, k_blocks] = random::split<2>(key);
    auto blocks = nn::Stacked<Block>::init(Layers, Block::init, random::split(k_blocks, Layers));
    blocks.gradient_checkpointing = checkpoint;
    return {nn::Embedding::init(Vocab, Embed, k_tokens), blocks};
  }
  NamedArray hidden(const NamedArray& ids) const { return blocks.fold(tokens(ids)); }
};

NamedArray full_loss(const Model& m, const NamedArray& ids) {
  auto logits = dot(m.hidden(ids), m.tokens.weight, Embed);  // (batch, position, vocab)
  return nn::next_token_loss("position", Vocab, logits, ids);
}

NamedArray chunked_loss(const Model& m, const NamedArray& ids) {
  return nn::linear_next_token_loss("position", m.hidden(ids), m.tokens.weight, ids, Embed, Vocab)
      .loss;
}

struct Training {
  Model model;
  optim::State<optim::AdamW, Model> state;
};

auto step_with(NamedArray (*loss)(const Model&, const NamedArray&)) {
  return [=](const Training& t, const NamedArray& ids) {
    auto [l, grads] = value_and_grad(loss)(t.model, ids);
    auto [updates, state] = optim::adamw().update(grads, t.state, t.model);
    return std::pair(Training{optim::apply_updates(t.model, updates), state}, l);
  };
}

// Adds up the loss and the gradients of four microbatches, one after the other.
std::pair<Training, NamedArray> accumulating_step(const Training& t, const NamedArray& ids) {
  const Axis Micro("micro", 4), Part("batch", Batch.size / Micro.size);
  struct Sums {
    NamedArray loss;
    Model grads;
  };
  auto plus = [](const NamedArray& a, const NamedArray& b) { return a + b; };
  auto add = [&](const Sums& sums, const NamedArray& part) {
    auto [l, grads] = value_and_grad(chunked_loss)(t.model, part);
    return Sums{sums.loss + l, tree_map(plus, sums.grads, grads)};
  };
  auto zero = [](const NamedArray& a) { return zeros(a.axes(), a.dtype()); };
  auto parts = unflatten_axis(ids, Batch, {Part, Micro});
  auto sums = fold(add, Micro)(Sums{NamedArray(0.), tree_map(zero, t.model)}, parts);

  auto grads = tree_map([](const NamedArray& a) { return a / 4.; }, sums.grads);
  auto [updates, state] = optim::adamw().update(grads, t.state, t.model);
  return {{optim::apply_updates(t.model, updates), state}, sums.loss / 4.};
}

Training shapes_with(ScanCheckpoint checkpoint) {
  return eval_shape([=] {
    auto model = Model::init(random::key(0), checkpoint);
    return Training{model, optim::adamw().init(model)};
  });
}

// Planned MiB of a device: arguments and everything else.
double mib(const JitReport& report) {
  return double(report.argument_bytes + report.peak_bytes) / (1 << 20);
}

const NamedArray ids = eval_shape([] { return zeros({Batch, Pos}, DType::i32); });

}  // namespace

TEST_CASE("memory: a plan has the bytes of a step by purpose") {
  auto shapes = shapes_with("none");
  auto step = jit(step_with(chunked_loss), {.donate = {0}});
  JitReport report = step.plan(shapes, ids);
  std::int64_t total = report.argument_bytes + report.peak_bytes;
  bool fits = total <= std::int64_t(600) << 20;
  CHECK(fits);

  std::ostringstream out;
  for (auto& m : report.memory)
    out << std::left << std::setw(12) << m.purpose << " " << m.bytes / 1000000 << " MB\n";
  std::int64_t sum = 0;
  for (auto& m : report.memory) sum += m.bytes;
  CHECK(sum == total);
  auto bytes_of = [&](const char* purpose) {
    auto same = [&](const MemoryReport& m) { return m.purpose.starts_with(purpose); };
    auto found = std::find_if(report.memory.begin(), report.memory.end(), same);
    return found == report.memory.end() ? 0. : double(found->bytes) / 1e6;
  };
  CHECK(bytes_of("parameters") == doctest::Approx(42.06).epsilon(0.01));
  CHECK(bytes_of("optimi") == doctest::Approx(84.12).epsilon(0.01));
  CHECK(bytes_of("gradients") == doctest::Approx(42.06).epsilon(0.01));
  CHECK(bytes_of("activations") == doctest::Approx(348).epsilon(0.02));

  auto& curve = report.memory_over_time;
  auto highest = std::max_element(curve.begin(), curve.end());
  CHECK(*highest <= total);
  CHECK(double(*highest) > 0.99 * double(total));
}

TEST_CASE("memory: the techniques of the page, one after the other") {
  const auto none = shapes_with("none"), carries = shapes_with("carries"),
             nested = shapes_with("nested");
  const Mapping params{{"embed", "data"}}, compute{{"batch", "data"}};
  const Mesh mesh{{{"data", 8}}};

  auto base = jit(step_with(full_loss)).plan(none, ids);
  auto donated = jit(step_with(full_loss), {.donate = {0}}).plan(none, ids);
  auto chunked = jit(step_with(chunked_loss), {.donate = {0}}).plan(none, ids);
  auto checkpointed = jit(step_with(chunked_loss), {.donate = {0}}).plan(carries, ids);
  auto twice = jit(step_with(chunked_loss), {.donate = {0}}).plan(nested, ids);
  auto accumulated = jit(accumulating_step, {.donate = {0}}).plan(none, ids);
  auto sharded = fsdp(step_with(chunked_loss), params, compute, {.donate = {0}, .mesh = mesh})
                     .plan(carries, ids);
  auto gathered_once = fsdp(step_with(chunked_loss), params, compute,
                            {.donate = {0}, .mesh = mesh, .regather = false})
                           .plan(carries, ids);

  // MiB differ a little between instruction sets and thread counts.
  auto near = [](const JitReport& report, double expected) {
    CHECK(mib(report) == doctest::Approx(expected).epsilon(0.03));
  };
  near(base, 638);
  near(donated, 518);
  near(chunked, 494);
  near(checkpointed, 213);
  near(twice, 197);
  near(accumulated, 284);
  CHECK(mib(sharded) == doctest::Approx(45).epsilon(0.05));
  CHECK(mib(gathered_once) == doctest::Approx(94).epsilon(0.05));
  CHECK(checkpointed.flops / base.flops == doctest::Approx(1.13).epsilon(0.01));
  CHECK(twice.flops / base.flops == doctest::Approx(1.40).epsilon(0.01));
  CHECK(chunked.flops == base.flops);
  CHECK(accumulated.flops == base.flops);
  CHECK(sharded.sent_bytes == doctest::Approx(103e6).epsilon(0.01));
  CHECK(gathered_once.sent_bytes == doctest::Approx(73.6e6).epsilon(0.01));
}

TEST_CASE("memory: checkpoint recomputes a function in the backward pass") {
  const Axis Wide("wide", 4096), Rows("rows", 512);
  auto gated = [](const NamedArray& gate, const NamedArray& up) { return nn::silu(gate) * up; };
  auto saves = [=](const NamedArray& a, const NamedArray& b) { return sum(square(gated(a, b))); };
  auto recomputes = [=](const NamedArray& a, const NamedArray& b) {
    return sum(square(checkpoint(gated)(a, b)));
  };
  auto a = random::normal(random::key(0), {Rows, Wide}), b = a * 0.5;
  CHECK(grad(saves)(a, b).floats()[7] == doctest::Approx(grad(recomputes)(a, b).floats()[7]));
}

TEST_CASE("memory: a donated argument that no result can reuse is reported") {
  const Axis N("n", 1 << 16);
  auto x = zeros({N});
  auto update = jit([](const NamedArray& x) { return x * 0.5; }, {.donate = {0}});
  update.plan(x);
  CHECK(update.report().not_donated.empty());
  auto total = jit([](const NamedArray& x) { return sum(x); }, {.donate = {0}});
  total.plan(x);
  CHECK(total.report().not_donated.size() == 1);
}
