// Mixtral and Qwen3-MoE of examples/models against transformers.
#include "examples/models/mixtral.h"

#include "models/recorded.h"

using namespace haliax;
using namespace haliax::testing;

namespace {

models::LlamaConfig sizes(std::int64_t expert, bool qk_norm) {
  return {.vocab_size = 99,
          .hidden_size = 32,
          .intermediate_size = expert,
          .num_hidden_layers = 2,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .head_dim = 8,
          .rms_norm_eps = 1e-6,
          .rope_theta = 1e6,
          .qk_norm = qk_norm};
}
template <class Model>
RecordedModel<Model> recorded(const char* name, const models::MixtralConfig& c) {
  return recorded_decoder(name, Model::init(c, random::key(0)), c.Vocab());
}
// 4 experts.
auto mixtral() { return recorded<models::MixtralForCausalLM>("mixtral", {sizes(24, false), 4, 2}); }
// 8 experts, norms of queries and keys.
auto qwen() { return recorded<models::Qwen3MoeForCausalLM>("qwen3_moe", {sizes(12, true), 8, 2}); }

template <class Model> void check_cached(const RecordedModel<Model>& r) {
  check_decoder_cache(r, [](const Model& m, const Axis& Batch) { return m.cache(16, {Batch}); });
}
double deviation(const NamedArray& a) { return std::sqrt(mean(square(a)).item()); }

}  // namespace

TEST_CASE("mixtral and qwen3_moe read and write the names of transformers") {
  check_names(mixtral());
  check_names(qwen());
}
TEST_CASE("mixtral has the logits, the loss and the gradients of transformers") {
  check_values(mixtral());
}
TEST_CASE("qwen3_moe has the logits, the loss and the gradients of transformers") {
  check_values(qwen());
}
TEST_CASE("mixtral and qwen3_moe train as transformers does") {
  check_training(mixtral());
  check_training(qwen());
}
TEST_CASE("mixtral and qwen3_moe have the same values on meshes") {
  // Not strict: tokens and experts are gathered for routing.
  auto layouts = model_layouts({"kv_heads", "mlp", "vocab"}, "pos", false);
  const ModelLayout by_experts{"data=2, experts=2",
                               Mesh{{{"data", 2}, {"experts", 2}}},
                               {{"embed", "data"}, {"experts", "experts"}},
                               {{"batch", "data"}, {"experts", "experts"}}};
  layouts.push_back(by_experts);
  check_layouts(mixtral(), layouts);
  check_layouts(qwen(), {layouts[1], by_experts});
}
TEST_CASE("mixtral and qwen3_moe have the same logits with a cache") {
  check_cached(mixtral());
  check_cached(qwen());
}
TEST_CASE("mixtral initializes all weights with the same standard deviation") {
  auto moe = models::MixtralConfig{sizes(256, false), 4, 2}.experts(random::key(0));
  for (auto& a : {moe.gate.weight, moe.up.weight, moe.down.weight, moe.router.weight})
    CHECK(std::abs(deviation(a) / 0.02 - 1) < 0.2);
}
