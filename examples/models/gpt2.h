// GPT-2: learned positions, layer norms before attention and MLP, a head that is the table of the
// tokens.
//
// Formulas: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", and the
// class GPT2LMHeadModel of transformers, whose names of tensors are the names of the fields. The
// model has no batch axis: arrays simply have it.
#pragma once
#include <cmath>
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
  bool operator==(const GPT2Config&) const = default;

  Axis Vocab() const { return {"vocab", vocab_size}; }
  Axis Pos() const { return {"pos", n_positions}; }
  Axis Layers() const { return {"layers", n_layer}; }
  Axis Embed() const { return {"embed", n_embd}; }
  Axis Mlp() const { return {"mlp", n_inner ? n_inner : 4 * n_embd}; }
  Axis Heads() const { return {"heads", n_head}; }
  Axis HeadSize() const { return {"head_size", n_embd / n_head}; }
  // Options of a projection. Its weight is stored as (in, out), as in the files of transformers.
  nn::LinearOptions linear(std::int64_t inputs) const {
    return {.out_first = false, .init_scale = initializer_range * std::sqrt(double(inputs))};
  }
};

struct GPT2Attention {
  nn::Linear c_attn;  // (embed) -> (qkv, heads, head_size)
  nn::Linear c_proj;  // (heads, head_size) -> (embed)

  static GPT2Attention init(const GPT2Config& c, const Key& key) {
    auto [k_attn, k_proj] = random::split<2>(key);
    auto options = c.linear(c.n_embd);
    return {nn::Linear::init(c.Embed(), {Axis("qkv", 3), c.Heads(), c.HeadSize()}, k_attn, options),
            nn::Linear::init({c.Heads(), c.HeadSize()}, c.Embed(), k_proj, options)};
  }
  // x (..., pos, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto qkv = c_attn(x).unbind("qkv");
    return attend(qkv[0], rename(qkv[1], Pos, KeyPos), rename(qkv[2], Pos, KeyPos),
                  nn::causal_mask(Pos, KeyPos));
  }
  // The same for packed sequences; see packed.h.
  NamedArray operator()(const NamedArray& x, const NamedArray& segments) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto qkv = c_attn(x).unbind("qkv");
    return attend(qkv[0], rename(qkv[1], Pos, KeyPos), rename(qkv[2], Pos, KeyPos),
                  packed_mask(segments));
  }
  // The same for positions after the cached ones; returns the extended cache too.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto Pos = x.resolve_axis("pos");
    auto qkv = c_attn(x).unbind("qkv");
    auto next = cache.append(qkv[1], qkv[2], Pos, count);
    return {attend(qkv[0], next.keys, next.values, cache.mask(Pos)), next};
  }

 private:
  NamedArray attend(const NamedArray& q, const NamedArray& k, const NamedArray& v,
                    const NamedArray& mask) const {
    return c_proj(nn::dot_product_attention("key_pos", "head_size", q, k, v, {.mask = mask}));
  }
};

struct GPT2MLP {
  nn::Linear c_fc, c_proj;  // (embed) -> (mlp) -> (embed)
  nn::Activation act;

  static GPT2MLP init(const GPT2Config& c, const Key& key) {
    auto [k_fc, k_proj] = random::split<2>(key);
    return {nn::Linear::init(c.Embed(), c.Mlp(), k_fc, c.linear(c.n_embd)),
            nn::Linear::init(c.Mlp(), c.Embed(), k_proj, c.linear(c.Mlp().size)),
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
  NamedArray operator()(const NamedArray& x) const {
    auto h = x + attn(ln_1(x));
    return h + mlp(ln_2(h));
  }
  NamedArray operator()(const NamedArray& x, const NamedArray& segments) const {
    auto h = x + attn(ln_1(x), segments);
    return h + mlp(ln_2(h));
  }
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto [attended, next] = attn(ln_1(x), cache, count);
    auto h = x + attended;
    return {h + mlp(ln_2(h)), next};
  }
};

struct GPT2Model {
  nn::Embedding wte, wpe;  // (vocab, embed), (pos, embed)
  nn::Stacked<GPT2Block> h;
  nn::LayerNorm ln_f;

  static GPT2Model init(const GPT2Config& c, const Key& key) {
    auto [k_tokens, k_positions, k_blocks] = random::split<3>(key);
    nn::EmbeddingOptions table{.init_scale = c.initializer_range * double(c.n_embd)};
    auto block = [c](const Key& k) { return GPT2Block::init(c, k); };
    return {nn::Embedding::init(c.Vocab(), c.Embed(), k_tokens, table),
            nn::Embedding::init(c.Pos(), c.Embed(), k_positions, table),
            nn::Stacked<GPT2Block>::init(c.Layers(), block, random::split(k_blocks, c.Layers())),
            nn::LayerNorm::init(c.Embed(), {.eps = c.layer_norm_epsilon})};
  }
  // ids (..., pos) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& ids) const {
    auto Pos = ids.resolve_axis("pos");
    return ln_f(h.fold(wte(ids) + slice(wpe.weight, "pos", 0, Pos.size)));
  }
  // The same for packed sequences; see packed.h.
  NamedArray operator()(const NamedArray& ids, const NamedArray& segments) const {
    auto x = wte(ids) + take(wpe.weight, "pos", packed_positions(segments));
    return ln_f(h.fold(x, segments));
  }
  // The same for ids after the cached ones. The cache has the layer axis first.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& ids, const nn::KVCache& cache,
                                                const NamedArray& count) const {
    auto Pos = ids.resolve_axis("pos");
    auto positions = at(cache.positions(Pos), "layers", 0);  // equal in all layers
    auto [x, next] = h.scan(wte(ids) + take(wpe.weight, "pos", positions), cache, count);
    return {ln_f(x), next};
  }
};

struct GPT2LMHeadModel {
  GPT2Model transformer;
  GPT2Config config;

  static GPT2LMHeadModel init(const GPT2Config& c, const Key& key) {
    return {GPT2Model::init(c, key), c};
  }
  // ids (..., pos) -> logits (..., pos, vocab)
  NamedArray operator()(const NamedArray& ids) const {
    return transformer.wte.unembed(transformer(ids));
  }
  // Returns the mean loss of the next tokens. It materializes no logits.
  NamedArray loss(const NamedArray& ids) const {
    return nn::linear_next_token_loss("pos", transformer(ids), transformer.wte.weight, ids, "embed",
                                      "vocab")
        .loss;
  }
  // The same for packed sequences. The last token of a document predicts nothing.
  NamedArray loss(const NamedArray& ids, const NamedArray& segments) const {
    return nn::linear_cross_entropy(transformer(ids, segments), transformer.wte.weight,
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
    return {transformer.wte.unembed(x), next};
  }
};

}  // namespace models
