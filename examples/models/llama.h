// Llama 3: rotary positions, groups of heads that share keys, RMS norms, SwiGLU.
//
// Formulas: Touvron et al. 2023 (arXiv 2302.13971) and Dubey et al. 2024 (arXiv 2407.21783);
// rotary positions: Su et al. 2021 (arXiv 2104.09864); shared keys: Ainslie et al. 2023
// (arXiv 2305.13245); SwiGLU: Shazeer 2020 (arXiv 2002.05202). The order of features in rotary
// positions and the scaling of Llama 3 are those of the class LlamaForCausalLM of transformers,
// whose names of tensors are the names of the fields. The model has no batch axis: arrays simply
// have it. Mixtral and Qwen3-MoE (mixtral.h) have other layers in the same model.
#pragma once
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "examples/models/packed.h"
#include "haliax/haliax.h"

namespace models {

using namespace haliax;

// Lowers frequencies for sequences longer than in pretraining: `rope_type` "llama3".
struct RopeScaling {
  static constexpr bool is_static = true;
  double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
  double original_max_position_embeddings = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// The fields have the names of config.json.
struct LlamaConfig {
  static constexpr bool is_static = true;
  std::int64_t vocab_size = 128256, hidden_size = 2048, intermediate_size = 8192;
  std::int64_t num_hidden_layers = 16, num_attention_heads = 32, num_key_value_heads = 8;
  std::int64_t head_dim = 64, max_position_embeddings = 131072;
  double rms_norm_eps = 1e-5;
  double rope_theta = 500000;
  std::optional<RopeScaling> rope_scaling = {};
  bool tie_word_embeddings = false;
  bool qk_norm = false;  // norms of queries and keys over the features of a head, as in Qwen3
  // Standard deviation of the initial weights; 0: that of nn::Linear and nn::Embedding.
  double initializer_range = 0.02;
  bool operator==(const LlamaConfig&) const = default;

  Axis Vocab() const { return {"vocab", vocab_size}; }
  Axis Layers() const { return {"layers", num_hidden_layers}; }
  Axis Embed() const { return {"embed", hidden_size}; }
  Axis Mlp() const { return {"mlp", intermediate_size}; }
  // The heads of a group share keys and values.
  Axis KvHeads() const { return {"kv_heads", num_key_value_heads}; }
  Axis Group() const { return {"group", num_attention_heads / num_key_value_heads}; }
  Axis HeadSize() const { return {"head_size", head_dim}; }
  nn::NormOptions norm() const { return {.eps = rms_norm_eps, .use_bias = false}; }
  // Initializes a projection without a bias.
  nn::Linear linear(const AxisSpec& In, const AxisSpec& Out, const Key& key) const {
    double scale = initializer_range;
    for (auto& axis : In.axes()) scale *= std::sqrt(double(axis.size));
    return nn::Linear::init(In, Out, key,
                            {.use_bias = false, .init_scale = initializer_range ? scale : 1});
  }
};

// Returns the angle per position of each pair of features: (half)
inline NamedArray rotary_frequencies(const LlamaConfig& c) {
  Axis Half("half", c.head_dim / 2);
  auto frequency = exp(arange(Half) * (-std::log(c.rope_theta) / double(Half.size)));
  if (!c.rope_scaling) return frequency;
  // The share of the original frequency: 1 for short waves, 0 for long ones, linear in between.
  auto& s = *c.rope_scaling;
  auto waves = s.original_max_position_embeddings / (2 * std::numbers::pi) * frequency;
  auto share = clip((waves - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor), 0., 1.);
  return frequency * (share + (1. - share) / s.factor);
}
// Rotates each pair of features (i, i + head_dim / 2) by an angle proportional to the position.
// x (..., pos, head_size), positions (..., pos) -> the axes of x
inline NamedArray rotary(const LlamaConfig& c, const NamedArray& x, const NamedArray& positions) {
  auto frequency = rotary_frequencies(c);
  Axis Half = frequency.resolve_axis("half");
  auto angle = broadcast_axis(positions, Half) * frequency;
  auto cosine = cos(angle).astype(x.dtype()), sine = sin(angle).astype(x.dtype());
  auto pair = unbind(unflatten_axis(x, "head_size", {Axis("pair", 2), Half}), "pair");
  auto rotated = stack("pair", {pair[0] * cosine - pair[1] * sine,  //
                                pair[1] * cosine + pair[0] * sine});
  return flatten_axes(rotated, {"pair", "half"}, "head_size");
}

struct LlamaAttention {
  nn::Linear q_proj, k_proj, v_proj;          // (embed) -> (kv_heads, [group,] head_size)
  nn::Linear o_proj;                          // (kv_heads, group, head_size) -> (embed)
  std::optional<nn::RmsNorm> q_norm, k_norm;  // over head_size
  LlamaConfig config;

  static LlamaAttention init(const LlamaConfig& c, const Key& key) {
    auto [k_q, k_k, k_v, k_o] = random::split<4>(key);
    AxisSpec queries{c.KvHeads(), c.Group(), c.HeadSize()}, keys{c.KvHeads(), c.HeadSize()};
    std::optional<nn::RmsNorm> norm;
    if (c.qk_norm) norm = nn::RmsNorm::init(c.HeadSize(), c.norm());
    return {c.linear(c.Embed(), queries, k_q),
            c.linear(c.Embed(), keys, k_k),
            c.linear(c.Embed(), keys, k_v),
            c.linear(queries, c.Embed(), k_o),
            norm,
            norm,
            c};
  }
  // x (..., pos, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto positions = arange(Pos);
    return attend(queries(x, positions), rename(keys(x, positions), Pos, KeyPos),
                  rename(v_proj(x), Pos, KeyPos), nn::causal_mask(Pos, KeyPos));
  }
  // The same for packed sequences. Rotary positions matter only within a document.
  NamedArray operator()(const NamedArray& x, const NamedArray& segments) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto positions = arange(Pos);
    return attend(queries(x, positions), rename(keys(x, positions), Pos, KeyPos),
                  rename(v_proj(x), Pos, KeyPos), packed_mask(segments));
  }
  // The same for positions after the cached ones; returns the extended cache too.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto Pos = x.resolve_axis("pos");
    auto positions = cache.positions(Pos);
    auto next = cache.append(keys(x, positions), v_proj(x), Pos, count);
    return {attend(queries(x, positions), next.keys, next.values, cache.mask(Pos)), next};
  }

 private:
  NamedArray queries(const NamedArray& x, const NamedArray& positions) const {
    auto q = q_proj(x);
    return rotary(config, q_norm ? (*q_norm)(q) : q, positions);
  }
  NamedArray keys(const NamedArray& x, const NamedArray& positions) const {
    auto k = k_proj(x);
    return rotary(config, k_norm ? (*k_norm)(k) : k, positions);
  }
  NamedArray attend(const NamedArray& q, const NamedArray& k, const NamedArray& v,
                    const NamedArray& mask) const {
    return o_proj(nn::dot_product_attention("key_pos", "head_size", q, k, v, {.mask = mask}));
  }
};

struct LlamaMLP {
  using Config = LlamaConfig;
  nn::Linear gate_proj, up_proj, down_proj;

  static LlamaMLP init(const LlamaConfig& c, const Key& key) {
    auto [k_gate, k_up, k_down] = random::split<3>(key);
    return {c.linear(c.Embed(), c.Mlp(), k_gate), c.linear(c.Embed(), c.Mlp(), k_up),
            c.linear(c.Mlp(), c.Embed(), k_down)};
  }
  // Saves gate and up for the gradient, and recomputes their elementwise product, which is as large
  // as one of them.
  NamedArray operator()(const NamedArray& x) const {
    auto gated = [this](const NamedArray& gate, const NamedArray& up) {
      return down_proj(nn::silu(gate) * up);
    };
    return checkpoint(gated)(gate_proj(x), up_proj(x));
  }
};

// A layer with the block `Mlp` after the attention.
template <class Mlp> struct DecoderLayer {
  using Config = typename Mlp::Config;
  nn::RmsNorm input_layernorm;
  LlamaAttention self_attn;
  nn::RmsNorm post_attention_layernorm;
  Mlp mlp;

  static DecoderLayer init(const Config& c, const Key& key) {
    auto [k_attention, k_mlp] = random::split<2>(key);
    return {nn::RmsNorm::init(c.Embed(), c.norm()), LlamaAttention::init(c, k_attention),
            nn::RmsNorm::init(c.Embed(), c.norm()), Mlp::init(c, k_mlp)};
  }
  NamedArray operator()(const NamedArray& x) const {
    auto h = x + self_attn(input_layernorm(x));
    return h + mlp(post_attention_layernorm(h));
  }
  NamedArray operator()(const NamedArray& x, const NamedArray& segments) const {
    auto h = x + self_attn(input_layernorm(x), segments);
    return h + mlp(post_attention_layernorm(h));
  }
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [attended, next] = self_attn(input_layernorm(x), cache, count);
    auto h = x + attended;
    return {h + mlp(post_attention_layernorm(h)), next};
  }
  // Names in checkpoints, if the block has other ones than `mlp`.
  static auto state_names() requires requires { Mlp::layer_names(); }
  { return Mlp::layer_names(); }
};
using LlamaDecoderLayer = DecoderLayer<LlamaMLP>;

template <class Layer> struct DecoderModel {
  using Config = typename Layer::Config;
  nn::Embedding embed_tokens;
  nn::Stacked<Layer> layers;
  nn::RmsNorm norm;

  static DecoderModel init(const Config& c, const Key& k_tokens, const Key& k_layers) {
    nn::EmbeddingOptions table;
    if (c.initializer_range) table.init_scale = c.initializer_range * double(c.hidden_size);
    auto layer = [c](const Key& k) { return Layer::init(c, k); };
    auto keys = random::split(k_layers, c.Layers());
    return {nn::Embedding::init(c.Vocab(), c.Embed(), k_tokens, table),
            nn::Stacked<Layer>::init(c.Layers(), layer, keys),
            nn::RmsNorm::init(c.Embed(), c.norm())};
  }
  // ids (..., pos) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& ids) const {
    return norm(layers.fold(embed_tokens(ids)));
  }
  // The same for packed sequences; see packed.h.
  NamedArray operator()(const NamedArray& ids, const NamedArray& segments) const {
    return norm(layers.fold(embed_tokens(ids), segments));
  }
  // The same for ids after the cached ones. The cache has the layer axis first.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& ids, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [x, next] = layers.scan(embed_tokens(ids), cache, count);
    return {norm(x), next};
  }
};

template <class Layer> struct DecoderForCausalLM {
  using Config = typename Layer::Config;
  DecoderModel<Layer> model;
  std::optional<nn::Linear> lm_head;  // (embed) -> (vocab); none: the table of the tokens
  Config config;

  static DecoderForCausalLM init(const Config& c, const Key& key) {
    auto [k_tokens, k_layers, k_head] = random::split<3>(key);
    DecoderForCausalLM m{DecoderModel<Layer>::init(c, k_tokens, k_layers), {}, c};
    if (!c.tie_word_embeddings) m.lm_head = c.linear(c.Embed(), c.Vocab(), k_head);
    return m;
  }
  // Returns the weight of the head: (vocab, embed)
  const NamedArray& head() const { return lm_head ? lm_head->weight : model.embed_tokens.weight; }
  NamedArray logits(const NamedArray& x) const {
    return lm_head ? (*lm_head)(x) : model.embed_tokens.unembed(x);
  }
  // ids (..., pos) -> logits (..., pos, vocab)
  NamedArray operator()(const NamedArray& ids) const { return logits(model(ids)); }
  // Returns the mean loss of the next tokens. It materializes no logits.
  NamedArray loss(const NamedArray& ids) const {
    return nn::linear_next_token_loss("pos", model(ids), head(), ids, "embed", "vocab").loss;
  }
  // The same for packed sequences. The last token of a document predicts nothing.
  NamedArray loss(const NamedArray& ids, const NamedArray& segments) const {
    return nn::linear_cross_entropy(model(ids, segments), head(), packed_targets(ids, segments),
                                    "embed", "vocab")
        .loss;
  }

  // Returns an empty cache of `length` positions for generation. `Batch` holds the batch axes.
  nn::KVCache cache(std::int64_t length, const Axes& Batch = {}, DType dtype = DType::f32) const {
    Axes outer{config.Layers()};
    outer.insert(outer.end(), Batch.begin(), Batch.end());
    return nn::KVCache::init(Axis("key_pos", length), {config.KvHeads(), config.HeadSize()}, outer,
                             dtype);
  }
  // Returns the logits of ids (..., pos) after the cached ones, of which the first `count` are
  // valid, and the extended cache.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& ids, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [x, next] = model(ids, cache, count);
    return {logits(x), next};
  }
};
using LlamaForCausalLM = DecoderForCausalLM<LlamaDecoderLayer>;

}  // namespace models
