// GPT-2: learned positions, layer norms before attention and MLP, and a head that is usually tied
// to the token embeddings.
//
// Formulas: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and the
// class GPT2LMHeadModel of transformers, whose names of tensors are the names of the fields. The
// model has no batch axis: arrays simply have it.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "examples/models/packed.h"
#include "haliax/haliax.h"

namespace models {

using namespace haliax;

// The fields have the names of config.json.
struct GPT2Config {
  static constexpr bool is_static = true;
  std::int64_t vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12, n_head = 12;
  std::int64_t n_inner = 0;  // width of the MLP; 0: 4 * n_embd
  nn::Activation activation_function = nn::gelu;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;  // standard deviation of the initial weights
  double embd_pdrop = 0.1, attn_pdrop = 0.1, resid_pdrop = 0.1;  // dropout, if there is a key
  bool tie_word_embeddings = true;               // otherwise the head has a matrix of its own
  bool scale_attn_by_inverse_layer_idx = false;  // divides the scores of layer i by i + 1
  bool reorder_and_upcast_attn = false;          // computes scores and softmax in f32
  ScanCheckpoint gradient_checkpointing = {};
  bool operator==(const GPT2Config&) const = default;

  Axis Vocab() const { return {"vocab", vocab_size}; }
  Axis Pos() const { return {"pos", n_positions}; }
  Axis Layers() const { return {"layers", n_layer}; }
  Axis Embed() const { return {"embed", n_embd}; }
  Axis Mlp() const { return {"mlp", n_inner ? n_inner : 4 * n_embd}; }
  Axis Heads() const { return {"heads", n_head}; }
  Axis HeadSize() const {
    if (n_head < 1 || n_embd % n_head)
      throw Error("[gpt2] n_embd=" + std::to_string(n_embd) + " is not divisible by n_head=" +
                  std::to_string(n_head) + "; use a number of heads that divides it");
    return {"head_size", n_embd / n_head};
  }
  // Options of a projection. Its weight is stored as (in, out), as in the files of transformers.
  nn::LinearOptions linear(std::int64_t inputs) const {
    return {.out_first = false, .init_scale = initializer_range * std::sqrt(double(inputs))};
  }
  // The same for a projection into the residual stream, which has smaller weights for more layers.
  nn::LinearOptions linear_to_residual(std::int64_t inputs) const {
    auto options = linear(inputs);
    options.init_scale /= std::sqrt(2. * double(n_layer));
    return options;
  }
};

// Applies dropout if there is a key.
inline NamedArray dropout(const NamedArray& x, double pdrop, const Key& key) {
  return nn::dropout(x, pdrop, key, {.inference = !key});
}

struct GPT2Attention {
  nn::Linear c_attn;  // (embed) -> (qkv, heads, head_size)
  nn::Linear c_proj;  // (heads, head_size) -> (embed)
  GPT2Config config;

  static GPT2Attention init(const GPT2Config& c, const Key& key) {
    auto [k_attn, k_proj] = random::split<2>(key);
    AxisSpec qkv{Axis("qkv", 3), c.Heads(), c.HeadSize()}, heads{c.Heads(), c.HeadSize()};
    return {nn::Linear::init(c.Embed(), qkv, k_attn, c.linear(c.n_embd)),
            nn::Linear::init(heads, c.Embed(), k_proj, c.linear_to_residual(c.n_embd)), c};
  }
  // x (..., pos, embed) -> (..., pos, embed). `layer` is the index of the layer, from 0. Without a
  // key, there is no dropout.
  NamedArray operator()(const NamedArray& x, const NamedArray& layer, const Key& key = {}) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto qkv = c_attn(x).unbind("qkv");
    return attend(qkv[0], rename(qkv[1], Pos, KeyPos), rename(qkv[2], Pos, KeyPos),
                  nn::causal_mask(Pos, KeyPos), layer, key);
  }
  // The same for packed sequences; see packed.h.
  NamedArray operator()(const NamedArray& x, const NamedArray& layer,
                        const NamedArray& segments) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto qkv = c_attn(x).unbind("qkv");
    return attend(qkv[0], rename(qkv[1], Pos, KeyPos), rename(qkv[2], Pos, KeyPos),
                  packed_mask(segments), layer);
  }
  // The same for positions after the cached ones; returns the extended cache too.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const NamedArray& layer,
                                                const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto Pos = x.resolve_axis("pos");
    auto qkv = c_attn(x).unbind("qkv");
    auto next = cache.append(qkv[1], qkv[2], Pos, count);
    return {attend(qkv[0], next.keys, next.values, cache.mask(Pos), layer), next};
  }

 private:
  NamedArray attend(NamedArray q, const NamedArray& k, const NamedArray& v, const NamedArray& mask,
                    const NamedArray& layer, const Key& key = {}) const {
    if (config.scale_attn_by_inverse_layer_idx) q = q / astype(layer + 1., q.dtype());
    nn::AttentionOptions options{.mask = mask};
    if (config.reorder_and_upcast_attn) options.attention_dtype = DType::f32;
    auto weights = nn::dot_product_attention_weights("key_pos", "head_size", q, k, options);
    return c_proj(dot(dropout(weights, config.attn_pdrop, key), v, "key_pos"));
  }
};

struct GPT2MLP {
  nn::Linear c_fc, c_proj;  // (embed) -> (mlp) -> (embed)
  nn::Activation act;

  static GPT2MLP init(const GPT2Config& c, const Key& key) {
    auto [k_fc, k_proj] = random::split<2>(key);
    return {nn::Linear::init(c.Embed(), c.Mlp(), k_fc, c.linear(c.n_embd)),
            nn::Linear::init(c.Mlp(), c.Embed(), k_proj, c.linear_to_residual(c.Mlp().size)),
            c.activation_function};
  }
  NamedArray operator()(const NamedArray& x) const { return c_proj(act(c_fc(x))); }
};

struct GPT2Block {
  nn::LayerNorm ln_1;
  GPT2Attention attn;
  nn::LayerNorm ln_2;
  GPT2MLP mlp;

  static GPT2Block init(const GPT2Config& c, const Key& key) {
    auto [k_attn, k_mlp] = random::split<2>(key);
    nn::NormOptions norm{.eps = c.layer_norm_epsilon};
    return {nn::LayerNorm::init(c.Embed(), norm), GPT2Attention::init(c, k_attn),
            nn::LayerNorm::init(c.Embed(), norm), GPT2MLP::init(c, k_mlp)};
  }
  NamedArray operator()(const NamedArray& x, const NamedArray& layer, const Key& key = {}) const {
    auto [k_attn, k_attended, k_mlp] = random::split<3>(key);
    const double pdrop = attn.config.resid_pdrop;
    auto h = x + dropout(attn(ln_1(x), layer, k_attn), pdrop, k_attended);
    return h + dropout(mlp(ln_2(h)), pdrop, k_mlp);
  }
  NamedArray operator()(const NamedArray& x, const NamedArray& layer,
                        const NamedArray& segments) const {
    auto h = x + attn(ln_1(x), layer, segments);
    return h + mlp(ln_2(h));
  }
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const NamedArray& layer,
                                                const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [attended, next] = attn(ln_1(x), layer, cache, count);
    auto h = x + attended;
    return {h + mlp(ln_2(h)), next};
  }
};

struct GPT2Model {
  nn::Embedding wte, wpe;  // (vocab, embed), (pos, embed)
  nn::Stacked<GPT2Block> h;
  nn::LayerNorm ln_f;

  static GPT2Model init(const GPT2Config& c, const Key& k_blocks, const Key& k_tables) {
    auto [k_tokens, k_positions] = random::split<2>(k_tables);
    nn::EmbeddingOptions table{.init_scale = c.initializer_range * double(c.n_embd)};
    auto block = [c](const Key& k) { return GPT2Block::init(c, k); };
    return {nn::Embedding::init(c.Vocab(), c.Embed(), k_tokens, table),
            nn::Embedding::init(c.Pos(), c.Embed(), k_positions, table),
            nn::Stacked<GPT2Block>::init(c.Layers(),
                                         {.gradient_checkpointing = c.gradient_checkpointing},
                                         block, random::split(k_blocks, c.Layers())),
            nn::LayerNorm::init(c.Embed(), {.eps = c.layer_norm_epsilon})};
  }
  // ids (..., pos) -> (..., pos, embed). Without a key, there is no dropout.
  NamedArray operator()(const NamedArray& ids, const Key& key = {}) const {
    auto [k_tables, k_blocks] = random::split<2>(key);
    auto Pos = ids.resolve_axis("pos");
    auto x = wte(ids) + slice(wpe.weight, "pos", 0, Pos.size);
    return ln_f(h.fold(dropout(x, h.stacked.attn.config.embd_pdrop, k_tables), arange(h.Layers),
                       random::split(k_blocks, h.Layers)));
  }
  // The same for packed sequences; see packed.h.
  NamedArray operator()(const NamedArray& ids, const NamedArray& segments) const {
    auto x = wte(ids) + take(wpe.weight, "pos", packed_positions(segments));
    return ln_f(h.fold(x, arange(h.Layers), segments));
  }
  // The same for ids after the cached ones. The cache has the layer axis first.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& ids, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto Pos = ids.resolve_axis("pos");
    auto positions = at(cache.positions(Pos), "layers", 0);  // equal in all layers
    auto [x, next] =
        h.scan(wte(ids) + take(wpe.weight, "pos", positions), arange(h.Layers), cache, count);
    return {ln_f(x), next};
  }
};

struct GPT2LMHeadModel {
  GPT2Model transformer;
  std::optional<nn::Linear> lm_head;  // (embed) -> (vocab); none: the table of the tokens
  GPT2Config config;

  static GPT2LMHeadModel init(const GPT2Config& c, const Key& key) {
    auto [k_blocks, k_tables, k_head] = random::split<3>(key);
    GPT2LMHeadModel m{GPT2Model::init(c, k_blocks, k_tables), {}, c};
    if (!c.tie_word_embeddings)
      m.lm_head =
          nn::Linear::init(c.Embed(), c.Vocab(), k_head,
                           {.use_bias = false, .init_scale = c.linear(c.n_embd).init_scale});
    return m;
  }
  // Returns the weight of the head: (vocab, embed)
  const NamedArray& head() const { return lm_head ? lm_head->weight : transformer.wte.weight; }
  NamedArray logits(const NamedArray& x) const {
    return lm_head ? (*lm_head)(x) : transformer.wte.unembed(x);
  }
  // ids (..., pos) -> logits (..., pos, vocab). Without a key, there is no dropout.
  NamedArray operator()(const NamedArray& ids, const Key& key = {}) const {
    return logits(transformer(ids, key));
  }
  // Returns the mean loss of the next tokens. It materializes no logits.
  NamedArray loss(const NamedArray& ids, const Key& key = {}) const {
    return nn::linear_next_token_loss("pos", transformer(ids, key), head(), ids, "embed", "vocab")
        .loss;
  }
  // The same for packed sequences. The last token of a document predicts nothing.
  NamedArray loss(const NamedArray& ids, const NamedArray& segments) const {
    return nn::linear_cross_entropy(transformer(ids, segments), head(),
                                    packed_targets(ids, segments), "embed", "vocab")
        .loss;
  }

  // Returns an empty cache for generation. `Batch` holds the batch axes.
  nn::KVCache cache(const Axes& Batch = {}, DType dtype = DType::f32) const {
    Axes outer{config.Layers()};
    outer.insert(outer.end(), Batch.begin(), Batch.end());
    return nn::KVCache::init(config.Pos().alias("key_pos"), {config.Heads(), config.HeadSize()},
                             outer, dtype);
  }
  // Returns the logits of ids (..., pos) after the cached ones, of which the first `count` are
  // valid, and the extended cache.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& ids, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [x, next] = transformer(ids, cache, count);
    return {logits(x), next};
  }
};

}  // namespace models
