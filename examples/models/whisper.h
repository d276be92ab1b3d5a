// Whisper: an encoder of spectrograms, and a decoder of tokens that attends to its result.
//
// Formulas: Radford et al. 2022 (arXiv 2212.04356), and the class WhisperForConditionalGeneration
// of transformers, whose names of tensors are the names of the fields. The model has no batch axis:
// arrays simply have it.
#pragma once
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "haliax/conv.h"
#include "haliax/haliax.h"

namespace models {

using namespace haliax;

// The fields have the names of config.json.
struct WhisperConfig {
  static constexpr bool is_static = true;
  std::int64_t vocab_size = 51865, num_mel_bins = 80, d_model = 384;
  std::int64_t encoder_layers = 4, encoder_attention_heads = 6, encoder_ffn_dim = 1536;
  std::int64_t decoder_layers = 4, decoder_attention_heads = 6, decoder_ffn_dim = 1536;
  std::int64_t max_source_positions = 1500, max_target_positions = 448;
  nn::Activation activation_function = nn::gelu_exact;
  double init_std = 0.02;  // standard deviation of the initial weights
  bool operator==(const WhisperConfig&) const = default;

  Axis Vocab() const { return {"vocab", vocab_size}; }
  Axis Mel() const { return {"mel", num_mel_bins}; }
  Axis Embed() const { return {"embed", d_model}; }
  Axis Frames() const { return {"frames", max_source_positions}; }
  Axis Pos() const { return {"pos", max_target_positions}; }
  // Axes of an attention with this number of heads.
  AxisSpec heads(std::int64_t count) const {
    return {Axis("heads", count), Axis("head_size", d_model / count)};
  }
  nn::Linear linear(const AxisSpec& In, const AxisSpec& Out, const Key& key,
                    bool use_bias = true) const {
    double inputs = 1;
    for (auto& axis : In.axes()) inputs *= double(axis.size);
    return nn::Linear::init(In, Out, key,
                            {.use_bias = use_bias, .init_scale = init_std * std::sqrt(inputs)});
  }
  // Initializes a convolution along `frames` of width 3, with a zero at both ends.
  nn::Conv conv(const Axis& In, const Axis& Out, std::int64_t stride, const Key& key) const {
    auto c = nn::Conv::init({"frames"}, In, Out, 3, key, {.stride = stride, .padding = 1});
    c.weight = random::truncated_normal(key, c.weight.axes(), -2, 2) * init_std;
    c.bias = zeros(Out);
    return c;
  }
};

// Returns the positions of the encoder: sines, then cosines. (frames, embed)
inline NamedArray whisper_sinusoids(const Axis& Frames, const Axis& Embed) {
  Axis Half("half", Embed.size / 2);
  auto frequency = exp(arange(Half) * (-std::log(10000.) / double(Half.size - 1)));
  auto angle = broadcast_axis(arange(Frames), Half) * frequency;
  auto both = concatenate("half", {sin(angle), cos(angle)});
  return rearrange(rename(both, {{"half", Embed.name}}), {Frames, Embed});
}

struct WhisperAttention {
  nn::Linear q_proj, k_proj, v_proj;  // (embed) -> (heads, head_size)
  nn::Linear out_proj;                // (heads, head_size) -> (embed)

  static WhisperAttention init(const WhisperConfig& c, const AxisSpec& heads, const Key& key) {
    auto [k_q, k_k, k_v, k_out] = random::split<4>(key);
    return {c.linear(c.Embed(), heads, k_q), c.linear(c.Embed(), heads, k_k, false),
            c.linear(c.Embed(), heads, k_v), c.linear(heads, c.Embed(), k_out)};
  }
  // Attends from x (..., pos, embed) to all positions of `source` (..., KeyPos, embed).
  NamedArray operator()(const NamedArray& x, const NamedArray& source, const AxisSelector& KeyPos,
                        std::optional<NamedArray> mask = {}) const {
    return attend(x, k_proj(source), v_proj(source), KeyPos, std::move(mask));
  }
  // Attends to keys and values (..., KeyPos, heads, head_size).
  NamedArray attend(const NamedArray& x, const NamedArray& k, const NamedArray& v,
                    const AxisSelector& KeyPos, std::optional<NamedArray> mask = {}) const {
    return out_proj(
        nn::dot_product_attention(KeyPos, "head_size", q_proj(x), k, v, {.mask = std::move(mask)}));
  }
};

struct WhisperEncoderLayer {
  nn::LayerNorm self_attn_layer_norm;
  WhisperAttention self_attn;
  nn::LayerNorm final_layer_norm;
  nn::Linear fc1, fc2;  // (embed) -> (mlp) -> (embed)
  nn::Activation act;

  static WhisperEncoderLayer init(const WhisperConfig& c, const Key& key) {
    auto [k_attention, k_up, k_down] = random::split<3>(key);
    Axis Mlp("mlp", c.encoder_ffn_dim);
    auto heads = c.heads(c.encoder_attention_heads);
    return {nn::LayerNorm::init(c.Embed()),   WhisperAttention::init(c, heads, k_attention),
            nn::LayerNorm::init(c.Embed()),   c.linear(c.Embed(), Mlp, k_up),
            c.linear(Mlp, c.Embed(), k_down), c.activation_function};
  }
  // x (..., frames, embed) -> (..., frames, embed)
  NamedArray operator()(const NamedArray& x) const {
    auto y = self_attn_layer_norm(x);
    auto h = x + self_attn(y, rename(y, {{"frames", "key_frames"}}), "key_frames");
    return h + fc2(act(fc1(final_layer_norm(h))));
  }
};

struct WhisperEncoder {
  nn::Conv conv1, conv2;                  // (mel) -> (conv) -> (embed)
  Frozen<nn::Embedding> embed_positions;  // (frames, embed)
  nn::Stacked<WhisperEncoderLayer> layers;
  nn::LayerNorm layer_norm;

  static WhisperEncoder init(const WhisperConfig& c, const Key& key) {
    auto [k_conv1, k_conv2, k_layers] = random::split<3>(key);
    Axis Layers("layers", c.encoder_layers), Conv("conv", c.d_model);
    auto layer = [c](const Key& k) { return WhisperEncoderLayer::init(c, k); };
    nn::Embedding positions{whisper_sinusoids(c.Frames(), c.Embed()), c.Frames(), c.Embed()};
    return {c.conv(c.Mel(), Conv, 1, k_conv1),
            c.conv(Conv, c.Embed(), 2, k_conv2),
            {positions},
            nn::Stacked<WhisperEncoderLayer>::init(Layers, layer, random::split(k_layers, Layers)),
            nn::LayerNorm::init(c.Embed())};
  }
  // features (..., mel, frames), with two frames per position -> (..., frames, embed)
  NamedArray operator()(const NamedArray& features) const {
    auto x = nn::gelu_exact(conv2(nn::gelu_exact(conv1(features))));
    return layer_norm(layers.fold(x + embed_positions->weight));
  }
};

// The caches of a decoder: the keys and values of the text, and those of the audio, which do not
// change.
struct WhisperCache {
  nn::KVCache text;
  NamedArray audio_keys, audio_values;  // (layers, ..., frames, heads, head_size)
};

struct WhisperDecoderLayer {
  nn::LayerNorm self_attn_layer_norm;
  WhisperAttention self_attn;
  nn::LayerNorm encoder_attn_layer_norm;
  WhisperAttention encoder_attn;
  nn::LayerNorm final_layer_norm;
  nn::Linear fc1, fc2;  // (embed) -> (mlp) -> (embed)
  nn::Activation act;

  static WhisperDecoderLayer init(const WhisperConfig& c, const Key& key) {
    auto [k_self, k_audio, k_up, k_down] = random::split<4>(key);
    Axis Mlp("mlp", c.decoder_ffn_dim);
    auto heads = c.heads(c.decoder_attention_heads);
    return {nn::LayerNorm::init(c.Embed()),   WhisperAttention::init(c, heads, k_self),
            nn::LayerNorm::init(c.Embed()),   WhisperAttention::init(c, heads, k_audio),
            nn::LayerNorm::init(c.Embed()),   c.linear(c.Embed(), Mlp, k_up),
            c.linear(Mlp, c.Embed(), k_down), c.activation_function};
  }
  // x (..., pos, embed), audio (..., frames, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x, const NamedArray& audio) const {
    auto Pos = x.resolve_axis("pos"), KeyPos = Pos.alias("key_pos");
    auto y = self_attn_layer_norm(x);
    auto h = x + self_attn(y, rename(y, Pos, KeyPos), KeyPos, nn::causal_mask(Pos, KeyPos));
    h = h + encoder_attn(encoder_attn_layer_norm(h), audio, "frames");
    return h + fc2(act(fc1(final_layer_norm(h))));
  }
  // The same for positions after the cached ones; returns the extended cache of the text too.
  std::pair<NamedArray, nn::KVCache> operator()(const NamedArray& x, const WhisperCache& cache,
                                                const NamedArray& count) const {
    auto Pos = x.resolve_axis("pos");
    auto y = self_attn_layer_norm(x);
    auto next = cache.text.append(self_attn.k_proj(y), self_attn.v_proj(y), Pos, count);
    auto h = x + self_attn.attend(y, next.keys, next.values, "key_pos", cache.text.mask(Pos));
    h = h + encoder_attn.attend(encoder_attn_layer_norm(h), cache.audio_keys, cache.audio_values,
                                "frames");
    return {h + fc2(act(fc1(final_layer_norm(h)))), next};
  }
};

struct WhisperDecoder {
  nn::Embedding embed_tokens, embed_positions;  // (vocab, embed), (pos, embed)
  nn::Stacked<WhisperDecoderLayer> layers;
  nn::LayerNorm layer_norm;

  static WhisperDecoder init(const WhisperConfig& c, const Key& key) {
    auto [k_tokens, k_positions, k_layers] = random::split<3>(key);
    Axis Layers("layers", c.decoder_layers);
    nn::EmbeddingOptions table{.init_scale = c.init_std * double(c.d_model)};
    auto layer = [c](const Key& k) { return WhisperDecoderLayer::init(c, k); };
    return {nn::Embedding::init(c.Vocab(), c.Embed(), k_tokens, table),
            nn::Embedding::init(c.Pos(), c.Embed(), k_positions, table),
            nn::Stacked<WhisperDecoderLayer>::init(Layers, layer, random::split(k_layers, Layers)),
            nn::LayerNorm::init(c.Embed())};
  }
  // ids (..., pos), audio (..., frames, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& ids, const NamedArray& audio) const {
    auto Pos = ids.resolve_axis("pos");
    auto x = embed_tokens(ids) + slice(embed_positions.weight, "pos", 0, Pos.size);
    return layer_norm(layers.fold(x, audio));
  }
  // The same for ids after the cached ones.
  std::pair<NamedArray, WhisperCache> operator()(const NamedArray& ids, const WhisperCache& cache,
                                                 const NamedArray& count) const {
    auto Pos = ids.resolve_axis("pos");
    auto positions = at(cache.text.positions(Pos), "layers", 0);  // equal in all layers
    auto x = embed_tokens(ids) + take(embed_positions.weight, "pos", positions);
    auto [y, text] = layers.scan(x, cache, count);
    return {layer_norm(y), WhisperCache{text, cache.audio_keys, cache.audio_values}};
  }
};

struct WhisperModel {
  WhisperEncoder encoder;
  WhisperDecoder decoder;

  static WhisperModel init(const WhisperConfig& c, const Key& key) {
    auto [k_encoder, k_decoder] = random::split<2>(key);
    return {WhisperEncoder::init(c, k_encoder), WhisperDecoder::init(c, k_decoder)};
  }
};

struct WhisperForConditionalGeneration {
  WhisperModel model;
  WhisperConfig config;

  static WhisperForConditionalGeneration init(const WhisperConfig& c, const Key& key) {
    return {WhisperModel::init(c, key), c};
  }
  // features (..., mel, frames), ids (..., pos) -> logits (..., pos, vocab)
  NamedArray operator()(const NamedArray& features, const NamedArray& ids) const {
    auto& decoder = model.decoder;
    return decoder.embed_tokens.unembed(decoder(ids, model.encoder(features)));
  }
  // Returns the mean loss of the labels (..., pos) that are in the vocabulary. Labels of -100 do
  // not count. The ids are the labels shifted by one position. It materializes no logits.
  NamedArray loss(const NamedArray& features, const NamedArray& ids,
                  const NamedArray& labels) const {
    auto& decoder = model.decoder;
    return nn::linear_cross_entropy(decoder(ids, model.encoder(features)),
                                    decoder.embed_tokens.weight, labels, "embed", "vocab")
        .loss;
  }

  // Encodes features, and returns the cache of an empty text. `Batch` holds the batch axes.
  WhisperCache cache(const NamedArray& features, const Axes& Batch = {},
                     DType dtype = DType::f32) const {
    auto audio = model.encoder(features);
    auto& layers = model.decoder.layers;
    // The stacked projections compute all layers at once.
    auto& attention = layers.stacked.encoder_attn;
    Axes outer{layers.Layers};
    outer.insert(outer.end(), Batch.begin(), Batch.end());
    auto each = config.heads(config.decoder_attention_heads);
    return {nn::KVCache::init(config.Pos().alias("key_pos"), each, outer, dtype),
            attention.k_proj(audio), attention.v_proj(audio)};
  }
  // Returns the logits of ids (..., pos) after the cached ones, of which the first `count` are
  // valid, and the extended cache.
  std::pair<NamedArray, WhisperCache> operator()(const NamedArray& ids, const WhisperCache& cache,
                                                 const NamedArray& count) const {
    auto [x, next] = model.decoder(ids, cache, count);
    return {model.decoder.embed_tokens.unembed(x), next};
  }
};

}  // namespace models
