// A Llama: rotary positions, grouped heads that share keys, RmsNorm, SwiGLU.
#pragma once
#include <cmath>

#include "haliax/haliax.h"

namespace llama {

using namespace haliax;

// The sharding of the hidden states between attention and MLP, if layers are sharded along heads
// and the MLP axis. They are either replicated, so that each layer ends with an all-reduce, or
// sharded along an axis of their own: then each layer ends with a reduce-scatter and starts with an
// all-gather.
struct Stream {
  static constexpr bool is_static = true;
  std::optional<Mapping> mapping = {};
  // Layers are written out, so that gathered hidden states stay resident until the backward pass.
  // In a loop they are gathered again.
  bool saves_activations = false;
  bool operator==(const Stream&) const = default;

  NamedArray between_layers(const NamedArray& x) const { return mapping ? shard(x, *mapping) : x; }
  NamedArray into_layer(const NamedArray& x) const { return mapping ? auto_sharded(x) : x; }
};

struct Config {
  static constexpr bool is_static = true;
  Axis Vocab{"vocab", 64}, Batch{"batch", 16}, Pos{"pos", 32};
  Axis Layers{"layers", 2}, Embed{"embed", 64}, Mlp{"mlp", 128};
  // A group of heads shares keys and values.
  Axis KvHeads{"kv_heads", 4}, Group{"group", 2}, HeadSize{"head_size", 8};
  double rotary_base = 10000;
  Stream stream = {};
  bool operator==(const Config&) const = default;
};

// Rotates each pair of features by an angle proportional to the position. x (..., pos, head_size)
// -> the same axes
inline NamedArray rotary(const Config& c, const NamedArray& x) {
  Axis Half("half", c.HeadSize.size / 2);
  auto speed = exp(arange(Half) * (-std::log(c.rotary_base) / double(Half.size)));
  auto angle = broadcast_axis(arange(c.Pos), Half) * speed;  // (half, pos)
  auto pair = unbind(unflatten_axis(x, "head_size", {Axis("pair", 2), Half}), "pair");
  auto turned = stack("pair", {pair[0] * cos(angle) - pair[1] * sin(angle),
                               pair[1] * cos(angle) + pair[0] * sin(angle)});
  return flatten_axes(turned, {"pair", "half"}, "head_size").astype(x.dtype());
}

struct Attention {
  Config config;
  nn::Linear query, key, value, out;

  static Attention init(const Config& c, const Key& k) {
    auto [k_query, k_key, k_value, k_out] = random::split<4>(k);
    nn::LinearOptions plain{.use_bias = false};
    return {.config = c,
            .query = nn::Linear::init(c.Embed, {c.KvHeads, c.Group, c.HeadSize}, k_query, plain),
            .key = nn::Linear::init(c.Embed, {c.KvHeads, c.HeadSize}, k_key, plain),
            .value = nn::Linear::init(c.Embed, {c.KvHeads, c.HeadSize}, k_value, plain),
            .out = nn::Linear::init({c.KvHeads, c.Group, c.HeadSize}, c.Embed, k_out, plain)};
  }
  // x (..., pos, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x) const {
    auto KPos = config.Pos.alias("key_pos");
    auto q = rotary(config, query(x)), k = rename(rotary(config, key(x)), "pos", "key_pos");
    auto v = rename(value(x), "pos", "key_pos");
    return out(nn::dot_product_attention(KPos, "head_size", q, k, v,
                                         {.mask = nn::causal_mask(config.Pos, KPos)}));
  }
};

struct SwiGlu {
  nn::Linear gate, up, down;

  static SwiGlu init(const Config& c, const Key& k) {
    auto [k_gate, k_up, k_down] = random::split<3>(k);
    nn::LinearOptions plain{.use_bias = false};
    return {.gate = nn::Linear::init(c.Embed, c.Mlp, k_gate, plain),
            .up = nn::Linear::init(c.Embed, c.Mlp, k_up, plain),
            .down = nn::Linear::init(c.Mlp, c.Embed, k_down, plain)};
  }
  // Saves gate and up for the gradient, and recomputes their elementwise product, which is as large
  // as one of them.
  NamedArray operator()(const NamedArray& x) const {
    auto gated = [this](const NamedArray& g, const NamedArray& u) { return down(nn::silu(g) * u); };
    return checkpoint(gated)(gate(x), up(x));
  }
};

struct Block {
  nn::RmsNorm before_attention, before_mlp;
  Attention attention;
  SwiGlu mlp;

  static Block init(const Config& c, const Key& k) {
    auto [k_attention, k_mlp] = random::split<2>(k);
    return {.before_attention = nn::RmsNorm::init(c.Embed, {.use_bias = false}),
            .before_mlp = nn::RmsNorm::init(c.Embed, {.use_bias = false}),
            .attention = Attention::init(c, k_attention),
            .mlp = SwiGlu::init(c, k_mlp)};
  }
  NamedArray operator()(const NamedArray& x) const {
    auto& s = attention.config.stream;
    auto h = x + s.between_layers(attention(s.into_layer(before_attention(x))));
    return s.between_layers(h + s.between_layers(mlp(s.into_layer(before_mlp(h)))));
  }
};

struct Llama {
  Stream stream;
  nn::Embedding tokens;
  nn::Stacked<Block> blocks;
  nn::RmsNorm norm;
  nn::Linear head;

  static Llama init(const Config& c, const Key& k) {
    auto [k_tokens, k_blocks, k_head] = random::split<3>(k);
    auto block = [c](const Key& of_layer) { return Block::init(c, of_layer); };
    return {.stream = c.stream,
            .tokens = nn::Embedding::init(c.Vocab, c.Embed, k_tokens),
            .blocks = nn::Stacked<Block>::init(c.Layers, block, random::split(k_blocks, c.Layers)),
            .norm = nn::RmsNorm::init(c.Embed, {.use_bias = false}),
            .head = nn::Linear::init(c.Embed, c.Vocab, k_head, {.use_bias = false})};
  }
  // ids (..., pos) -> logits (..., pos, vocab)
  NamedArray operator()(const NamedArray& ids) const {
    auto x = stream.between_layers(tokens(ids));
    if (!stream.saves_activations)
      x = blocks.fold(x);
    else
      for (auto& block : blocks.unstacked()) x = block(x);
    return head(stream.into_layer(norm(x)));
  }
};

inline NamedArray loss(const Llama& model, const NamedArray& ids) {
  return nn::next_token_loss("pos", "vocab", model(ids).astype(DType::f32), ids);
}

// Returns arithmetic sequences (batch, pos). Each row has a random start and a random step, which
// the model infers from the row.
inline NamedArray rows(const Config& c, const Key& key) {
  auto [k_start, k_step] = random::split<2>(key);
  auto start = random::randint(k_start, c.Batch, 0, c.Vocab.size),
       step = random::randint(k_step, c.Batch, 1, 8);
  return (broadcast_axis(start, c.Pos) + broadcast_axis(step, c.Pos) * arange(c.Pos)) %
         c.Vocab.size;
}

}  // namespace llama
