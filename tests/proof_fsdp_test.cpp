// FSDP: parameters cut along embed, the batch along itself, on two devices. What is sent is asserted to the byte.
#include <doctest/doctest.h>

#include "support/gpt2.h"

using namespace haliax;

namespace {

const testing::Gpt2 gpt({.seq_len = 16, .hidden_dim = 32, .num_layers = 4, .num_heads = 4, .tied = false}, 96,
                        16);  // so many tokens that it is cheaper to move weights than activations

auto gradients(const testing::Model& m, const NamedArray& ids) {  // inside the loss the batch is cut, and the weights are whole
  return value_and_grad(testing::under(Mapping{{"batch", "data"}}, testing::next_token_loss))(m, ids);
}
JitOptions on_two() { return {.mesh = Mesh{{{"data", 2}}}, .axis_resources = Mapping{{"embed", "data"}}}; }

}  // namespace

TEST_CASE("proof: fsdp sends each weight twice, each gradient once, and nothing else") {
  const auto model = gpt.init();
  const auto ids = gpt.ids();
  const auto step = named_jit(gradients, on_two());
  step(model, ids);

  // On a ring of two, gathering or reduce-scattering n bytes sends n / 2, and an all-reduce twice that.
  double forward = 0, backward = 0, scattered = 0, reduced = 4, layer = 0;  // 4: the loss
  Walk w = walk_of(model, {.paths = true});
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    const auto& a = *w.arrays[k];
    const auto& path = w.paths[k];
    const double bytes = double(a.nbytes());
    if (!a.has_axis("embed")) {  // whole everywhere: its gradient is summed
      reduced += bytes;
      continue;
    }
    // Gathered again for the gradient, in layers: weights, and the bias of the attention's result, to which the residual is added
    // again.
    const bool in_layer = a.has_axis("layers"), again = path.ends_with("weight") || path.ends_with("attn.c_proj.bias");
    forward += bytes / 2, scattered += bytes / 2;
    if (in_layer && again) backward += bytes / 2;
    if (in_layer) layer += bytes / double(gpt.config.num_layers);
  }
  CHECK(step.report().sent_bytes == forward + backward + scattered + reduced);

  double gathered = 0;
  for (auto& s : step.report().collectives) {
    CAPTURE(s.axes);
    if (s.kind == "all-gather") {
      gathered += s.bytes * s.turns;
      CHECK(s.bytes <= layer / 2);  // small ones go together: one layer's weights, or a table, never the model
      CHECK(s.axes.find("layers") == std::string::npos);
      CHECK(s.axes.find("batch") == std::string::npos);  // weights move, activations stay
    }
    CHECK(s.kind != "all-to-all");
  }
  CHECK(gathered == forward + backward);
}

TEST_CASE("proof: fsdp needs less on each device than one device does, and gives the same") {
  const auto model = gpt.init();
  const auto ids = gpt.ids();
  const auto two = named_jit(gradients, on_two());
  const auto one = jit(gradients);
  const auto got = flatten(two(model, ids)), want = flatten(one(model, ids));
  REQUIRE(got.size() == want.size());
  for (std::size_t k = 0; k < got.size(); ++k) {
    const auto a = got[k].doubles(), b = want[k].doubles();
    for (std::size_t i = 0; i < a.size(); ++i) REQUIRE(std::abs(a[i] - b[i]) <= 1e-6 * std::max(1., std::abs(b[i])));
  }
  CHECK(two.report().peak_bytes < one.report().peak_bytes);
}
