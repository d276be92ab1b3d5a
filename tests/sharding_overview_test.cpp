// The four training scripts of the introduction to Levanter, as it writes them: data parallel, fully sharded, that with mixed
// precision, and tensor parallel. A loss of one example, mapped over the batch with a key for each, its compute mapping entered
// inside.
#include <doctest/doctest.h>

#include <cmath>

#include "examples/gpt2/model.h"

using namespace haliax;
using Model = gpt2::Gpt2LMHeadModel;

namespace {

gpt2::Gpt2Config config_of(double dropout) {
  return {.seq_len = 16,
          .hidden_dim = 32,
          .num_layers = 2,
          .num_heads = 4,
          .embed_pdrop = dropout,
          .attn_pdrop = dropout,
          .resid_pdrop = dropout};
}
const Axis Vocab{"vocab", 96}, Batch{"batch", 8};

struct Script {
  Mesh mesh;
  std::optional<Mapping> params = {}, compute = {};  // none: whole; none inside
  std::optional<Mappings> in = {}, out = {};         // of the step, where they are not as the parameters
  Policy policy = {};
  bool by_example = true;  // else the loss of the whole batch at once
};
struct Ran {
  std::vector<double> losses;
  Model model;
  JitReport init, state, step;
};

template <class Jit>
Ran run(const Script& s, double dropout, int steps, Jit jitted) {
  auto config = config_of(dropout);
  auto key = random::key(0);
  auto [model_key, training_key] = random::split<2>(key);
  auto policy = s.policy;

  auto init_model = jitted([=, k = model_key] { return policy.cast_to_param(Model::init(Vocab, config, k)); },
                           JitOptions{.mesh = s.mesh, .axis_resources = s.params});
  auto model = init_model();
  auto optimizer = optim::adamw({.learning_rate = 1e-2});
  auto init_state =
      jitted([=](const Model& m) { return optimizer.init(m); }, JitOptions{.mesh = s.mesh, .axis_resources = s.params});
  auto opt_state = init_state(model);

  // The loss of a single example, or of all at once.
  auto compute_loss = [=, compute = s.compute, by_example = s.by_example](const Model& m, const NamedArray& input_ids,
                                                                          const Key& k) {
    std::optional<axis_mapping> scope;
    if (compute) scope.emplace(*compute);
    auto mine = policy.cast_to_compute(m);
    auto pred_y = policy.cast_to_output(mine(input_ids, k, false));
    if (by_example) return nn::next_token_loss("position", Vocab, pred_y, input_ids);
    auto Pos = config.Pos();  // the same of each example, without vmap
    return nn::cross_entropy_loss(pred_y, Vocab, roll(input_ids, -1, Pos),
                                  {.reduction_axis = Pos, .where = arange(Pos) < Pos.size - 1});
  };
  // The loss of a batch.
  auto train_batch_loss = [=, by_example = s.by_example](const Model& m, const NamedArray& input_ids, const Key& keys) {
    auto per_ex_loss = by_example ? vmap(compute_loss, "batch")(m, input_ids, keys) : compute_loss(m, input_ids, {});
    return mean(per_ex_loss, "batch").scalar();
  };
  auto grad_loss = value_and_grad(train_batch_loss);
  using State = decltype(opt_state);
  auto train_step = [=](const Model& m, const State& state, const NamedArray& input_ids, const Key& keys) {
    auto [loss, grads] = grad_loss(m, input_ids, keys);
    auto [updates, next] = optimizer.update(grads, state, m);
    return std::tuple(loss, optim::apply_updates(m, updates), next);
  };
  auto step =
      jitted(train_step, JitOptions{.donate = {0, 1}, .mesh = s.mesh, .axis_resources = s.params, .in = s.in, .out = s.out});

  Ran r;
  for (int i = 0; i < steps; ++i) {
    auto input_ids = random::randint(random::key(100), {Batch, config.Pos()}, 0, int(Vocab.size));
    auto [my_key, next_key] = random::split<2>(training_key);
    training_key = next_key;
    auto batch_key = random::split(my_key, Batch);
    NamedArray loss;
    std::tie(loss, model, opt_state) = step(model, opt_state, input_ids, batch_key);
    r.losses.push_back(loss.item());
  }
  r.model = model, r.init = init_model.report(), r.state = init_state.report(), r.step = step.report();
  return r;
}
Ran on_mesh(const Script& s, double dropout = 0, int steps = 1) {
  return run(s, dropout, steps, [](auto f, JitOptions o) { return named_jit(f, std::move(o)); });
}
Ran on_one(Script s, double dropout = 0, int steps = 1) {
  s.compute = {}, s.params = {}, s.in = {}, s.out = {};
  return run(s, dropout, steps, [](auto f, JitOptions o) { return jit(f, {.donate = o.donate}); });
}

const Mesh eight{{{"data", -1}}}, grid{{{"data", -1}, {"model", 2}}};
const Mapping by_batch{{"batch", "data"}};
Script data_parallel() {
  return {.mesh = eight, .in = Mappings::of_each({Mapping{}, Mapping{}, by_batch, by_batch}), .out = Mapping{}};
}
Script fully_sharded() { return {.mesh = eight, .params = Mapping{{"embed", "data"}}, .compute = by_batch}; }
Script mixed() {
  auto s = fully_sharded();
  s.policy = Policy("compute=bfloat16,parameter=f32,output=f32");
  return s;
}
Script tensor_parallel() {
  return {.mesh = grid,
          .params = Mapping{{"embed", "data"}, {"mlp", "model"}, {"heads", "model"}},
          .compute = Mapping{{"batch", "data"}, {"mlp", "model"}, {"heads", "model"}}};
}

std::int64_t local_bytes(const Script& s) {  // of the parameters, on one device
  std::int64_t n = 0;
  const Model model = Model::init(Vocab, config_of(0), random::key(0));
  for (auto& leaf : flatten(model)) {
    std::int64_t mine = leaf.nbytes();
    for (auto& a : leaf.axes())
      for (auto& name : physical_axis_name(a, s.params.value_or(Mapping{}))) mine /= s.mesh.size(name);
    n += mine;
  }
  return n;
}

void check(const Script& s, double tolerance) {
  // With dropout, a key for each example: the losses and the weights of one device.
  const auto sharded = on_mesh(s, 0.1, 4), one = on_one(s, 0.1, 4);
  for (std::size_t i = 0; i < one.losses.size(); ++i)
    CHECK(sharded.losses[i] == doctest::Approx(one.losses[i]).epsilon(tolerance));
  CHECK(sharded.losses.back() < sharded.losses.front());
  CHECK(sharded.step.traces == 1);

  // Each device holds and makes its part of parameters and optimiser alone, and nobody sends any of it.
  const auto mine = local_bytes(s);
  CHECK(sharded.init.sent_bytes == 0);
  CHECK(sharded.state.sent_bytes == 0);
  CHECK(sharded.state.argument_bytes == mine);
  CHECK(sharded.init.peak_bytes >= mine);
  CHECK(sharded.state.peak_bytes <= 2 * mine + 64 * 64);
  const auto ids_and_keys = Batch.size * 16 * 4 + Batch.size * 2 * 4;
  CHECK(sharded.step.argument_bytes <= 3 * mine + ids_and_keys + 4);

  // Mapped over examples or not: the same bytes and the same peak, with or without masks to draw.
  auto together = s;
  together.by_example = false;
  const auto mapped = on_mesh(s), whole = on_mesh(together);
  CHECK(mapped.losses[0] == doctest::Approx(whole.losses[0]).epsilon(1e-6));
  CHECK(mapped.step.sent_bytes == whole.step.sent_bytes);
  CHECK(mapped.step.peak_bytes == whole.step.peak_bytes);
  CHECK(sharded.step.sent_bytes == mapped.step.sent_bytes);
}

}  // namespace

TEST_CASE("overview: data parallel") {
  auto s = data_parallel();
  check(s, 1e-5);
  // Gradients and the loss, summed over all devices, once.
  CHECK(on_mesh(s).step.sent_bytes == 2 * 7 / 8. * double(local_bytes(s) + 4));
}
TEST_CASE("overview: fully sharded data parallel") {
  check(fully_sharded(), 1e-5);
  CHECK(on_mesh(fully_sharded()).step.peak_bytes < on_mesh(data_parallel()).step.peak_bytes);
}
TEST_CASE("overview: fully sharded, in mixed precision") {
  check(mixed(), 1e-2);
  // What is sent is half as wide, but for what is no weight of a layer.
  CHECK(on_mesh(mixed()).step.sent_bytes < 0.55 * on_mesh(fully_sharded()).step.sent_bytes);
}
TEST_CASE("overview: tensor parallel") { check(tensor_parallel(), 1e-5); }
