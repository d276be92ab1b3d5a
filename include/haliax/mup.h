// Maximal update parametrization (muP, Yang and Hu 2020): scales of weights with which a learning
// rate that is tuned on a narrow model fits wide ones. haliax.h does not include this header.
//
//     const auto up = nn::Linear::init(Embed, Mlp, k1, {.reparam_cls = nn::input_linear_mup});
//     const auto down = nn::Linear::init(Mlp, Mlp2, k2, {.reparam_cls = nn::hidden_linear_mup});
//     const auto head = nn::Linear::init(Mlp2, Vocab, k3, {.reparam_cls = nn::output_linear_mup});
//     const auto optimizer = optim::chain(optim::ScaleByAdam{}, optim::scale_by_mup_lr(),
//                                         optim::Scale{-1e-3});
#pragma once
#include <utility>

#include "haliax/nn.h"
#include "haliax/optim.h"

namespace [[gnu::visibility("default")]] haliax {
namespace nn {

/// @name Parametrizations
/// Values for `reparam_cls` of `Linear::init` and `Embedding::init`. Each one returns the scales of
/// a layer with input axes `In` and output axes `Out`. A function of your own may return others.
/// @{

/// The default of `Linear`: `init_scale = 1 / sqrt(size of In)`.
Reparam linear_standard_param(const AxisSpec& In, const AxisSpec& Out);
/// The first layer of a model: all scales are 1.
Reparam input_linear_mup(const AxisSpec& In, const AxisSpec& Out);
/// A layer between wide axes: `init_scale = 1 / sqrt(size of In)` and `lr_scale = 1 / size of In`.
Reparam hidden_linear_mup(const AxisSpec& In, const AxisSpec& Out);
/// The last layer of a model: `active_scale = 1 / size of In`. A function that receives the weight
/// itself, such as `linear_cross_entropy`, requires `head.weight * head.reparam.active_scale`.
Reparam output_linear_mup(const AxisSpec& In, const AxisSpec& Out);
/// The default of `Embedding`: `init_scale = 1 / size of Embed`.
Reparam embedding_standard_param(const AxisSpec& Vocab, const AxisSpec& Embed);
/// A table whose weight is also the head: `unembed_active_scale = 1 / size of Embed`, which
/// `unembed` applies.
Reparam embedding_mup(const AxisSpec& Vocab, const AxisSpec& Embed);

/// @}

}  // namespace nn

namespace optim {
namespace detail {
void scale_weights(nn::Linear& updates, const nn::Reparam&);
void scale_weights(nn::Embedding& updates, const nn::Reparam&);
}  // namespace detail

/// @name Learning rates of muP
/// @{

/// Multiplies the updates of each `Linear` and `Embedding` by `reparam.lr_scale`, biases included.
struct ScaleByMupLr {
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the scaled updates.
  template <class T> std::pair<T, Empty> update(const T& updates, const Empty&, const T&) const {
    T out = updates;
    for_each_module<nn::Linear>(out,
                                [](auto&, nn::Linear& l) { detail::scale_weights(l, l.reparam); });
    for_each_module<nn::Embedding>(
        out, [](auto&, nn::Embedding& e) { detail::scale_weights(e, e.reparam); });
    return {out, {}};
  }
};
/// Returns a transformation of updates by the learning rates of muP, for `chain`. It follows the
/// transformations of the gradient, such as `ScaleByAdam`.
ScaleByMupLr scale_by_mup_lr();

/// @}

}  // namespace optim
}  // namespace haliax
