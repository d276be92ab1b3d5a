// A small Llama, the sharding of its hidden states between layers, and sequences that follow a
// rule.
#pragma once
#include "examples/models/llama.h"

namespace llama {

using namespace haliax;
using Llama = models::LlamaForCausalLM;

// The sharding of the hidden states between attention and MLP, if layers are sharded along heads
// and the MLP axis. They are either replicated, so that each layer ends with an all-reduce, or
// sharded along an axis of their own: then each layer ends with a reduce-scatter and starts with an
// all-gather.
struct Stream {
  std::optional<Mapping> mapping = {};
  // Layers are written out, so that gathered hidden states stay resident until the backward pass.
  // In a loop they are gathered again.
  bool saves_activations = false;

  NamedArray between_layers(const NamedArray& x) const { return mapping ? shard(x, *mapping) : x; }
  NamedArray into_layer(const NamedArray& x) const { return mapping ? auto_sharded(x) : x; }
};

struct Config {
  models::LlamaConfig model{.vocab_size = 64,
                            .hidden_size = 64,
                            .intermediate_size = 128,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 8,
                            .num_key_value_heads = 4,
                            .head_dim = 8,
                            .rope_theta = 10000,
                            .initializer_range = 0};
  Axis Batch{"batch", 16}, Pos{"pos", 32};
};

// ids (..., pos) -> logits (..., pos, vocab)
inline NamedArray logits(const Llama& llama, const Stream& stream, const NamedArray& ids) {
  auto run_layer = [&](const models::LlamaDecoderLayer& layer, const NamedArray& x) {
    auto attended = layer.self_attn(stream.into_layer(layer.input_layernorm(x)));
    auto h = x + stream.between_layers(attended);
    auto mixed = layer.mlp(stream.into_layer(layer.post_attention_layernorm(h)));
    return stream.between_layers(h + stream.between_layers(mixed));
  };
  auto& m = llama.model;
  auto x = stream.between_layers(m.embed_tokens(ids));
  if (!stream.saves_activations)
    x = m.layers.fold_via(run_layer)(x);
  else
    for (auto& layer : m.layers.unstacked()) x = run_layer(layer, x);
  return llama.logits(stream.into_layer(m.norm(x)));
}
inline NamedArray loss(const Llama& llama, const Stream& stream, const NamedArray& ids) {
  return nn::next_token_loss("pos", "vocab", logits(llama, stream, ids).astype(DType::f32), ids);
}

// Returns arithmetic sequences (batch, pos). Each row has a random start and a random step, which
// the model infers from the row.
inline NamedArray rows(const Config& c, const Key& key) {
  auto [k_start, k_step] = random::split<2>(key);
  const auto vocab = c.model.vocab_size;
  auto start = random::randint(k_start, c.Batch, 0, vocab),
       step = random::randint(k_step, c.Batch, 1, 8);
  return (broadcast_axis(start, c.Pos) + broadcast_axis(step, c.Pos) * arange(c.Pos)) % vocab;
}

}  // namespace llama
