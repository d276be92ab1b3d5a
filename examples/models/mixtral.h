// Mixtral and Qwen3-MoE: Llama, with a mixture of experts in place of each MLP.
//
// Formulas: Jiang et al. 2024 (arXiv 2401.04088) and Yang et al. 2025 (arXiv 2505.09388). Names of
// tensors are those of the classes MixtralForCausalLM and Qwen3MoeForCausalLM of transformers,
// which store each expert as tensors of its own. Qwen3-MoE has norms of queries and keys
// (`qk_norm`). The losses have no auxiliary loss of the router.
#pragma once
#include <cmath>

#include "examples/models/llama.h"
#include "haliax/state_dict.h"

namespace models {

// `intermediate_size` is that of one expert.
struct MixtralConfig : LlamaConfig {
  std::int64_t num_local_experts = 8;    // experts in each layer
  std::int64_t num_experts_per_tok = 2;  // experts that each token is routed to
  bool norm_topk_prob = true;            // weights of the experts of a token sum to 1
  bool operator==(const MixtralConfig&) const = default;

  Axis Experts() const { return {"experts", num_local_experts}; }
  // Initializes the experts of a layer and their router.
  nn::MoE experts(const Key& key) const {
    const double inputs = double(hidden_size), hidden = double(intermediate_size);
    auto moe = nn::MoE::init(
        Experts(), Embed(), Mlp(), key,
        {.experts_per_token = num_experts_per_tok,
         .normalize = norm_topk_prob,
         .init_scale = initializer_range ? initializer_range * std::sqrt(inputs) : 1});
    // The factor is for `hidden_size` inputs, but this projection has `intermediate_size`.
    if (initializer_range) moe.down.weight = moe.down.weight * std::sqrt(hidden / inputs);
    return moe;
  }
};

// Adds an array with the axes of each expert in the order (out, in).
inline void expert_field(StateFields& fields, std::string_view name, nn::MoELinear& linear) {
  fields.array(name, linear.weight,
               {.split = {linear.Experts.name},
                .dims = std::vector<Names>{{linear.Out.name}, {linear.In.name}}});
}

struct MixtralSparseMoeBlock {
  using Config = MixtralConfig;
  nn::MoE moe;

  static MixtralSparseMoeBlock init(const MixtralConfig& c, const Key& key) {
    return {c.experts(key)};
  }
  // x (..., pos, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x) const { return moe(x); }
  static StateNames layer_names() { return {{"mlp", "block_sparse_moe"}}; }
  void state_fields(StateFields& fields) {
    fields.field("gate", moe.router);
    expert_field(fields, "experts.{}.w1.weight", moe.gate);
    expert_field(fields, "experts.{}.w2.weight", moe.down);
    expert_field(fields, "experts.{}.w3.weight", moe.up);
  }
};
using MixtralForCausalLM = DecoderForCausalLM<DecoderLayer<MixtralSparseMoeBlock>>;

struct Qwen3MoeSparseMoeBlock {
  using Config = MixtralConfig;
  nn::MoE moe;

  static Qwen3MoeSparseMoeBlock init(const MixtralConfig& c, const Key& key) {
    return {c.experts(key)};
  }
  // x (..., pos, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x) const { return moe(x); }
  void state_fields(StateFields& fields) {
    fields.field("gate", moe.router);
    expert_field(fields, "experts.{}.gate_proj.weight", moe.gate);
    expert_field(fields, "experts.{}.up_proj.weight", moe.up);
    expert_field(fields, "experts.{}.down_proj.weight", moe.down);
  }
};
using Qwen3MoeForCausalLM = DecoderForCausalLM<DecoderLayer<Qwen3MoeSparseMoeBlock>>;

}  // namespace models
