// Models of folders of Hugging Face, by their architecture.
#pragma once
#include <string>

#include "examples/models/gpt2.h"
#include "examples/models/llama.h"
#include "haliax/huggingface.h"

namespace models {

inline GPT2Config gpt2_config(const ModelConfig& c) {
  return {
      .vocab_size = c.get<std::int64_t>("vocab_size"),
      .n_positions = c.get<std::int64_t>("n_positions"),
      .n_embd = c.get<std::int64_t>("n_embd"),
      .n_layer = c.get<std::int64_t>("n_layer"),
      .n_head = c.get<std::int64_t>("n_head"),
      .n_inner = c.get("n_inner", std::int64_t(0)),
      .activation_function = nn::activation(c.get("activation_function", std::string("gelu_new"))),
      .layer_norm_epsilon = c.get("layer_norm_epsilon", 1e-5),
      .initializer_range = c.get("initializer_range", 0.02)};
}
inline LlamaConfig llama_config(const ModelConfig& c) {
  const auto heads = c.get<std::int64_t>("num_attention_heads"),
             embed = c.get<std::int64_t>("hidden_size");
  LlamaConfig out{.vocab_size = c.get<std::int64_t>("vocab_size"),
                  .hidden_size = embed,
                  .intermediate_size = c.get<std::int64_t>("intermediate_size"),
                  .num_hidden_layers = c.get<std::int64_t>("num_hidden_layers"),
                  .num_attention_heads = heads,
                  .num_key_value_heads = c.get("num_key_value_heads", heads),
                  .head_dim = c.get("head_dim", embed / heads),
                  .max_position_embeddings = c.get("max_position_embeddings", std::int64_t(2048)),
                  .rms_norm_eps = c.get("rms_norm_eps", 1e-6),
                  .rope_theta = c.get("rope_theta", 10000.),
                  .tie_word_embeddings = c.get("tie_word_embeddings", false),
                  .initializer_range = c.get("initializer_range", 0.02)};
  // Newer files have all numbers of rotary positions in one object.
  for (auto* key : {"rope_scaling", "rope_parameters"}) {
    if (!c.has(key)) continue;
    const auto rope = c.get<ModelConfig>(key);
    out.rope_theta = rope.get("rope_theta", out.rope_theta);
    const auto type = rope.get("rope_type", std::string("default"));
    if (type == "default") continue;
    if (type != "llama3")
      throw Error("[llama] rope_type is " + type + " in " + c.source() +
                  "; supported are default and llama3");
    out.rope_scaling = RopeScaling{
        .factor = rope.get<double>("factor"),
        .low_freq_factor = rope.get<double>("low_freq_factor"),
        .high_freq_factor = rope.get<double>("high_freq_factor"),
        .original_max_position_embeddings = rope.get<double>("original_max_position_embeddings")};
  }
  return out;
}

// Loads the weights of a folder, converted to a dtype of floats.
template <class Model>
Model pretrained(const std::string& folder, Model like, DType dtype,
                 const std::string& base_prefix) {
  auto cast = [&](const NamedArray& a) { return is_float(a.dtype()) ? a.astype(dtype) : a; };
  return load_pretrained(folder, tree_map(cast, like), {.base_prefix = base_prefix});
}
// Returns f(model), for the model in a folder.
template <class F> auto with_pretrained(const std::string& folder, DType dtype, F f) {
  const auto config = load_config(folder);
  const auto architecture = config.architecture({"GPT2LMHeadModel", "LlamaForCausalLM"});
  // The initial weights are not computed: an array is computed when it is read.
  if (architecture == "GPT2LMHeadModel")
    return f(pretrained(folder, GPT2LMHeadModel::init(gpt2_config(config), random::key(0)), dtype,
                        "transformer"));
  return f(
      pretrained(folder, LlamaForCausalLM::init(llama_config(config), random::key(0)), dtype, ""));
}

// Return an empty cache for one sequence of at most `length` tokens.
inline nn::KVCache cache_of(const GPT2LMHeadModel& m, std::int64_t length, DType dtype) {
  if (length > m.config.n_positions)
    throw Error("[generate] prompt and new tokens are " + std::to_string(length) +
                ", but the model has " + std::to_string(m.config.n_positions) + " positions");
  return m.cache({}, dtype);
}
inline nn::KVCache cache_of(const LlamaForCausalLM& m, std::int64_t length, DType dtype) {
  return m.cache(length, {}, dtype);
}

}  // namespace models
