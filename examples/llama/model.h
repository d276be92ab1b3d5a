// A Llama of the layers of examples/models/llama.h, whose hidden states may be sharded between
// layers.
#pragma once
#include "../models/llama.h"
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

  models::LlamaConfig sizes() const {
    return {.vocab_size = Vocab.size,
            .hidden_size = Embed.size,
            .intermediate_size = Mlp.size,
            .num_hidden_layers = Layers.size,
            .num_attention_heads = KvHeads.size * Group.size,
            .num_key_value_heads = KvHeads.size,
            .head_dim = HeadSize.size,
            .rope_theta = rotary_base,
            .initializer_range = 0};
  }
};

// A layer of models/llama.h, with the sharding of the hidden states inside of it.
struct Block {
  models::LlamaDecoderLayer layer;
  Stream stream;

  static Block init(const Config& c, const Key& k) {
    return {models::LlamaDecoderLayer::init(c.sizes(), k), c.stream};
  }
  // x (..., pos, embed) -> (..., pos, embed)
  NamedArray operator()(const NamedArray& x) const {
    auto& [before_attention, attention, before_mlp, mlp] = layer;
    auto h = x + stream.between_layers(attention(stream.into_layer(before_attention(x))));
    return stream.between_layers(h + stream.between_layers(mlp(stream.into_layer(before_mlp(h)))));
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
    auto sizes = c.sizes();
    auto block = [c](const Key& of_layer) { return Block::init(c, of_layer); };
    return {.stream = c.stream,
            .tokens = nn::Embedding::init(c.Vocab, c.Embed, k_tokens),
            .blocks = nn::Stacked<Block>::init(c.Layers, block, random::split(k_blocks, c.Layers)),
            .norm = nn::RmsNorm::init(c.Embed, sizes.norm()),
            .head = sizes.linear(c.Embed, c.Vocab, k_head)};
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
