// The four training scripts of the Levanter introduction: data parallel, fully sharded, fully
// sharded with mixed precision, and tensor parallel. Each has a loss of one example that vmap maps
// over the batch with one key per example, and enters its compute mapping inside the loss.
#include <doctest/doctest.h>

#include <cmath>

#include "examples/sharding/script.h"

using namespace haliax;
using sharding::Layout;
using sharding::RunResult;

namespace {

sharding::Sizes sizes(double dropout) {
  return {{.vocab_size = 96,
           .n_positions = 16,
           .n_embd = 32,
           .n_layer = 2,
           .n_head = 4,
           .embd_pdrop = dropout,
           .attn_pdrop = dropout,
           .resid_pdrop = dropout},
          Axis("batch", 8)};
}
RunResult on_mesh(const Layout& layout, double dropout = 0, int steps = 1) {
  return sharding::run(layout, sizes(dropout), steps);
}

// The same loss without vmap: one value per example, then the mean.
NamedArray loss_at_once(const Layout& layout, const sharding::Model& model, const NamedArray& ids,
                        const Key&) {
  std::optional<axis_mapping> scope;
  if (layout.compute) scope.emplace(*layout.compute);
  auto Pos = ids.resolve_axis("pos");
  auto y = layout.policy.cast_to_output(layout.policy.cast_to_compute(model)(ids));
  auto losses = nn::cross_entropy_loss(
      y, "vocab", roll(ids, -1, Pos), {.reduction_axis = Pos, .where = arange(Pos) < Pos.size - 1});
  return mean(losses, "batch");
}
// Returns the bytes of the parameters on one device.
std::int64_t local_bytes(const RunResult& r, const Layout& layout) {
  std::int64_t n = 0;
  use_mesh mesh(*layout.mesh);
  for (auto& leaf : flatten(r.model)) {
    std::int64_t mine = leaf.nbytes();
    for (auto& a : leaf.axes())
      mine /= physical_axis_size(a, layout.params.value_or(Mapping{})).value_or(1);
    n += mine;
  }
  return n;
}

// The same with the head inside the loss, in chunks of positions, so that logits are not
// materialized.
NamedArray chunked_loss(const Layout& layout, const sharding::Model& model,
                        const NamedArray& input_ids, const Key& keys) {
  auto one = [&](const sharding::Model& given, const NamedArray& ids, const Key& key) {
    std::optional<axis_mapping> scope;
    if (layout.compute) scope.emplace(*layout.compute);
    auto m = layout.policy.cast_to_compute(given);
    return nn::linear_next_token_loss("pos", m.transformer(ids, key), m.head(), ids, "embed",
                                      "vocab",
                                      {.chunks = {.chunk = 5}, .logit_dtype = layout.policy.output})
        .loss;
  };
  return mean(vmap(one, "batch")(model, input_ids, keys), "batch");
}
// Returns the mean over two microbatches, one after the other.
NamedArray accumulated_loss(const Layout& layout, const sharding::Model& model,
                            const NamedArray& input_ids, const Key& keys) {
  const Axis Micro("micro", 2), Part("batch", input_ids.axis_size("batch") / 2);
  auto split = [&](const NamedArray& x) { return unflatten_axis(x, "batch", {Part, Micro}); };
  auto body = [&](const NamedArray& sum, const NamedArray& ids, const NamedArray& words) {
    return sum + sharding::train_batch_loss(layout, model, ids, random::key(words));
  };
  return fold(body, Micro, {.checkpoint = "carries"})(NamedArray(0.), split(input_ids),
                                                      split(keys.words)) /
         2.;
}

struct Checked {
  RunResult ran;
  std::int64_t mine;  // bytes of the parameters on one device
};
Checked check(const Layout& layout, double tolerance) {
  // With dropout and one key per example, the losses equal the losses of one device.
  static const auto one = on_mesh(sharding::one_device(), 0.1, 3);
  const auto sharded = on_mesh(layout, 0.1, 3);
  for (std::size_t i = 0; i < one.losses.size(); ++i)
    CHECK(sharded.losses[i] == doctest::Approx(one.losses[i]).epsilon(tolerance));
  CHECK(sharded.losses.back() < sharded.losses.front());
  CHECK(sharded.step.traces == 1);

  // Each device initializes only its shard of the parameters and the optimizer state, without
  // communication.
  const auto mine = local_bytes(sharded, layout);
  CHECK(sharded.init.sent_bytes == 0);
  CHECK(sharded.state.sent_bytes == 0);
  CHECK(sharded.state.argument_bytes == mine);
  CHECK(sharded.init.peak_bytes >= mine);
  CHECK(sharded.state.peak_bytes <= 2 * mine + 64 * 64);
  const auto ids_and_keys = 8 * 16 * 4 + 8 * 2 * 4, count = 4;
  CHECK(sharded.step.argument_bytes <= 3 * mine + ids_and_keys + count);

  // With and without vmap, and with and without dropout: the same bytes communicated and the same
  // peak.
  const auto mapped = on_mesh(layout), unmapped = sharding::run(layout, sizes(0), 1, loss_at_once);
  CHECK(mapped.losses[0] == doctest::Approx(unmapped.losses[0]).epsilon(1e-6));
  CHECK(mapped.step.sent_bytes == unmapped.step.sent_bytes);
  CHECK(mapped.step.peak_bytes == unmapped.step.peak_bytes);
  CHECK(sharded.step.sent_bytes == mapped.step.sent_bytes);
  return {mapped, mine};
}

}  // namespace

TEST_CASE(
    "overview: data parallel, fully sharded and mixed "
    "precision match one device, with the planned bytes") {
  const auto dp = check(sharding::data_parallel(), 1e-5);
  // One all-reduce of the gradients and the loss over all devices.
  CHECK(dp.ran.step.sent_bytes == 2 * 7 / 8. * double(dp.mine + 4));

  const auto fsdp = check(sharding::fully_sharded(), 1e-5);
  CHECK(fsdp.mine < dp.mine / 7);
  CHECK(fsdp.ran.step.peak_bytes < dp.ran.step.peak_bytes);

  const auto mixed = check(sharding::mixed_precision(), 1e-2);
  CHECK(mixed.mine == fsdp.mine);
  // Half of the bytes, except for the loss.
  CHECK(mixed.ran.step.sent_bytes < 0.51 * fsdp.ran.step.sent_bytes);
}
TEST_CASE(
    "overview: tensor parallel matches one device "
    "and initializes less than a quarter of the memory") {
  const auto tp = check(sharding::tensor_parallel(2), 1e-5);
  CHECK(tp.ran.init.peak_bytes < on_mesh(sharding::data_parallel()).init.peak_bytes / 4);
}
TEST_CASE(
    "overview: checkpointed layers, "
    "chunked losses and microbatches have the losses of one device") {
  auto small = sizes(0.1);
  auto losses = [&](const Layout& layout, sharding::BatchLoss loss) {
    return sharding::run(layout, small, 2, loss).losses;
  };
  auto agree = [&](sharding::BatchLoss loss, const std::vector<Layout>& layouts) {
    const auto expected = losses(sharding::one_device(), loss);
    for (auto& layout : layouts) {
      CAPTURE(layout.name);
      const auto got = losses(layout, loss);
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(got[i] ==
              doctest::Approx(expected[i]).epsilon(layout.name == "mixed precision" ? 1e-2 : 1e-5));
    }
  };
  agree(chunked_loss, {sharding::fully_sharded(), sharding::tensor_parallel(2)});
  small.config.gradient_checkpointing = true;
  agree(sharding::train_batch_loss, {sharding::tensor_parallel(2)});
  agree(chunked_loss, {sharding::mixed_precision()});
  small.Batch = Axis("batch", 16);
  agree(accumulated_loss, {sharding::data_parallel(), sharding::tensor_parallel(2)});
  // Gradients are summed over the microbatches first and reduced once.
  CHECK(sharding::run(sharding::data_parallel(), small, 1, accumulated_loss).step.sent_bytes ==
        sharding::run(sharding::data_parallel(), small, 1).step.sent_bytes);
}
