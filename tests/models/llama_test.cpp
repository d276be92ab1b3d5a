// Llama of examples/models against transformers.
#include "examples/models/llama.h"

#include "models/recorded.h"

using namespace haliax;
using namespace haliax::testing;
using Model = models::LlamaForCausalLM;

namespace {

RecordedModel<Model> recorded(const char* name, const models::LlamaConfig& c) {
  return recorded_decoder(name, Model::init(c, random::key(0)), c.Vocab());
}
// Two heads per group, scaled rotary positions, a head of its own.
RecordedModel<Model> llama() {
  return recorded("llama",
                  {.vocab_size = 99,
                   .hidden_size = 32,
                   .intermediate_size = 48,
                   .num_hidden_layers = 2,
                   .num_attention_heads = 4,
                   .num_key_value_heads = 2,
                   .head_dim = 16,
                   .rms_norm_eps = 1e-6,
                   .rope_theta = 10000,
                   .rope_scaling = models::RopeScaling{.factor = 8,
                                                       .low_freq_factor = 1,
                                                       .high_freq_factor = 4,
                                                       .original_max_position_embeddings = 64}});
}
// One head per group, plain rotary positions, a tied head.
RecordedModel<Model> tied() {
  return recorded("llama_tied", {.vocab_size = 99,
                                 .hidden_size = 32,
                                 .intermediate_size = 48,
                                 .num_hidden_layers = 2,
                                 .num_attention_heads = 4,
                                 .num_key_value_heads = 4,
                                 .head_dim = 8,
                                 .rms_norm_eps = 1e-6,
                                 .rope_theta = 10000,
                                 .tie_word_embeddings = true});
}

}  // namespace

TEST_CASE("llama reads and writes the names of transformers") {
  check_names(llama());
  check_names(tied());
}
TEST_CASE("llama has the logits, the loss and the gradients of transformers") {
  check_values(llama());
  check_values(tied());
}
TEST_CASE("llama trains as transformers does") {
  check_training(llama());
  check_training(tied());
}
TEST_CASE("llama has the same values on meshes") {
  check_layouts(llama(), model_layouts({"kv_heads", "mlp", "vocab"}, "pos"));
}
TEST_CASE("llama has the same logits with a cache") {
  check_decoder_cache(llama(),
                      [](const Model& m, const Axis& Batch) { return m.cache(16, {Batch}); });
}
TEST_CASE("llama draws weights with one deviation, or with that of each layer") {
  models::LlamaConfig c{
      .vocab_size = 512, .hidden_size = 64, .intermediate_size = 128, .num_hidden_layers = 1};
  auto check = [](const NamedArray& x, double expected) {
    CHECK(x.std_dev().item() / expected == doctest::Approx(1).epsilon(0.02));
  };
  for (double range : {0.05, 0.}) {
    CAPTURE(range);
    c.initializer_range = range;
    const auto m = Model::init(c, random::key(0));
    check(m.model.embed_tokens.weight, range ? range : 1. / 64);
    check(m.lm_head->weight, range ? range : 1. / 8);
  }
}
