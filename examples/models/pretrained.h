// Models of folders of Hugging Face, by their architecture.
#pragma once
#include <string>
#include <vector>

#include "examples/models/gpt2.h"
#include "examples/models/llama.h"
#include "examples/models/mixtral.h"
#include "haliax/huggingface.h"

namespace models {

// Raises an error if a configuration has an option that the model lacks.
inline void refuse(bool required, const ModelConfig& c, const std::string& what,
                   const std::string& supported) {
  if (required)
    throw Error("[" + c.get("model_type", std::string("model")) + "] " + c.source() + " has " +
                what + "; " + supported);
}
// Returns a size of a configuration. Raises unless it is positive.
inline std::int64_t size_of(const ModelConfig& c, const char* key) {
  const auto size = c.get<std::int64_t>(key);
  refuse(size < 1, c, std::string(key) + " " + std::to_string(size), "it must be at least 1");
  return size;
}
// Raises unless `heads` is a positive multiple of `groups`.
inline void check_heads(const ModelConfig& c, std::int64_t heads, std::int64_t groups) {
  refuse(
      groups < 1 || heads < 1 || heads % groups != 0, c,
      std::to_string(heads) + " attention heads, and " + std::to_string(groups) + " heads of keys",
      "the first number must be a positive multiple of the second");
}
// Raises unless `heads` divides `features`.
inline void check_features(const ModelConfig& c, std::int64_t heads, std::int64_t features) {
  refuse(features % heads != 0, c,
         std::to_string(features) + " features, and " + std::to_string(heads) + " attention heads",
         "the first number must be a multiple of the second");
}
inline GPT2Config gpt2_config(const ModelConfig& c) {
  refuse(!c.get("tie_word_embeddings", true), c, "a head of its own",
         "tie_word_embeddings must be true");
  refuse(!c.get("scale_attn_weights", true), c, "attention without a scale",
         "scale_attn_weights must be true");
  refuse(c.get("scale_attn_by_inverse_layer_idx", false), c, "attention scaled by the layer",
         "scale_attn_by_inverse_layer_idx must be false");
  refuse(c.get("add_cross_attention", false), c, "cross attention",
         "add_cross_attention must be false");
  if (c.has("n_inner")) size_of(c, "n_inner");
  const auto heads = c.get<std::int64_t>("n_head");
  check_heads(c, heads, heads);
  check_features(c, heads, size_of(c, "n_embd"));
  return {
      .vocab_size = size_of(c, "vocab_size"),
      .n_positions = size_of(c, "n_positions"),
      .n_embd = size_of(c, "n_embd"),
      .n_layer = size_of(c, "n_layer"),
      .n_head = c.get<std::int64_t>("n_head"),
      .n_inner = c.get("n_inner", std::int64_t(0)),
      .activation_function = nn::activation(c.get("activation_function", std::string("gelu_new"))),
      .layer_norm_epsilon = c.get("layer_norm_epsilon", 1e-5),
      .initializer_range = c.get("initializer_range", 0.02),
      .embd_pdrop = c.get("embd_pdrop", 0.1),
      .attn_pdrop = c.get("attn_pdrop", 0.1),
      .resid_pdrop = c.get("resid_pdrop", 0.1),
      .tie_word_embeddings = c.get("tie_word_embeddings", true),
      .scale_attn_by_inverse_layer_idx = c.get("scale_attn_by_inverse_layer_idx", false),
      .reorder_and_upcast_attn = c.get("reorder_and_upcast_attn", false)};
}
inline LlamaConfig llama_config(const ModelConfig& c) {
  const auto heads = c.get<std::int64_t>("num_attention_heads"), embed = size_of(c, "hidden_size"),
             groups = c.get("num_key_value_heads", heads);
  check_heads(c, heads, groups);
  if (!c.has("head_dim")) check_features(c, heads, embed);
  for (auto* key : {"attention_bias", "mlp_bias"})
    refuse(c.get(key, false), c, "biases", std::string(key) + " must be false");
  const auto act = c.get("hidden_act", std::string("silu"));
  refuse(act != "silu" && act != "swish", c, "the activation " + act, "hidden_act must be silu");
  if (c.has("head_dim")) size_of(c, "head_dim");
  LlamaConfig out{.vocab_size = size_of(c, "vocab_size"),
                  .hidden_size = embed,
                  .intermediate_size = size_of(c, "intermediate_size"),
                  .num_hidden_layers = size_of(c, "num_hidden_layers"),
                  .num_attention_heads = heads,
                  .num_key_value_heads = groups,
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
    refuse(rope.get("partial_rotary_factor", 1.) != 1, c, "features without rotary positions",
           "partial_rotary_factor must be 1");
    // Files of 2023 have `type`.
    const auto type = rope.get("rope_type", rope.get("type", std::string("default")));
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

inline MixtralConfig mixtral_config(const ModelConfig& c) {
  refuse(c.has("sliding_window"), c, "a sliding window", "sliding_window must be null");
  auto sizes = c;
  if (!c.has("rope_theta")) sizes.set("rope_theta", 1e6);
  if (!c.has("rms_norm_eps")) sizes.set("rms_norm_eps", 1e-5);
  return {llama_config(sizes), c.get("num_local_experts", std::int64_t(8)),
          c.get("num_experts_per_tok", std::int64_t(2)), true};
}
inline MixtralConfig qwen3_moe_config(const ModelConfig& c) {
  const auto dense = c.get("mlp_only_layers", std::vector<int>());
  refuse(c.get("decoder_sparse_step", 1) != 1 || !dense.empty(), c, "layers without experts",
         "decoder_sparse_step must be 1, and mlp_only_layers empty");
  refuse(c.get("use_sliding_window", false), c, "a sliding window",
         "use_sliding_window must be false");
  auto sizes = llama_config(c);
  sizes.intermediate_size = size_of(c, "moe_intermediate_size");
  sizes.qk_norm = true;
  return {sizes, c.get_any<std::int64_t>({"num_experts", "num_local_experts"}),
          c.get<std::int64_t>("num_experts_per_tok"), c.get("norm_topk_prob", false)};
}

// Loads the weights of a folder, converted to a dtype of floats.
template <class Model>
Model pretrained(const std::string& folder, Model like, DType dtype,
                 const std::string& base_prefix) {
  auto cast = [&](const NamedArray& a) { return is_float(a.dtype()) ? a.astype(dtype) : a; };
  return load_pretrained(folder, tree_map(cast, like), {.base_prefix = base_prefix});
}
// Returns the configuration of a folder. Its architecture is the class with a head, also if the
// file names only the type of the model, or the class without a head. Raises if there is no model
// of its architecture here.
inline ModelConfig config_of(const std::string& folder) {
  struct Class {
    const char *with_head, *without_head, *model_type;
  };
  const Class classes[] = {{"GPT2LMHeadModel", "GPT2Model", "gpt2"},
                           {"LlamaForCausalLM", "LlamaModel", "llama"},
                           {"MixtralForCausalLM", "MixtralModel", "mixtral"},
                           {"Qwen3MoeForCausalLM", "Qwen3MoeModel", "qwen3_moe"}};
  auto config = load_config(folder);
  const auto name = config.architecture();
  std::vector<std::string> known;
  for (auto& c : classes) {
    known.emplace_back(c.with_head);
    if (name == c.without_head || name == c.model_type)
      config.set("architectures", std::vector<std::string>{c.with_head});
  }
  config.architecture(known);
  return config;
}
// Returns f(model), for the model in a folder.
template <class F> auto with_pretrained(const std::string& folder, DType dtype, F f) {
  const auto config = config_of(folder);
  const auto architecture = config.architecture();
  // The initial weights are not computed: an array is computed when it is read.
  const auto key = random::key(0);
  auto decoder = [&](const auto& like) { return f(pretrained(folder, like, dtype, "model")); };
  if (architecture == "GPT2LMHeadModel")
    return f(
        pretrained(folder, GPT2LMHeadModel::init(gpt2_config(config), key), dtype, "transformer"));
  if (architecture == "MixtralForCausalLM")
    return decoder(MixtralForCausalLM::init(mixtral_config(config), key));
  if (architecture == "Qwen3MoeForCausalLM")
    return decoder(Qwen3MoeForCausalLM::init(qwen3_moe_config(config), key));
  return decoder(LlamaForCausalLM::init(llama_config(config), key));
}

// Raise if a model has no positions for sequences of `length` tokens.
inline void check_length(const GPT2LMHeadModel& m, std::int64_t length) {
  if (length > m.config.n_positions)
    throw Error("[gpt2] sequences have " + std::to_string(length) + " tokens, but the model has " +
                std::to_string(m.config.n_positions) + " positions; use fewer tokens");
}
template <class Layer> void check_length(const DecoderForCausalLM<Layer>&, std::int64_t) {}

// Raises if the vocabulary of a model lacks a token: its embedding would be NaN.
template <class Model> void check_tokens(const Model& m, const std::vector<int>& ids) {
  for (int id : ids)
    if (id >= m.config.vocab_size)
      throw Error("[tokenizer] token " + std::to_string(id) + " is not among the " +
                  std::to_string(m.config.vocab_size) +
                  " tokens of the model; use the tokenizer of the model");
}

// Return an empty cache for one sequence of at most `length` tokens.
inline nn::KVCache cache_of(const GPT2LMHeadModel& m, std::int64_t length, DType dtype) {
  check_length(m, length);
  return m.cache({}, dtype);
}
template <class Layer>
nn::KVCache cache_of(const DecoderForCausalLM<Layer>& m, std::int64_t length, DType dtype) {
  return m.cache(length, {}, dtype);
}

}  // namespace models
