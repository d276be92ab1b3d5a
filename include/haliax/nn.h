// Layers, activations and attention. A layer is a plain struct: a tree of arrays (tree.h) with a
// static function `init` and a call operator. Axes, sizes and options are static fields. Layers
// store no random key. Layers are batch-agnostic: they pass axes that they do not name through
// unchanged. See docs/concepts/modules.md.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haliax/ops.h"
#include "haliax/random.h"
#include "haliax/stacked.h"
#include "haliax/transforms.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

class CallSite;

namespace nn {

/// The scope of a layer's call. Until the object is destroyed, errors name the location of the call
/// and the path of the weight. Create one at the start of the call operator of a layer.
class LayerScope {
 public:
  /// Opens the scope.
  /// @param input   argument of the layer, which holds the location of the call
  /// @param weight  array whose path names the layer; empty: none
  explicit LayerScope(const Arr& input, const NamedArray& weight = {});
  /// Closes the scope.
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;

 private:
  std::shared_ptr<CallSite> here_;
};

/// A name for ops outside of layers. Until the object is destroyed, errors, profiles and reports
/// name the ops that this thread traces `module.name`, or `name` if no module is known. Names in
/// one another are joined by dots. A layer with a path keeps its path.
///
///     nn::NameScope scope("rope");
class NameScope {
 public:
  /// Opens the scope.
  /// @throws haliax::Error if the name is empty
  // clang-format off
  [[nodiscard("the name is in scope as long as this object lives: give it a name")]]
  explicit NameScope(std::string_view name, SourceLocation at = SourceLocation::current());
  // clang-format on
  /// Closes the scope.
  ~NameScope();
  NameScope(const NameScope&) = delete;

 private:
  Name outer_;
};
/// Returns `f` with a `NameScope` around each call.
///
///     auto rotated = nn::named_call("rope", rotate)(query);
template <class F> auto named_call(std::string name, F f) {
  return [name = std::move(name), f = std::move(f)](auto&&... args) -> decltype(auto) {
    NameScope scope(name);
    return f(std::forward<decltype(args)>(args)...);
  };
}

/// @name Activations
/// Elementwise functions. The result has the axes of `x`. Its dtype is that of `x` if `x` is an
/// array of floats. `gelu`, `quick_gelu`, `silu` and `sigmoid` compute 16-bit floats in `f32` and
/// round once.
/// @{

/// Computes `max(x, 0)`. The derivative at 0 is 0, and NaN propagates.
NamedArray relu(Arr x);
/// Computes `min(max(x, 0), 6)`.
NamedArray relu6(Arr x);
/// Computes `relu(x)^2`.
NamedArray relu_squared(Arr x);
/// Computes `x` if `x >= 0`, otherwise `0.01 x`.
NamedArray leaky_relu(Arr x);
/// Computes `x` if `x > 0`, otherwise `exp(x) - 1`.
NamedArray elu(Arr x);
/// Computes `elu(x)`: CELU with `alpha = 1`.
NamedArray celu(Arr x);
/// Computes `scale * x` if `x > 0`, otherwise `scale * alpha * (exp(x) - 1)`, with `scale` = 1.0507
/// and `alpha` = 1.6733 (Klambauer et al. 2017).
NamedArray selu(Arr x);
/// Computes `x * Phi(x)`, where `Phi` is the distribution function of the normal distribution
/// (Hendrycks and Gimpel 2016). By default, or if `approximate` is true, with `tanh`; otherwise
/// with `erf`.
NamedArray gelu(Arr x);
NamedArray gelu(Arr x, bool approximate);
/// Computes `gelu(x, false)`.
NamedArray gelu_exact(Arr x);
/// Computes `x * sigmoid(1.702 x)`.
NamedArray quick_gelu(Arr x);
/// Computes `1 / (1 + exp(-x))`. Integers give `f32`.
NamedArray sigmoid(Arr x);
/// Computes `log(sigmoid(x))`, also for large negative `x`.
NamedArray log_sigmoid(Arr x);
/// Computes `x * sigmoid(x)`, also called swish.
NamedArray silu(Arr x);
/// Computes `silu(x)`.
NamedArray swish(Arr x);
/// Computes `log(1 + exp(x))`, without overflow.
NamedArray softplus(Arr x);
/// Computes `x / (1 + abs(x))`.
NamedArray soft_sign(Arr x);
/// Computes `relu6(x + 3) / 6`.
NamedArray hard_sigmoid(Arr x);
/// Computes `x * hard_sigmoid(x)`.
NamedArray hard_silu(Arr x);
/// Computes `hard_silu(x)`.
NamedArray hard_swish(Arr x);
/// Computes `min(max(x, -1), 1)`.
NamedArray hard_tanh(Arr x);
/// Computes a gated linear unit: the first half of `x` along `axis` times the sigmoid of the second
/// half.
/// @return array whose `axis` has half the size
/// @throws haliax::Error if `x` lacks `axis`, or if the size is odd
NamedArray glu(Arr x, const AxisSelector& axis);

/// An elementwise function, such as `nn::relu`.
using Activation = NamedArray (*)(Arr);
/// Returns the activation with this name, as in Haliax and in the configurations of Hugging Face.
/// `"gelu"` is `gelu_exact`; `"gelu_new"`, `"gelu_pytorch_tanh"` and `"gelu_tanh"` are `gelu`.
/// `"swish"` and `"tanh"` are names as well.
/// @throws haliax::Error if there is no such activation
Activation activation(std::string_view name, SourceLocation at = SourceLocation::current());

/// @}

/// @name Layers
/// @{

/// The scales of the weight of a layer: how it is initialized, used and trained. See mup.h.
struct Reparam {
  static constexpr bool is_static = true;  ///< a field of a module is static
  double init_scale = 1;                   ///< Factor of the initial weight.
  double active_scale = 1;                 ///< Factor of the weight in a call of a `Linear`.
  double lr_scale = 1;                     ///< Factor of the learning rate of the layer.
  double unembed_active_scale = 1;         ///< Factor of the weight in `Embedding::unembed`.
  friend bool operator==(const Reparam&, const Reparam&) = default;
};
/// A function from the axes of a layer to the scales of its weight, such as
/// `nn::hidden_linear_mup`. The axes of an `Embedding` are `Vocab` and `Embed`.
using ReparamOf = Reparam (*)(const AxisSpec& In, const AxisSpec& Out);
/// A function that computes the matmul of a `Linear`: `f(x, weight, In)` returns the value of
/// `dot(x, weight, In)` with an algorithm of its own, such as a low-precision matmul.
using DotGeneral = NamedArray (*)(Arr x, Arr weight, const AxisSelection& In);

/// Options of `Linear::init`.
struct LinearOptions {
  bool use_bias = true;  ///< Adds a bias.
  /// Order of the weight: `(Out..., In...)`, or `(In..., Out...)` if false.
  bool out_first = true;
  double init_scale = 1;             ///< Factor of the initial weight.
  DotGeneral dot_general = nullptr;  ///< Computes the matmul. Default: `dot`.
  /// Returns the scales of the weight. Default: the initial weight is divided by the square root of
  /// the size of `In`.
  ReparamOf reparam_cls = nullptr;
};
/// A low-rank adapter of a `Linear`; see `with_lora`. In checkpoints, the arrays have the names of
/// PEFT: `lora_A.weight` and `lora_B.weight`.
struct Lora {
  NamedArray A;      ///< `(lora_rank, In...)`.
  NamedArray B;      ///< `(Out..., lora_rank)`.
  double scale = 1;  ///< Factor of the adapter.
};
/// A linear layer: `dot(x, weight, In) + bias`.
///
///     auto up = nn::Linear::init(Embed, Mlp, key);
///     auto y = up(x);  // (batch, embed) -> (batch, mlp)
///
/// With `reparam.active_scale`, the weight is multiplied by it in each call. A state dict holds the
/// scaled weight.
struct Linear {
  NamedArray weight;               ///< `(Out..., In...)`, or `(In..., Out...)`.
  std::optional<NamedArray> bias;  ///< `(Out...)`.
  AxisSpec In;                     ///< Input axes.
  AxisSpec Out;                    ///< Output axes.
  /// Adapter: adds `scale * B(A(x))`. See `with_lora`.
  std::optional<Lora> lora = {};
  Reparam reparam = {};              ///< Scales of the weight.
  DotGeneral dot_general = nullptr;  ///< Computes the matmul. Default: `dot`.

  /// Initializes a layer in `f32`. The weight is normal, truncated at 3 standard deviations, times
  /// `init_scale / sqrt(size of In)`, or times the scales of `reparam_cls`. The bias is 0.
  /// @throws haliax::Error if `In` and `Out` have a name in common
  static Linear init(const AxisSpec& In, const AxisSpec& Out, const Key& key,
                     LinearOptions options = {}, SourceLocation at = SourceLocation::current());
  /// Applies the layer. The result is constrained by the mapping in scope. A key is ignored, so
  /// that layers with and without randomness have the same parameters.
  /// @param x  `(..., In...)`, with the axes of `In` at any positions
  /// @return `(..., Out...)`, in the promoted dtype
  /// @throws haliax::Error if `x` lacks an axis of `In`, has it with another size, or has an axis
  ///     of `Out`
  NamedArray operator()(Arr x) const;
  NamedArray operator()(Arr x, const Key&) const { return (*this)(x); }
};

/// Options of `LayerNorm::init` and `RmsNorm::init`.
struct NormOptions {
  double eps = 1e-5;       ///< Added to the variance, or to the mean square.
  bool use_weight = true;  ///< Multiplies by a weight, initially 1.
  bool use_bias = true;    ///< Adds a bias, initially 0.
  /// Dtype of the normalization of `RmsNorm`. `LayerNorm` normalizes in the dtype of its input.
  DType dtype = DType::f32;
};
/// Layer normalization: `weight * (x - mean) / sqrt(var + eps) + bias`, with mean and variance over
/// `axis`.
struct LayerNorm {
  AxisSpec axis;                     ///< Normalized axes.
  std::optional<NamedArray> weight;  ///< `(axis...)`.
  std::optional<NamedArray> bias;    ///< `(axis...)`.
  double eps = 1e-5;                 ///< Added to the variance.

  /// Initializes a layer in `f32`.
  static LayerNorm init(const AxisSpec& axis, NormOptions options = {},
                        SourceLocation at = SourceLocation::current());
  /// Applies the layer. The result has the axes of `x`.
  /// @throws haliax::Error if `x` lacks an axis, or has it with another size
  NamedArray operator()(Arr x) const;
};
/// RMS normalization: `weight * x / sqrt(mean(x * x) + eps) + bias`, with the mean over `axis`.
struct RmsNorm {
  AxisSpec axis;                     ///< Normalized axes.
  std::optional<NamedArray> weight;  ///< `(axis...)`.
  std::optional<NamedArray> bias;    ///< `(axis...)`.
  double eps = 1e-5;                 ///< Added to the mean square.
  /// Dtype of the normalization. It is rounded to the dtype of `x` before weight and bias.
  DType dtype = DType::f32;

  /// Initializes a layer in `f32`.
  static RmsNorm init(const AxisSpec& axis, NormOptions options = {},
                      SourceLocation at = SourceLocation::current());
  /// Applies the layer. The result has the axes of `x`.
  /// @throws haliax::Error if `x` lacks an axis, or has it with another size
  NamedArray operator()(Arr x) const;
};

/// Dropout: sets elements to 0 at random, and multiplies the others by `1 / (1 - pdrop)`.
struct Dropout {
  double pdrop = 0.5;         ///< Probability of 0, from 0 to 1.
  Names broadcast_axes = {};  ///< Axes along which all positions share one mask.
  bool inference = false;     ///< Returns `x` unchanged; see `inference_mode`.

  /// Returns true if the layer changes its input and requires a key.
  bool is_active() const { return !inference && pdrop > 0; }
  /// Applies dropout.
  /// @param x    array
  /// @param key  random key; required unless in inference, or `pdrop` is 0 or 1
  /// @throws haliax::Error if the key is missing, if `pdrop` is not a probability, or if `x` lacks
  ///     an axis of `broadcast_axes`
  NamedArray operator()(Arr x, const Key& key = {}) const;
  /// Applies dropout. A value of `inference` overrides the field.
  NamedArray operator()(Arr x, const Key& key, std::optional<bool> inference) const;
};

/// Options of `dropout`.
struct DropoutOptions {
  Names broadcast_axes = {};  ///< Axes along which all positions share one mask.
  bool inference = false;     ///< Returns `x` unchanged.
};
/// Computes dropout without a layer: `Dropout{pdrop}(x, key)`.
///
///     auto y = nn::dropout(x, 0.1, key, {.broadcast_axes = {"pos"}});
///
/// @param x        array
/// @param pdrop    probability of 0, from 0 to 1
/// @param key      random key; required unless in inference, or `pdrop` is 0 or 1
/// @param options  shared masks, and inference
/// @throws haliax::Error as for `Dropout`
NamedArray dropout(Arr x, double pdrop, const Key& key = {}, DropoutOptions options = {});
/// Returns a mask that is true with probability `1 - rate`: the elements that dropout keeps.
/// @return bool array with `axes`
/// @throws haliax::Error if `rate` is not from 0 to 1
NamedArray dropout_mask(const AxisSpec& axes, double rate, const Key& key,
                        SourceLocation at = SourceLocation::current());

/// Options of `nn::standardize`.
struct StandardizeOptions {
  std::optional<NamedArray> mean = {};      ///< Default: the mean of `x` over the axes.
  std::optional<NamedArray> variance = {};  ///< Default: the variance of `x` over the axes.
  double epsilon = 1e-5;                    ///< Added to the variance.
  /// Bool: the elements that count for mean and variance. All elements are standardized.
  std::optional<NamedArray> where = {};
};
/// Computes `(x - mean) / sqrt(variance + epsilon)`.
///
/// @param x        array of floats
/// @param axis     axes over which mean and variance are computed
/// @param options  mean and variance, if they are known; mask
/// @return array with the axes and the dtype of `x`
/// @throws haliax::Error if `x` lacks an axis, or if mean or variance have axes that `x` lacks
/// @see haliax::standardize
NamedArray standardize(Arr x, const AxisSelection& axis, StandardizeOptions options);

using haliax::log_softmax;
using haliax::logsumexp;
using haliax::one_hot;
using haliax::softmax;
using haliax::standardize;

/// Options of `Embedding::init`.
struct EmbeddingOptions {
  double init_scale = 1;  ///< Standard deviation of the initial weight, times the size of `Embed`.
  /// Returns the scales of the weight. Default: the initial weight is divided by the size of
  /// `Embed`.
  ReparamOf reparam_cls = nullptr;
};
/// A table of vectors, one for each id of a vocabulary.
struct Embedding {
  NamedArray weight;     ///< `(Vocab, Embed...)`.
  Axis Vocab;            ///< Axis of the ids.
  AxisSpec Embed;        ///< Axes of a vector.
  Reparam reparam = {};  ///< Scales of the weight.

  /// Initializes a table in `f32`: normal, truncated at 3 standard deviations, times `init_scale /
  /// size of Embed`, or times the scales of `reparam_cls`.
  static Embedding init(const Axis& Vocab, const AxisSpec& Embed, const Key& key,
                        EmbeddingOptions options = {},
                        SourceLocation at = SourceLocation::current());
  /// Looks up vectors: `(...)` -> `(..., Embed...)`. An id outside of the vocabulary yields NaN.
  /// @throws haliax::Error if `ids` is not an array of integers
  NamedArray embed(Arr ids) const;
  /// Computes the logits of a tied head: `(..., Embed...)` -> `(..., Vocab)`.
  /// @see linear_cross_entropy for a loss that does not materialize logits
  NamedArray unembed(Arr x) const;
  /// Looks up vectors; see `embed`. A key is ignored.
  NamedArray operator()(Arr ids) const { return embed(ids); }
  NamedArray operator()(Arr ids, const Key&) const { return embed(ids); }
  /// Returns the table for `new_size` ids. New rows are drawn from the mean and the standard
  /// deviation of the rows; without a key, they are the mean. See `resize_axis`.
  /// @throws haliax::Error if the size is negative
  Embedding resize_embeddings(std::int64_t new_size, const Key& key = {},
                              SourceLocation at = SourceLocation::current()) const;
};

/// Options of `Mlp::init`.
struct MlpOptions {
  Activation activation = relu;  ///< Activation after each hidden layer.
  bool use_bias = true;          ///< Adds a bias to the hidden layers.
  bool use_final_bias = true;    ///< Adds a bias to the last layer.
  bool out_first = true;         ///< Order of the weights; see `LinearOptions`.
  double init_scale = 1;         ///< Factor of the initial weights.
};
/// A multilayer perceptron: linear layers with activations between them.
struct Mlp {
  std::vector<Linear> layers;    ///< The hidden layers and the last layer.
  Activation activation = relu;  ///< Activation after each hidden layer.

  /// Initializes `depth` hidden layers and a last layer. The hidden axes are `mlp` and `mlp2`,
  /// alternately, or `width` and the same axis with the suffix `2`.
  /// @param In       contracted axes of the input
  /// @param Out      axes of the output
  /// @param width    size of the hidden axes, or the hidden axis
  /// @param depth    number of hidden layers; 0: one `Linear`
  /// @param key      split into a key for each layer
  /// @param options  activation, biases, order and scale of the weights
  /// @throws haliax::Error if `depth` is negative
  static Mlp init(const AxisSpec& In, const AxisSpec& Out, std::int64_t width, int depth,
                  const Key& key, MlpOptions options = {},
                  SourceLocation at = SourceLocation::current());
  static Mlp init(const AxisSpec& In, const AxisSpec& Out, const Axis& width, int depth,
                  const Key& key, MlpOptions options = {},
                  SourceLocation at = SourceLocation::current());
  /// Applies the layers: `(..., In...)` -> `(..., Out...)`. A key is ignored.
  NamedArray operator()(Arr x) const;
  NamedArray operator()(Arr x, const Key&) const { return (*this)(x); }
  /// Returns the input axes.
  /// @throws haliax::Error if there are no layers
  AxisSpec In() const;
  /// Returns the output axes.
  /// @throws haliax::Error if there are no layers
  AxisSpec Out() const;
};
/// The name of `Mlp` in Haliax.
using MLP = Mlp;

/// @}

namespace detail {
// Resizes the axis in all modules of `tables`, which are `Embedding`, and of `heads`, which are
// `Linear`.
void resize_vocab(const Walk& tables, const Walk& heads, const AxisSelector&, std::int64_t new_size,
                  const Key&, SourceLocation);
}  // namespace detail
/// @name Resizing
/// @{

/// Returns the model for another size of the vocabulary: all `Embedding` and `Linear` with the axis
/// are resized, their static axes included.
///
///     model = nn::resize_vocab(model, "vocab", tokenizer_size, key);
///
/// @param model     a tree
/// @param Vocab     axis of the vocabulary
/// @param new_size  its new size
/// @param key       random key for new positions; see `resize_axis`
/// @throws haliax::Error if no `Embedding` or `Linear` has the axis, or if the size is negative
template <class T>
T resize_vocab(T model, const AxisSelector& Vocab, std::int64_t new_size, const Key& key = {},
               SourceLocation at = SourceLocation::current()) {
  const Walk tables = haliax::detail::walk_of_modules<Embedding>(model, false);
  const Walk heads = haliax::detail::walk_of_modules<Linear>(model, false);
  detail::resize_vocab(tables, heads, Vocab, new_size, key, at);
  return model;
}

/// @}

/// @name Attention
/// Masks are boolean arrays that are true where a query may attend to a key. `&` and `|` combine
/// masks.
/// @{

/// Returns a causal mask: true where the position of the query is not before the position of the
/// key.
///
/// @param QPos     axis of the queries
/// @param KPos     axis of the keys, with another name
/// @param q_start  position of the first query; may have axes, such as one per sequence
/// @param k_start  position of the first key; may have axes
/// @return bool `(QPos, KPos)`, with the axes of the starts between them
/// @throws haliax::Error if a start has the axis `QPos` or `KPos`
NamedArray causal_mask(const Axis& QPos, const Axis& KPos, Arr q_start = 0, Arr k_start = 0);
/// Returns a causal mask in which all queries also see the first `prefix_len` keys. The other
/// parameters are those of `causal_mask`. The length may have axes, as the starts.
/// @return bool `(QPos, KPos)`, with the axes of length and starts between them
NamedArray prefix_lm_mask(const Axis& QPos, const Axis& KPos, Arr prefix_len, Arr q_start = 0,
                          Arr k_start = 0);
/// Returns a mask that hides keys at random (forgetful causal masking, Liu et al. 2022). The first
/// key is always visible. Combine it with `causal_mask`.
///
/// @param key          random key
/// @param KPos         axis of the keys
/// @param mask_prob    probability that a key is hidden
/// @param sample_prob  draws the probability uniformly from 0 to `mask_prob`
/// @return bool `(KPos)`
NamedArray forgetful_causal_mask(const Key& key, const Axis& KPos, double mask_prob,
                                 bool sample_prob = true,
                                 SourceLocation at = SourceLocation::current());
/// Returns an order of positions that balances the work of a causal mask among devices (context
/// parallelism). The sequence has `2 * devices` parts. The first device has the first part and the
/// last part, the second device the second part and the last but one, and so on.
///
///     auto order = nn::zigzag(Pos, 4);  // (pos): 0, 1, 14, 15, 2, 3, ... of 16
///     auto tokens = take(ids, "pos", order);
///     auto mask = broadcast_axis(order, KPos) >= rename(order, Pos, KPos);
///
/// @return `i32 (Pos)`; `i64` from 2^31 positions
/// @throws haliax::Error if the size of `Pos` is not divisible by `2 * devices`
NamedArray zigzag(const Axis& Pos, int devices, SourceLocation at = SourceLocation::current());
/// Returns `a & b`. The result has the axes of `a`, then those that only `b` has. An empty array
/// stands for no mask.
NamedArray combine_masks_and(Arr a, Arr b);
/// Returns `a | b`, in the same way.
NamedArray combine_masks_or(Arr a, Arr b);
/// Returns an `f32` array that is `value` where `mask` is true, and 0 elsewhere. For masks of this
/// header, pass the inverse: `mask_to_bias(~mask)`.
NamedArray mask_to_bias(Arr mask, double value = -1e9);
/// Returns the ALiBi bias (Press et al. 2021): for each head, a slope times the position of the
/// key. The slopes of `n` heads are `2^(-bias_max * i / n)` for `i` from 1 to `n`, if `n` is a
/// power of two.
/// @return `(Heads, KPos)` in `dtype`
NamedArray alibi_attention_bias(const Axis& Heads, const Axis& KPos, double bias_max = 8,
                                DType dtype = DType::f32,
                                SourceLocation at = SourceLocation::current());

/// Options of `dot_product_attention` and `dot_product_attention_weights`.
struct AttentionOptions {
  std::optional<NamedArray> mask = {};  ///< Axes of the scores; false: the score is -1e9.
  std::optional<NamedArray> bias = {};  ///< Axes of the scores; added before the mask.
  /// Dtype of scores and softmax. Default: of the query.
  std::optional<DType> attention_dtype = {};
  /// Factor of the scores. Default: `1 / sqrt(size of Key)`.
  std::optional<double> scaling_factor = {};
  Precision precision = Precision::standard;  ///< Precision of both matmuls.
};
/// Computes attention weights: a softmax over `KPos` of `dot(query, key, Key) / sqrt(size of Key)`.
///
/// The order of the first two arguments in Haliax, `(Key, KPos)`, is accepted as well: `Key` is the
/// axis that the query has.
///
/// Axes that query and key both have, such as batch and heads, are batch axes. Large scores are not
/// materialized; see `JitOptions::scores_budget`. A query without a visible key weighs all keys
/// equally.
///
/// @param KPos     position axes of the keys; the query must not have them
/// @param Key      contracted axis, such as the head size
/// @param query    `(..., QPos, Key)`
/// @param key      `(..., KPos, Key)`
/// @param options  mask, bias, dtype and scale
/// @return `(..., QPos, KPos)`, in the dtype of the query
/// @throws haliax::Error if `query` has an axis of `KPos`, or if an axis is missing
NamedArray dot_product_attention_weights(const AxisSelection& KPos, const AxisSelection& Key,
                                         Arr query, Arr key, AttentionOptions options = {});
/// Computes attention: `dot(weights, value, KPos)` with the weights of
/// `dot_product_attention_weights`.
///
///     auto y = nn::dot_product_attention("key_pos", "head_size", q, k, v,
///                                        {.mask = nn::causal_mask(Pos, KeyPos)});
///
/// @param KPos     position axes of the keys; the query must not have them
/// @param Key      contracted axis, such as the head size
/// @param query    `(..., QPos, Key)`
/// @param key      `(..., KPos, Key)`
/// @param value    `(..., KPos, ...)`
/// @param options  mask, bias and dtype
/// @return the axes of the query without `Key`, then the other axes of `value`
NamedArray dot_product_attention(const AxisSelection& KPos, const AxisSelector& Key, Arr query,
                                 Arr key, Arr value, AttentionOptions options = {});

/// A cache of the keys and values of a sequence. A new token then costs one row of scores.
///
/// Donate the cache to the jitted function that appends to it. The new rows are then written in
/// place. A cache for all layers has the layer axis in `Batch`, and is an argument of
/// `Stacked::scan`.
///
///     auto next = cache.append(key, value, Pos);  // key, value (pos, heads, head_size)
///     auto y = nn::dot_product_attention("key_pos", "head_size", query, next.keys, next.values,
///                                        {.mask = cache.mask(Pos)});
struct KVCache {
  NamedArray keys;    ///< `(Batch..., Heads..., Pos, HeadSize)`.
  NamedArray values;  ///< `(Batch..., Heads..., Pos, HeadSize)`.
  /// Number of filled positions, from the first one: `i32 (Batch...)`, at most the size of `Pos`.
  NamedArray lengths;
  Axis Pos;  ///< Axis of the positions.

  /// Returns an empty cache.
  ///
  /// @param Pos    positions that the cache has room for
  /// @param each   axes of the keys and values of one position: `(Heads..., HeadSize)`
  /// @param Batch  batch axes, each with a length of its own
  /// @param dtype  dtype of keys and values
  /// @throws haliax::Error if `each` has no axis, or if `dtype` is bool
  static KVCache init(const Axis& Pos, const AxisSpec& each, const AxisSpec& Batch = {},
                      DType dtype = DType::f32, SourceLocation at = SourceLocation::current());
  /// Returns the cache with the keys and values of new positions.
  ///
  /// A cache without room raises if its lengths are known: outside of `jit`, the call computes
  /// them. Inside of `jit`, positions without room are not written, and `lengths` stays at the size
  /// of `Pos`. To raise in this case, call `debug::check(cache.lengths + count <= cache.Pos.size,
  /// "the cache is full")` first.
  ///
  /// @param key    `(Batch..., Heads..., New, HeadSize)`, in any order; cast to the dtype of the
  ///     cache
  /// @param value  as `key`
  /// @param New    axis of the new positions, with another name than `Pos`
  /// @param count  integers, a scalar or some axes of `Batch`: how many of the new positions are
  ///     valid. The next call overwrites the others. Values are clipped to the range from 0 to the
  ///     size of `New`. Default: all.
  /// @throws haliax::Error if axes do not match the cache, if `key` holds floats and the cache
  ///     holds integers, or if `count` is not an integer. If the values are known while the graph
  ///     is built, the call also raises for a count out of range and for a full cache.
  KVCache append(Arr key, Arr value, const AxisSelector& New,
                 std::optional<NamedArray> count = {}) const;
  /// Returns the positions, from 0, that the next `append` fills, for position embeddings.
  /// @return `i32 (Batch..., New)`
  NamedArray positions(const Axis& New, SourceLocation at = SourceLocation::current()) const;
  /// Returns a causal mask for the queries of the new positions. Call it on the cache before
  /// `append`.
  /// @return bool `(Batch..., New, Pos)`
  NamedArray mask(const Axis& New, SourceLocation at = SourceLocation::current()) const;
};

/// @}

}  // namespace nn
}  // namespace haliax
