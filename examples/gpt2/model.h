// GPT-2, as in the Levanter introduction. The model has no batch axis: vmap adds it, or arrays
// simply have it.
#pragma once
#include <cmath>
#include <string>

#include "haliax/haliax.h"

namespace gpt2 {

using namespace haliax;

struct Gpt2Config {
  static constexpr bool is_static = true;
  std::int64_t seq_len = 1024, hidden_dim = 768, num_layers = 12, num_heads = 12, mlp_scale = 4;
  double initializer_range = 0.02;  // standard deviation of the initial weights
  double embed_pdrop = 0.1, attn_pdrop = 0.1, resid_pdrop = 0.1;
  double layer_norm_epsilon = 1e-5;
  // With tanh, as GPT-2 has it; nn::activation("relu") and others work too.
  nn::Activation activation = nn::gelu;
  bool tied = true;  // logits use the token embeddings, otherwise a matrix of their own
  bool scale_by_inverse_layer_idx = false;  // divides the scores of layer i by i + 1
  bool upcast_attention = false;            // computes scores and softmax in f32
  ScanCheckpoint gradient_checkpointing = {};

  Axis Pos() const { return {"position", seq_len}; }
  Axis Embed() const { return {"embed", hidden_dim}; }
  Axis Layers() const { return {"layers", num_layers}; }
  Axis Heads() const { return {"heads", num_heads}; }
  Axis HeadSize() const { return {"head_size", hidden_dim / num_heads}; }
  Axis Mlp() const { return {"mlp", hidden_dim * mlp_scale}; }
  // Returns the options of a projection with `inputs` inputs. Projections into the residual stream
  // are initialized smaller for more layers.
  nn::LinearOptions linear(std::int64_t inputs, bool to_residual) const {
    double scale = initializer_range * std::sqrt(double(inputs));
    return {.out_first = false,
            .init_scale = to_residual ? scale / std::sqrt(2. * double(num_layers)) : scale};
  }
  void check() const;  // raises for invalid sizes
  friend bool operator==(const Gpt2Config&, const Gpt2Config&) = default;
};

inline void Gpt2Config::check() const {
  for (auto [name, size] : {std::pair{"seq_len", seq_len},
                            {"hidden_dim", hidden_dim},
                            {"num_layers", num_layers},
                            {"num_heads", num_heads},
                            {"mlp_scale", mlp_scale}})
    if (size < 1)
      throw Error("[gpt2] " + std::string(name) + " is " + std::to_string(size) +
                  "; it must be at least 1");
  if (hidden_dim % num_heads)
    throw Error("[gpt2] hidden_dim " + std::to_string(hidden_dim) + " is not divisible by " +
                std::to_string(num_heads) + " heads; it must be a multiple");
}

struct Gpt2Attention {
  nn::Linear c_attn;  // (embed) -> (qkv, heads, head_size)
  nn::Linear c_proj;  // (heads, head_size) -> (embed)
  nn::Dropout dropout;
  Gpt2Config config;

  static Gpt2Attention init(const Gpt2Config& config, const Key& key) {
    auto [k_attn, k_proj] = random::split<2>(key);
    auto Embed = config.Embed(), Heads = config.Heads(), HeadSize = config.HeadSize();
    return {.c_attn = nn::Linear::init(Embed, {Axis("qkv", 3), Heads, HeadSize}, k_attn,
                                       config.linear(Embed.size, false)),
            .c_proj =
                nn::Linear::init({Heads, HeadSize}, Embed, k_proj, config.linear(Embed.size, true)),
            .dropout = {config.attn_pdrop},
            .config = config};
  }

  // hidden_states (position, embed) -> (position, embed)
  NamedArray operator()(const NamedArray& hidden_states, const NamedArray& layer_idx,
                        const Key& key, bool inference) const {
    auto Pos = hidden_states.resolve_axis("position"), KeyPos = Pos.alias("key_position");
    auto qkv = c_attn(hidden_states).unbind("qkv");
    auto k = rename(qkv[1], Pos, KeyPos), v = rename(qkv[2], Pos, KeyPos);
    return attend(qkv[0], k, v, nn::causal_mask(Pos, KeyPos), layer_idx, key, inference);
  }
  // The same for positions after the cached ones, of which the first `count` are valid; returns the
  // extended cache too.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& hidden_states,
                                                const NamedArray& layer_idx,
                                                const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto Pos = hidden_states.resolve_axis("position");
    auto qkv = c_attn(hidden_states).unbind("qkv");
    auto next = cache.append(qkv[1], qkv[2], Pos, count);
    return {attend(qkv[0], next.keys, next.values, cache.mask(Pos), layer_idx, {}, true), next};
  }

 private:
  // Attends where mask (position, key_position) is true: q (position, ...), k, v (key_position,
  // ...) -> (position, embed)
  NamedArray attend(NamedArray q, NamedArray k, const NamedArray& v, const NamedArray& mask,
                    const NamedArray& layer_idx, const Key& key, bool inference) const {
    auto HeadSize = config.HeadSize();
    auto dtype = q.dtype();
    // Scales the queries first, so that the scores stay small.
    double scale = 1 / std::sqrt(double(HeadSize.size));
    q = config.scale_by_inverse_layer_idx ? q * astype(scale / (layer_idx + 1.), dtype) : q * scale;
    if (config.upcast_attention) {
      q = q.astype(DType::f32);
      k = k.astype(DType::f32);
    }

    auto scores = dot(q, k, HeadSize);  // (position, heads, key_position)
    scores = where(mask, scores, -1e9);
    auto weights = softmax(scores, "key_position").astype(dtype);
    weights = dropout(weights, key, inference);
    return c_proj(dot(weights, v, "key_position"));
  }
};

struct Gpt2Mlp {
  nn::Linear c_fc, c_proj;  // (embed) -> (mlp) -> (embed)
  nn::Activation act;

  static Gpt2Mlp init(const Gpt2Config& config, const Key& key) {
    auto [k_fc, k_proj] = random::split<2>(key);
    return {.c_fc = nn::Linear::init(config.Embed(), config.Mlp(), k_fc,
                                     config.linear(config.hidden_dim, false)),
            .c_proj = nn::Linear::init(config.Mlp(), config.Embed(), k_proj,
                                       config.linear(config.Mlp().size, true)),
            .act = config.activation};
  }
  NamedArray operator()(const NamedArray& x) const { return c_proj(act(c_fc(x))); }
};

struct Gpt2Block {
  nn::LayerNorm ln_1;
  Gpt2Attention attn;
  nn::LayerNorm ln_2;
  Gpt2Mlp mlp;
  nn::Dropout resid_dropout;

  static Gpt2Block init(const Gpt2Config& config, const Key& key) {
    auto [k_attn, k_mlp] = random::split<2>(key);
    nn::NormOptions norm{.eps = config.layer_norm_epsilon};
    return {.ln_1 = nn::LayerNorm::init(config.Embed(), norm),
            .attn = Gpt2Attention::init(config, k_attn),
            .ln_2 = nn::LayerNorm::init(config.Embed(), norm),
            .mlp = Gpt2Mlp::init(config, k_mlp),
            .resid_dropout = {config.resid_pdrop}};
  }
  NamedArray operator()(const NamedArray& x, const NamedArray& layer_idx, const Key& key,
                        bool inference) const {
    auto [k1, k2, k3] = random::split<3>(key);
    auto y = x + resid_dropout(attn(ln_1(x), layer_idx, k1, inference), k2, inference);
    return y + resid_dropout(mlp(ln_2(y)), k3, inference);
  }
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const NamedArray& layer_idx,
                                                const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [attended, next] = attn(ln_1(x), layer_idx, cache, count);
    auto y = x + attended;
    return {y + mlp(ln_2(y)), next};
  }
};

struct Gpt2Transformer {
  nn::Stacked<Gpt2Block> blocks;
  nn::LayerNorm ln_f;

  static Gpt2Transformer init(const Gpt2Config& config, const Key& key) {
    auto Layers = config.Layers();
    auto block = [&](const Key& k) { return Gpt2Block::init(config, k); };
    auto blocks = nn::Stacked<Gpt2Block>::init(Layers, block, random::split(key, Layers));
    blocks.gradient_checkpointing = config.gradient_checkpointing;
    return {std::move(blocks),
            nn::LayerNorm::init(config.Embed(), {.eps = config.layer_norm_epsilon})};
  }
  NamedArray operator()(const NamedArray& x, const Key& key, bool inference) const {
    auto Layers = blocks.Layers;
    return ln_f(blocks.fold(x, arange(Layers), random::split(key, Layers), inference));
  }
  // The cache has the axis of the layers first.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [y, next] = blocks.scan(x, arange(blocks.Layers), cache, count);
    return {ln_f(y), next};
  }
};

struct Gpt2Embeddings {
  nn::Embedding token_embeddings, position_embeddings;  // (vocab, embed), (position, embed)
  nn::Dropout dropout;

  static Gpt2Embeddings init(const Axis& Vocab, const Gpt2Config& config, const Key& key) {
    auto [k_token, k_position] = random::split<2>(key);
    nn::EmbeddingOptions options{.init_scale =
                                     config.initializer_range * double(config.hidden_dim)};
    return {nn::Embedding::init(Vocab, config.Embed(), k_token, options),
            nn::Embedding::init(config.Pos(), config.Embed(), k_position, options),
            nn::Dropout{config.embed_pdrop}};
  }
  // input_ids (position) -> (position, embed)
  NamedArray operator()(const NamedArray& input_ids, const Key& key, bool inference) const {
    auto Pos = input_ids.resolve_axis("position");
    auto most = position_embeddings.Vocab.size;
    if (Pos.size > most)
      throw Error("[gpt2] the text has " + std::to_string(Pos.size) +
                  " positions, but the model has only " + std::to_string(most));
    auto x =
        token_embeddings(input_ids) + slice(position_embeddings.weight, "position", 0, Pos.size);
    return dropout(x, key, inference);
  }
  // Embeds tokens at the given positions (position), for inference.
  NamedArray operator()(const NamedArray& input_ids, const NamedArray& positions) const {
    return token_embeddings(input_ids) + position_embeddings.weight.take("position", positions);
  }
};

struct Gpt2LMHeadModel {
  Gpt2Transformer transformer;
  Gpt2Embeddings embeddings;
  std::optional<nn::Linear> lm_head;  // (embed) -> (vocab); none if tied

  static Gpt2LMHeadModel init(const Axis& Vocab, const Gpt2Config& config, const Key& key) {
    config.check();
    auto [k_transformer, k_embeddings, k_head] = random::split<3>(key);
    Gpt2LMHeadModel m{Gpt2Transformer::init(config, k_transformer),
                      Gpt2Embeddings::init(Vocab, config, k_embeddings),
                      {}};
    if (!config.tied)
      m.lm_head = nn::Linear::init(
          config.Embed(), Vocab, k_head,
          {.use_bias = false,
           .init_scale = config.initializer_range * std::sqrt(double(config.hidden_dim))});
    return m;
  }

  const Gpt2Config& config() const { return transformer.blocks.stacked.attn.config; }
  const Axis& Vocab() const { return embeddings.token_embeddings.Vocab; }
  // (vocab, embed)
  const NamedArray& head() const {
    return lm_head ? lm_head->weight : embeddings.token_embeddings.weight;
  }

  // Returns the hidden states from which the head computes logits, for a chunked loss: input_ids
  // (position) -> (position, embed)
  NamedArray hidden_states(const NamedArray& input_ids, const Key& key = {},
                           bool inference = true) const {
    auto [k_embeddings, k_transformer] = random::split<2>(key);
    return transformer(embeddings(input_ids, k_embeddings, inference), k_transformer, inference);
  }
  // Returns an empty cache of the keys and values of all layers, for generation.
  nn::KVCache cache(DType dtype) const {
    auto& c = config();
    return nn::KVCache::init(c.Pos().alias("key_position"), {c.Heads(), c.HeadSize()}, c.Layers(),
                             dtype);
  }
  // The same for input_ids (position) after the cached tokens, of which the first `count` are
  // valid; returns the extended cache too.
  std::pair<NamedArray, nn::KVCache> hidden_states(const NamedArray& input_ids,
                                                   const nn::KVCache& cache,
                                                   const NamedArray& count) const {
    auto first = at(cache.lengths, "layers", 0);  // all layers have the same length
    return transformer(embeddings(input_ids, first + arange(input_ids.resolve_axis("position"))),
                       cache, count);
  }
  // input_ids (position) -> logits (position, vocab)
  NamedArray operator()(const NamedArray& input_ids, const Key& key = {},
                        bool inference = true) const {
    auto x = hidden_states(input_ids, key, inference);
    return lm_head ? (*lm_head)(x) : embeddings.token_embeddings.unembed(x);
  }
};

}  // namespace gpt2
