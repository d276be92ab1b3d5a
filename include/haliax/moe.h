// Mixtures of experts: a contraction by groups of rows, and layers that route tokens to experts.
#pragma once
#include <cstdint>
#include <optional>

#include "haliax/nn.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Mixtures of experts
/// @{

/// Contracts rows in groups, each group with a weight of its own.
///
/// The first `group_sizes[0]` rows of `x` are multiplied by `weight[0]`, the next `group_sizes[1]`
/// rows by `weight[1]`, and so on. The sizes may depend on data: only the rows of a group are
/// multiplied by its weight, and no array over groups and rows is materialized. Rows after the last
/// group are 0. Both operands have gradients. 16-bit floats accumulate in `f32`. Axes that `x` and
/// `group_sizes` share are batch axes: each position has rows and groups of its own.
///
/// @param x            `(batch..., rows, axis...)`
/// @param weight       `(groups, axis..., columns...)`, in any order; it may have batch axes
/// @param group_sizes  integers `(batch..., groups)`: the number of rows of each group
/// @param axis         contracted axes, which `x` and the weight have
/// @return `(batch..., rows, columns...)`, with the promoted dtype
/// @throws haliax::Error if `x` has more than one axis of rows, or if sizes are negative or exceed
///     the number of rows. Sizes that depend on data are checked when the program runs.
///
///     ragged_dot(tokens, experts, sizes, "embed");  // (token, embed), (expert, embed, mlp)
///                                                   // -> (token, mlp)
/// @see nn::MoELinear
NamedArray ragged_dot(Arr x, Arr weight, Arr group_sizes, const AxisSelection& axis);

namespace nn {

/// Options of `MoELinear::init`.
struct MoELinearOptions {
  bool use_bias = true;    ///< Adds a bias, which all experts share.
  bool out_first = false;  ///< Order of the weight: `(Experts, Out, In)`, or `(Experts, In, Out)`.
  double init_scale = 1;   ///< Factor of the initial weight.
};
/// A linear layer for each expert. Its input is sorted by expert.
///
///     auto up = nn::MoELinear::init(Experts, Embed, Mlp, key);
///     auto y = up(tokens, sizes);  // (token, embed), (expert) -> (token, mlp)
struct MoELinear {
  NamedArray weight;               ///< `(Experts, In, Out)`, or `(Experts, Out, In)`.
  std::optional<NamedArray> bias;  ///< `(Out)`, for all experts.
  Axis Experts;                    ///< Axis of the experts.
  Axis In;                         ///< Input axis.
  Axis Out;                        ///< Output axis.

  /// Initializes a layer in `f32`. The weight is normal, truncated at 3 standard deviations, times
  /// `init_scale / sqrt(size of In)`. The bias is 0.
  /// @throws haliax::Error if two axes have the same name
  static MoELinear init(const Axis& Experts, const Axis& In, const Axis& Out, const Key& key,
                        MoELinearOptions options = {},
                        SourceLocation at = SourceLocation::current());
  /// Applies the layer.
  /// @param x            `(rows, In)`: the rows of expert 0, then of expert 1, and so on
  /// @param group_sizes  integers `(Experts)`: the number of rows of each expert
  /// @return `(rows, Out)`
  /// @throws haliax::Error as `ragged_dot`
  NamedArray operator()(Arr x, Arr group_sizes) const;
};

/// Options of `MoE::init`.
struct MoEOptions {
  std::int64_t experts_per_token = 2;  ///< Number of experts that each token is routed to.
  Activation activation = silu;        ///< Activation of the gate.
  bool normalize = true;               ///< Divides the weights of a token by their sum.
  double init_scale = 1;               ///< Factor of the initial weights.
};
/// A mixture of experts, as in Mixtral: each token is routed to the experts with the largest router
/// probabilities, and their results are summed, weighted by these probabilities. An expert is a
/// gated MLP, `down(activation(gate(x)) * up(x))`. No token is dropped.
///
///     auto moe = nn::MoE::init(Experts, Embed, Mlp, key, {.experts_per_token = 2});
///     auto y = moe(x);  // (batch, pos, embed) -> (batch, pos, embed)
struct MoE {
  Linear router;                       ///< From `Embed` to `Experts`, without a bias.
  MoELinear gate;                      ///< From `Embed` to `Mlp`.
  MoELinear up;                        ///< From `Embed` to `Mlp`.
  MoELinear down;                      ///< From `Mlp` to `Embed`.
  Axis Experts;                        ///< Axis of the experts.
  Axis Embed;                          ///< Input and output axis.
  std::int64_t experts_per_token = 2;  ///< Number of experts that each token is routed to.
  Activation activation = silu;        ///< Activation of the gate.
  bool normalize = true;               ///< Divides the weights of a token by their sum.

  /// Initializes a block in `f32`, without biases.
  /// @param Experts  axis of the experts
  /// @param Embed    input and output axis
  /// @param Mlp      hidden axis of an expert
  /// @param key      random key
  /// @param options  routing and activation
  /// @throws haliax::Error if `experts_per_token` is not from 1 to the number of experts
  static MoE init(const Axis& Experts, const Axis& Embed, const Axis& Mlp, const Key& key,
                  MoEOptions options = {}, SourceLocation at = SourceLocation::current());
  /// Applies the block.
  /// @param x  `(..., Embed)`; all other axes are axes of tokens
  /// @return array with the axes and the dtype of `x`
  /// @throws haliax::Error if `x` lacks `Embed`, or if the number of experts is no multiple of the
  /// devices that the mapping shards it over
  NamedArray operator()(Arr x) const;
};

}  // namespace nn

/// @}

}  // namespace haliax
