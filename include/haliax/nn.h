// Layers, activations and attention. A layer is a plain struct: a tree of arrays (haliax/tree.h)
// with a static `init` and a call operator. What it names axes by, its sizes and its options are
// static fields; no layer keeps a key.
#pragma once
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "haliax/ops.h"
#include "haliax/random.h"
#include "haliax/transforms.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

class CallSite;

namespace nn {

// Set for the length of a layer's call: what goes wrong inside is reported where the layer was
// called, under the path of its weight.
class LayerScope {
 public:
  explicit LayerScope(const Arr& input, const NamedArray& weight = {});
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;

 private:
  std::shared_ptr<CallSite> here_;
};

// ---- activations ----
NamedArray relu(Arr), relu6(Arr), relu_squared(Arr), leaky_relu(Arr), elu(Arr), celu(Arr),
    selu(Arr);
// approximate (the default): with tanh; else with erf
NamedArray gelu(Arr), gelu(Arr, bool approximate);
NamedArray gelu_exact(Arr), quick_gelu(Arr);  // gelu(x, false); x * sigmoid(1.702 x)
NamedArray sigmoid(Arr), log_sigmoid(Arr), silu(Arr), softplus(Arr), soft_sign(Arr),
    hard_sigmoid(Arr), hard_silu(Arr), hard_tanh(Arr);
// one half times the sigmoid of the other; the axis halves
NamedArray glu(Arr, const AxisSelector&);

using Activation = NamedArray (*)(Arr);
// By the names of Haliax and of Hugging Face's configs; there "gelu" is the exact one and
// "gelu_new" the one with tanh. Raises.
Activation activation(std::string_view name, SourceLocation = SourceLocation::current());

// ---- layers ----
struct LinearOptions {
  bool use_bias = true, out_first = true;
  double init_scale = 1;
};
struct Linear {
  NamedArray weight;               // (Out..., In...), or (In..., Out...) if not out_first
  std::optional<NamedArray> bias;  // (Out...)
  AxisSpec In, Out;

  // The weight: normal, cut at 3 standard deviations, times init_scale / sqrt(size of In). The
  // bias: zeros.
  static Linear init(const AxisSpec& In, const AxisSpec& Out, const Key&, LinearOptions = {},
                     SourceLocation = SourceLocation::current());
  NamedArray operator()(Arr x) const;  // (..., In in any places) -> (..., Out...)
};

struct NormOptions {
  double eps = 1e-5;
  bool use_weight = true, use_bias = true;
};
struct LayerNorm {
  AxisSpec axis;
  std::optional<NamedArray> weight, bias;  // (axis...)
  double eps = 1e-5;

  static LayerNorm init(const AxisSpec& axis, NormOptions = {},
                        SourceLocation = SourceLocation::current());
  NamedArray operator()(Arr x) const;  // weight * (x - mean) / sqrt(var + eps) + bias
};
struct RmsNorm {
  AxisSpec axis;
  std::optional<NamedArray> weight, bias;
  double eps = 1e-5;
  DType dtype = DType::f32;  // to compute in

  static RmsNorm init(const AxisSpec& axis, NormOptions = {},
                      SourceLocation = SourceLocation::current());
  NamedArray operator()(Arr x) const;  // weight * x / sqrt(mean(x * x) + eps) + bias
};

struct Dropout {
  double pdrop = 0.5;
  Names broadcast_axes = {};  // along these, all share one mask
  bool inference = false;

  // x / (1 - pdrop) or 0; x itself in inference. Needs a key otherwise. `inference`, if given, wins
  // over the field.
  NamedArray operator()(Arr x, const Key& key = {}, std::optional<bool> inference = {}) const;
};

struct EmbeddingOptions {
  double init_scale = 1;  // the standard deviation, times the size of Embed
};
struct Embedding {
  NamedArray weight;  // (Vocab, Embed...)
  Axis Vocab;
  AxisSpec Embed;

  static Embedding init(const Axis& Vocab, const AxisSpec& Embed, const Key&, EmbeddingOptions = {},
                        SourceLocation = SourceLocation::current());
  NamedArray embed(Arr ids) const;  // integers (...) -> (..., Embed...); outside: NaN
  NamedArray unembed(Arr x) const;  // (..., Embed...) -> (..., Vocab)
  NamedArray operator()(Arr ids) const { return embed(ids); }
};

struct MlpOptions {
  Activation activation = relu;
  bool use_bias = true, use_final_bias = true, out_first = true;
  double init_scale = 1;
};
struct Mlp {
  std::vector<Linear> layers;
  Activation activation = relu;

  // `depth` hidden layers, their axes called mlp and mlp2 in turn; none: one Linear.
  static Mlp init(const AxisSpec& In, const AxisSpec& Out, std::int64_t width, int depth,
                  const Key&, MlpOptions = {}, SourceLocation = SourceLocation::current());
  NamedArray operator()(Arr x) const;
};

namespace detail {
NamedArray layer_of(const NamedArray& stacked, const Axis& Layers, std::int64_t i, SourceLocation);
template <class C> inline constexpr bool is_array = std::is_convertible_v<const C&, const Arr&>;
struct LayersAt {  // the axis of layers, and the place in the code where it was passed
  Axis axis;
  SourceLocation at;
  LayersAt(const Axis& a, SourceLocation where = SourceLocation::current()) : axis(a), at(where) {}
};
}  // namespace detail

// Equal blocks one after the other, their arrays in one with the layer axis first: one loop in the
// program, however many layers.
template <class Block> struct Stacked {
  Block stacked;
  Axis Layers;
  ScanCheckpoint gradient_checkpointing = {};

  // make(args...) -> Block, once for each layer: of args, arrays (and keys) with the layer axis are
  // cut into layers, others shared.
  template <class Make, class... Args>
  static Stacked init(detail::LayersAt Layers, Make make, const Args&... args) {
    return {vmap(make, Layers.axis, Layers.at)(args...), Layers.axis, {}};
  }
  // x -> block(x, args...) for each layer in turn; args as in init.
  template <class... Args> NamedArray fold(Arr x, const Args&... args) const {
    return fold_from<NamedArray>(x, x.at(), args...);
  }
  template <class Carry, class... Args>
  requires(!detail::is_array<Carry>) Carry fold(const Carry& x, const Args&... args)
  const { return fold_from<Carry>(x, SourceLocation::current(), args...); }
  // block(x, args...) -> (x, out): the last x, and what came out, with the layer axis first.
  template <class... Args> auto scan(Arr x, const Args&... args) const {
    return scan_from<NamedArray>(x, x.at(), args...);
  }
  template <class Carry, class... Args>
  requires(!detail::is_array<Carry>) auto scan(const Carry& x, const Args&... args) const {
    return scan_from<Carry>(x, SourceLocation::current(), args...);
  }

  Block get_layer(std::int64_t i, SourceLocation at = SourceLocation::current()) const {
    return tree_map([&](const NamedArray& a) { return detail::layer_of(a, Layers, i, at); },
                    stacked);
  }
  std::vector<Block> unstacked(SourceLocation at = SourceLocation::current()) const {
    std::vector<Block> blocks;
    for (std::int64_t i = 0; i < Layers.size; ++i) blocks.push_back(get_layer(i, at));
    return blocks;
  }

 private:
  template <class Carry, class... Args> static constexpr bool takes() {
    constexpr bool called = std::is_invocable_v<const Block&, const Carry&, const Args&...>;
    static_assert(called,
                  "haliax: a Stacked calls its blocks: a block takes what fold or scan is given.");
    return called;
  }
  template <class Carry, class... Args>
  Carry fold_from(const Carry& x, SourceLocation at, const Args&... args) const {
    if constexpr (takes<Carry, Args...>()) {
      auto step = [](const Carry& c, const Block& block, const Args&... a) {
        return Carry(block(c, a...));
      };
      return haliax::fold(step, Layers, {.checkpoint = gradient_checkpointing, .at = at})(
          x, stacked, args...);
    } else {
      return x;
    }
  }
  template <class Carry, class... Args>
  auto scan_from(const Carry& x, SourceLocation at, const Args&... args) const {
    if constexpr (takes<Carry, Args...>()) {
      auto step = [](const Carry& c, const Block& block, const Args&... a) {
        return block(c, a...);
      };
      return haliax::scan(step, Layers, {.checkpoint = gradient_checkpointing, .at = at})(
          x, stacked, args...);
    } else {
      return std::pair{x, x};
    }
  }
};

// ---- attention: masks are true where a query may look ----
// (QPos, KPos)
NamedArray causal_mask(const Axis& QPos, const Axis& KPos, Arr q_start = 0, Arr k_start = 0);
NamedArray prefix_lm_mask(const Axis& QPos, const Axis& KPos, Arr prefix_len, Arr q_start = 0,
                          Arr k_start = 0);  // and all of the prefix
NamedArray forgetful_causal_mask(const Key&, const Axis& KPos, double mask_prob,
                                 bool sample_prob = true,
                                 // (KPos): the first one, some others
                                 SourceLocation = SourceLocation::current());
// An order of positions in which `devices` that share them have as much to do under a causal mask:
// of twice as many parts each has an early one and a late one, the first device the first and the
// last. (Pos), i32 (i64 past 2^31). Raises unless Pos divides by 2 * devices. The mask is then by
// positions: broadcast_axis(order, KPos) >= rename(order, Pos, KPos).
NamedArray zigzag(const Axis& Pos, int devices, SourceLocation = SourceLocation::current());
// The axes of the first, then what the second adds. An empty array stands for no mask.
NamedArray combine_masks_and(Arr, Arr), combine_masks_or(Arr, Arr);
NamedArray mask_to_bias(Arr mask, double value = -1e9);  // f32: `value` where the mask is true
NamedArray alibi_attention_bias(const Axis& Heads, const Axis& KPos, double bias_max = 8,
                                DType = DType::f32,
                                SourceLocation = SourceLocation::current());  // (Heads, KPos)

struct AttentionOptions {
  std::optional<NamedArray> mask = {}, bias = {};  // axes of the scores
  std::optional<DType> attention_dtype = {};       // of scores and softmax
};
// query (..., QPos, Key), key (..., KPos, Key) -> weights (..., QPos, KPos): a softmax over KPos,
// in the query's dtype.
NamedArray dot_product_attention_weights(const AxisSelection& KPos, const AxisSelector& Key,
                                         Arr query, Arr key, AttentionOptions = {});
NamedArray dot_product_attention(const AxisSelection& KPos, const AxisSelector& Key, Arr query,
                                 Arr key, Arr value, AttentionOptions = {});

// The keys and values of a text so far, so that a token more costs its own row of scores. Give it
// to jit as a donated argument: then rows are written where the cache lies. One for many layers has
// the layer axis among Batch, and goes through Stacked::scan.
struct KVCache {
  NamedArray keys, values;  // (Batch..., Heads..., Pos, HeadSize): of each head in one piece
  // (Batch...) i32: how many positions are filled, from the first; at most Pos.size
  NamedArray lengths;
  Axis Pos;

  // Empty, and zero. `each`: what keys and values have at a position, (Heads..., HeadSize). Raises
  // where it has no axis, and for bools.
  static KVCache init(const Axis& Pos, const AxisSpec& each, const AxisSpec& Batch = {},
                      DType = DType::f32, SourceLocation = SourceLocation::current());
  // With the keys and values (..., New, ...) of the positions that come next, cast to the cache's
  // dtype; New has another name. `count` (0-d, or some of Batch; integers): that of them only so
  // many count, all if it is not given; the next ones are written over the others. Below 0 it is 0,
  // above New.size that. What finds no room is not written, and lengths stay at Pos.size;
  // debug::check(cache.lengths + count <= cache.Pos.size, "the cache is full") before it raises
  // instead. Raises for axes that are not the cache's, for floats where it holds integers, for a
  // count that is no integer, and for numbers known before anything runs: a count outside of 0 to
  // New.size, and more positions than there is room for.
  KVCache append(Arr key, Arr value, const AxisSelector& New,
                 std::optional<NamedArray> count = {}) const;
  // (Batch..., New): where the positions that come next lie, from 0.
  NamedArray positions(const Axis& New, SourceLocation = SourceLocation::current()) const;
  // (Batch..., New, Pos): true where a query at one of those may look, once its own key is
  // appended.
  NamedArray mask(const Axis& New, SourceLocation = SourceLocation::current()) const;
};

}  // namespace nn
}  // namespace haliax
