// Further optimizers and gradient transformations by the names of Optax: Lion, RMSProp, Adafactor,
// Muon, and their parts. See docs/how-to/training.md.
//
// As in optim.h, each transformation of `bf16` or `f16` computes in `f32` and rounds its result
// once, and leaves without a gradient have empty updates and empty states.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/optim.h"

namespace [[gnu::visibility("default")]] haliax {
namespace optim {

/// A learning rate: a constant, a scalar array, or a schedule.
class LearningRate {
 public:
  /// Converts a constant.
  LearningRate(double value) : value_(value) {}
  /// Converts a scalar array, as from `inject_hyperparams`.
  LearningRate(const NamedArray& value) : value_(value) {}
  /// Converts a schedule, or a function like a schedule.
  template <class F>
  requires(std::is_invocable_r_v<NamedArray, const F&, const NamedArray&> &&
           !std::is_same_v<F, LearningRate>) LearningRate(F schedule)
      : schedule_(std::move(schedule)) {}
  /// Returns the rate after `count` updates.
  Hyperparameter at(const NamedArray& count) const {
    return schedule_ ? Hyperparameter(schedule_(count)) : value_;
  }

 private:
  Hyperparameter value_ = 0;
  Schedule schedule_ = {};
};

namespace detail {
Leaves clipped_blocks(Leaves, double threshold);
Leaves clipped_elements(Leaves, double max_delta);
Leaves signs(Leaves);
Leaves scaled_by_param_rms(Leaves updates, const Leaves& params, double min_scale);
Leaves scaled_by_trust_ratio(Leaves updates, const Leaves& params, double min_norm,
                             double trust_coefficient, double eps);
std::pair<Leaves, Leaves> lion(Leaves grads, Leaves mu, double b1, double b2);
std::pair<Leaves, Leaves> averaged(Leaves updates, Leaves ema, double decay,
                                   const NamedArray& count, bool debias);
struct RmsOptions {
  double decay, eps;
  bool eps_in_sqrt, bias_correction, centered;
};
Updated rms(Leaves grads, Leaves mu, Leaves nu, const NamedArray& count, const RmsOptions&);
Leaves filled_like(Leaves, double value);
struct FactoredOptions {
  bool factored;
  double decay_rate;
  std::int64_t step_offset, min_dim_size_to_factor;
  double epsilon;
};
struct Factored {
  Leaves updates, v_row, v_col, v;
};
Factored factored_zeros(const Leaves& params, const FactoredOptions&);
Factored factored_rms(Leaves grads, Factored state, const NamedArray& count,
                      const FactoredOptions&);
// The axes of a leaf as a matrix. Other axes, such as layers, are batch axes.
struct MatrixAxes {
  Axes reduction, output;
  bool is_matrix() const { return !reduction.empty() && !output.empty(); }
};
// Returns the matrix axes of each leaf. The `Walk` has modules.
std::vector<MatrixAxes> matrices_of(const Walk& params);
struct MuonOptionsOf {
  double beta, eps;
  std::int64_t ns_steps;
  bool nesterov, adaptive;
  double consistent_rms;
};
std::pair<Leaves, Leaves> muon(Leaves grads, Leaves mu, const NamedArray& count,
                               const std::vector<MatrixAxes>&, const MuonOptionsOf&);
std::vector<bool> are_matrices(const std::vector<MatrixAxes>&);
LeafFilter with_paths(std::vector<std::string> paths);  // selects these leaves
}  // namespace detail

/// @name Further transformations
/// @{

/// Multiplies updates by a learning rate, negated by default.
struct ScaleByLearningRate {
  LearningRate rate;      ///< The learning rate.
  bool flip_sign = true;  ///< Multiplies by `-rate`.
  /// Returns the number of updates, 0.
  template <class T> NamedArray init(const T&) const { return detail::first_step(); }
  /// Returns the scaled updates and the next count.
  template <class T>
  std::pair<T, NamedArray> update(const T& updates, const NamedArray& count, const T&) const {
    const auto by = rate.at(count);
    return {unflatten(updates, detail::scaled(flatten(updates), flip_sign ? -by : by)), count + 1};
  }
};
/// Returns a multiplication by `-rate`, or by `rate`; see `ScaleByLearningRate`.
ScaleByLearningRate scale_by_learning_rate(LearningRate rate, bool flip_sign = true);

/// Leaves updates unchanged.
struct Identity {
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the updates.
  template <class T> std::pair<T, Empty> update(const T& updates, const Empty&, const T&) const {
    return {updates, {}};
  }
};
/// Returns a transformation without effect.
Identity identity();
/// Returns a transformation whose updates are 0: frozen parameters.
Scale set_to_zero();
/// Returns momentum: `trace = g + decay * trace`; see `Momentum`.
Momentum trace(double decay, bool nesterov = false);

/// Clips each leaf by the root mean square of its elements.
struct ClipByBlockRms {
  double threshold;  ///< Largest root mean square; infinity: no effect.
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the clipped updates.
  template <class T> std::pair<T, Empty> update(const T& updates, const Empty&, const T&) const {
    return {unflatten(updates, detail::clipped_blocks(flatten(updates), threshold)), {}};
  }
};
/// Returns a transformation that divides each leaf by `max(1, rms / threshold)`.
ClipByBlockRms clip_by_block_rms(double threshold);
/// Clips each element of the updates.
struct Clip {
  double max_delta;  ///< Largest absolute value.
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the clipped updates.
  template <class T> std::pair<T, Empty> update(const T& updates, const Empty&, const T&) const {
    return {unflatten(updates, detail::clipped_elements(flatten(updates), max_delta)), {}};
  }
};
/// Returns a transformation that clips each element to the range from `-max_delta` to `max_delta`.
Clip clip(double max_delta);
/// Replaces each element of the updates by its sign.
struct ScaleBySign {
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the signs.
  template <class T> std::pair<T, Empty> update(const T& updates, const Empty&, const T&) const {
    return {unflatten(updates, detail::signs(flatten(updates))), {}};
  }
};
/// Returns a transformation that replaces each element by its sign.
ScaleBySign scale_by_sign();

/// Multiplies the update of each leaf by the root mean square of the parameter.
struct ScaleByParamBlockRms {
  double min_scale = 1e-3;  ///< Smallest factor.
  bool enabled = true;      ///< If false, updates stay unchanged.
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the scaled updates.
  template <class T>
  std::pair<T, Empty> update(const T& updates, const Empty&, const T& params) const {
    if (!enabled) return {updates, {}};
    return {unflatten(updates,
                      detail::scaled_by_param_rms(flatten(updates), flatten(params), min_scale)),
            {}};
  }
};
/// Returns a multiplication by the root mean square of each parameter, at least `min_scale`.
ScaleByParamBlockRms scale_by_param_block_rms(double min_scale = 1e-3);
/// Multiplies the update of each leaf by the trust ratio (You et al. 2020): `trust_coefficient *
/// norm(param) / (norm(update) + eps)`, or 1 if a norm is 0.
struct ScaleByTrustRatio {
  double min_norm = 0;           ///< Smallest value of the norms.
  double trust_coefficient = 1;  ///< Factor of the ratio.
  double eps = 0;                ///< Added to the norm of the update.
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the scaled updates.
  template <class T>
  std::pair<T, Empty> update(const T& updates, const Empty&, const T& params) const {
    return {unflatten(updates, detail::scaled_by_trust_ratio(flatten(updates), flatten(params),
                                                             min_norm, trust_coefficient, eps)),
            {}};
  }
};
/// Returns a multiplication by the trust ratio; see `ScaleByTrustRatio`.
ScaleByTrustRatio scale_by_trust_ratio(double min_norm = 0, double trust_coefficient = 1,
                                       double eps = 0);

/// The state of `Ema`.
template <class T> struct EmaState {
  NamedArray count;  ///< Number of updates, an `i32` scalar.
  T ema;             ///< The mean.
};
/// Replaces updates by their exponential moving average.
struct Ema {
  double decay;        ///< Decay rate; negative: updates stay unchanged, without a state.
  bool debias = true;  ///< Divides by `1 - decay^count`.
  /// Returns a zero mean for each trainable leaf.
  template <class T> EmaState<T> init(const T& params) const {
    Walk w = walk_of(params);
    auto zeros =
        decay < 0 ? Leaves(w.arrays.size()) : detail::trainable_zeros(w.leaves(), w.frozen);
    return {detail::first_step(), unflatten(params, zeros)};
  }
  /// Returns the mean and the next state.
  template <class T>
  std::pair<T, EmaState<T>> update(const T& updates, const EmaState<T>& s, const T&) const {
    const auto count = s.count + 1;
    if (decay < 0) return {updates, {count, s.ema}};
    auto [mean, next] = detail::averaged(flatten(updates), flatten(s.ema), decay, count, debias);
    return {unflatten(updates, mean), {count, unflatten(s.ema, next)}};
  }
};
/// Returns an exponential moving average of the updates.
Ema ema(double decay, bool debias = true);

/// The state of `ScaleByRms`.
template <class T> struct RmsState {
  NamedArray count;  ///< Number of updates, an `i32` scalar.
  T mu;              ///< Means of gradients; empty unless centered.
  T nu;              ///< Means of squared gradients.
};
/// RMSProp (Hinton 2012): `g / sqrt(nu + eps)`, where `nu` is a running mean of the squared
/// gradient.
struct ScaleByRms {
  double decay = 0.9;            ///< Decay rate of the means.
  double eps = 1e-8;             ///< Added to `nu`.
  double initial_scale = 0;      ///< Initial value of `nu`.
  bool eps_in_sqrt = true;       ///< If false, `eps` is added to the square root.
  bool bias_correction = false;  ///< Divides the means by `1 - decay^count`.
  bool centered = false;         ///< Subtracts the squared mean of the gradient from `nu`.
  /// Returns the initial state.
  template <class T> RmsState<T> init(const T& params) const {
    Walk w = walk_of(params);
    auto zeros = detail::trainable_zeros(w.leaves(), w.frozen);
    return {detail::first_step(), unflatten(params, centered ? zeros : Leaves(zeros.size())),
            unflatten(params, detail::filled_like(zeros, initial_scale))};
  }
  /// Returns the scaled gradients and the next state.
  template <class T>
  std::pair<T, RmsState<T>> update(const T& grads, const RmsState<T>& s, const T&) const {
    auto count = s.count + 1;
    auto r = detail::rms(flatten(grads), flatten(s.mu), flatten(s.nu), count,
                         {decay, eps, eps_in_sqrt, bias_correction, centered});
    return {unflatten(grads, r.updates), {count, unflatten(s.mu, r.mu), unflatten(s.nu, r.nu)}};
  }
};
/// Returns the scaling of RMSProp; see `ScaleByRms`.
ScaleByRms scale_by_rms(double decay = 0.9, double eps = 1e-8, double initial_scale = 0,
                        bool eps_in_sqrt = true, bool bias_correction = false);
/// Returns the scaling of centered RMSProp; see `ScaleByRms`.
ScaleByRms scale_by_stddev(double decay = 0.9, double eps = 1e-8, double initial_scale = 0,
                           bool eps_in_sqrt = true, bool bias_correction = false);

/// Lion (Chen et al. 2023): the sign of `b1 * m + (1 - b1) * g`. The state is the momentum `m`, a
/// mean with decay rate `b2`.
struct ScaleByLion {
  double b1 = 0.9;   ///< Weight of the momentum in the update.
  double b2 = 0.99;  ///< Decay rate of the momentum.
  /// Returns zero momentum for each trainable leaf.
  template <class T> T init(const T& params) const {
    Walk w = walk_of(params);
    return unflatten(params, detail::trainable_zeros(w.leaves(), w.frozen));
  }
  /// Returns the signs and the next momentum.
  template <class T> std::pair<T, T> update(const T& grads, const T& mu, const T&) const {
    auto [updates, next] = detail::lion(flatten(grads), flatten(mu), b1, b2);
    return {unflatten(grads, updates), unflatten(mu, next)};
  }
};
/// Returns the scaling of Lion; see `ScaleByLion`.
ScaleByLion scale_by_lion(double b1 = 0.9, double b2 = 0.99);

/// The state of `ScaleByFactoredRms`.
template <class T> struct FactoredState {
  NamedArray count;  ///< Number of updates, an `i32` scalar.
  T v_row;           ///< Factored leaves: means over the largest axis.
  T v_col;           ///< Factored leaves: means over the second largest axis.
  T v;               ///< Other leaves: means of squared gradients.
};
/// The scaling of Adafactor (Shazeer and Stern 2018). The second moment of a leaf with two large
/// axes is stored as its means over each of them.
struct ScaleByFactoredRms {
  bool factored = true;          ///< If false, no leaf is factored.
  double decay_rate = 0.8;       ///< The decay rate of step `t` is `1 - t^-decay_rate`.
  std::int64_t step_offset = 0;  ///< First step, for fine-tuning.
  std::int64_t min_dim_size_to_factor = 128;  ///< Smallest size of the second largest axis.
  double epsilon = 1e-30;                     ///< Added to squared gradients.
  /// Returns the initial state.
  template <class T> FactoredState<T> init(const T& params) const {
    Walk w = walk_of(params);
    auto f = detail::factored_zeros(detail::trainable_zeros(w.leaves(), w.frozen), options());
    return {detail::first_step(), unflatten(params, f.v_row), unflatten(params, f.v_col),
            unflatten(params, f.v)};
  }
  /// Returns the scaled gradients and the next state.
  template <class T>
  std::pair<T, FactoredState<T>> update(const T& grads, const FactoredState<T>& s, const T&) const {
    auto f = detail::factored_rms(
        flatten(grads), {{}, flatten(s.v_row), flatten(s.v_col), flatten(s.v)}, s.count, options());
    return {unflatten(grads, f.updates),
            {s.count + 1, unflatten(s.v_row, f.v_row), unflatten(s.v_col, f.v_col),
             unflatten(s.v, f.v)}};
  }

 private:
  detail::FactoredOptions options() const {
    return {factored, decay_rate, step_offset, min_dim_size_to_factor, epsilon};
  }
};
/// Returns the scaling of Adafactor; see `ScaleByFactoredRms`.
ScaleByFactoredRms scale_by_factored_rms(bool factored = true, double decay_rate = 0.8,
                                         std::int64_t step_offset = 0,
                                         std::int64_t min_dim_size_to_factor = 128,
                                         double epsilon = 1e-30);

/// The state of `ScaleByMuon`.
template <class T> struct MuonState {
  NamedArray count;  ///< Number of updates, an `i32` scalar.
  T mu;              ///< Momentum.
};
/// Muon (Jordan 2024): momentum, orthogonalized by a Newton-Schulz iteration, times `sqrt(max(1,
/// size of output / size of reduction))`.
///
/// A leaf is a matrix with the reduction axes and the output axes of the parameter. The weight of
/// an `nn::Linear` has its axes `In` and `Out`, any number of each. Another leaf of two axes has
/// its first axis as reduction and its second as output. The layer axis of an `nn::Stacked` is a
/// batch axis. `update` raises for other leaves: use `muon`, or `masked`.
struct ScaleByMuon {
  double beta = 0.95;         ///< Decay rate of the momentum.
  double eps = 1e-8;          ///< Added to the norm.
  std::int64_t ns_steps = 5;  ///< Iterations.
  bool nesterov = true;       ///< Applies Nesterov momentum.
  bool adaptive = false;      ///< Multiplies by the dual norm of the update.
  /// If positive, the factor is `sqrt(max(size of output, size of reduction)) * consistent_rms`.
  double consistent_rms = 0;
  /// Returns zero momentum for each trainable leaf.
  template <class T> MuonState<T> init(const T& params) const {
    Walk w = walk_of(params);
    return {detail::first_step(), unflatten(params, detail::trainable_zeros(w.leaves(), w.frozen))};
  }
  /// Returns the orthogonalized updates and the next state.
  /// @throws haliax::Error if a leaf with a gradient is not a matrix
  template <class T>
  std::pair<T, MuonState<T>> update(const T& grads, const MuonState<T>& s, const T& params) const {
    auto count = s.count + 1;
    auto [updates, mu] = detail::muon(flatten(grads), flatten(s.mu), count, matrices(params),
                                      {beta, eps, ns_steps, nesterov, adaptive, consistent_rms});
    return {unflatten(grads, updates), {count, unflatten(s.mu, mu)}};
  }
  /// Returns the matrix axes of each leaf.
  template <class T> static std::vector<detail::MatrixAxes> matrices(const T& params) {
    return detail::matrices_of(walk_of(params, {.modules = true}));
  }
};
/// Returns the scaling of Muon; see `ScaleByMuon`.
ScaleByMuon scale_by_muon(double beta = 0.95, double eps = 1e-8, std::int64_t ns_steps = 5,
                          bool nesterov = true);

/// @}

/// @name Further optimizers
/// @{

/// Options of `lion`.
struct LionOptions {
  LearningRate learning_rate = 1e-4;   ///< Learning rate, or its schedule.
  double b1 = 0.9;                     ///< Weight of the momentum in the update.
  double b2 = 0.99;                    ///< Decay rate of the momentum.
  Hyperparameter weight_decay = 1e-3;  ///< Weight decay, times the learning rate.
  LeafFilter mask = {};                ///< Leaves that decay. Default: all.
};
/// The result of `lion`.
using Lion = Chain<ScaleByLion, AddDecayedWeights, ScaleByLearningRate>;
/// Returns Lion: `p - learning_rate * (sign(b1 * m + (1 - b1) * g) + weight_decay * p)`.
///
///     auto optimizer = optim::lion({.learning_rate = 1e-4, .weight_decay = 0.1});
Lion lion(LionOptions options = {});

/// Options of `rmsprop`.
struct RmsPropOptions {
  LearningRate learning_rate = 1e-3;  ///< Learning rate, or its schedule.
  double decay = 0.9;                 ///< Decay rate of the means.
  double eps = 1e-8;                  ///< Added to the mean of squares.
  double initial_scale = 0;           ///< Initial mean of squares.
  bool eps_in_sqrt = true;            ///< If false, `eps` is added to the square root.
  bool centered = false;              ///< Subtracts the squared mean of the gradient.
  double momentum = 0;                ///< Decay rate of the momentum of the updates.
  bool nesterov = false;              ///< Applies Nesterov momentum.
  bool bias_correction = false;       ///< Corrects the bias of the means.
};
/// The result of `rmsprop`.
using RmsProp = Chain<ScaleByRms, ScaleByLearningRate, Momentum>;
/// Returns RMSProp: `p - trace(learning_rate * g / sqrt(nu + eps))`; see `ScaleByRms`.
RmsProp rmsprop(RmsPropOptions options = {});

/// Options of `adafactor`.
struct AdafactorOptions {
  std::optional<LearningRate> learning_rate = {};  ///< Learning rate, or its schedule. Default: 1.
  std::int64_t min_dim_size_to_factor = 128;       ///< Smallest size of an axis that is factored.
  double decay_rate = 0.8;                         ///< Exponent of the decay of second moments.
  std::int64_t decay_offset = 0;                   ///< First step, for fine-tuning.
  bool multiply_by_parameter_scale = true;         ///< Multiplies by the size of the parameter.
  double clipping_threshold = 1;  ///< Largest root mean square of an update; infinity: not clipped.
  std::optional<double> momentum = {};   ///< Decay rate of an average of the updates.
  Hyperparameter weight_decay_rate = 0;  ///< Weight decay, without the learning rate.
  double eps = 1e-30;                    ///< Added to squared gradients.
  bool factored = true;                  ///< Factors second moments.
  LeafFilter weight_decay_mask = {};     ///< Leaves that decay. Default: all.
};
/// The result of `adafactor`.
using Adafactor = Chain<ScaleByFactoredRms, ClipByBlockRms, ScaleByLearningRate,
                        ScaleByParamBlockRms, Ema, AddDecayedWeights, Scale>;
/// Returns Adafactor (Shazeer and Stern 2018), whose state is much smaller than the parameters.
Adafactor adafactor(AdafactorOptions options = {});

/// Options of `muon`.
struct MuonOptions {
  LearningRate learning_rate = 0.02;     ///< Learning rate of matrices, or its schedule.
  double beta = 0.95;                    ///< Decay rate of the momentum.
  double eps = 1e-8;                     ///< Added to the norm.
  std::int64_t ns_steps = 5;             ///< Newton-Schulz iterations.
  Hyperparameter weight_decay = 0;       ///< Weight decay of matrices.
  LeafFilter mask = {};                  ///< Matrices that decay. Default: all.
  bool nesterov = true;                  ///< Applies Nesterov momentum.
  bool adaptive = false;                 ///< Multiplies by the dual norm of the update.
  double consistent_rms = 0;             ///< See `ScaleByMuon`.
  double adam_b1 = 0.9;                  ///< Decay rate of Adam's first moment.
  double adam_b2 = 0.999;                ///< Decay rate of Adam's second moment.
  Hyperparameter adam_weight_decay = 0;  ///< Weight decay of other leaves.
  std::optional<LearningRate> adam_learning_rate = {};  ///< Default: that of matrices.
  /// Leaves that Muon updates, if they are matrices. For embeddings and heads, Adam is customary:
  /// `!LeafFilter("embedding")`.
  LeafFilter which = {};
};
/// Muon for matrices, and Adam for the other leaves; see `muon`.
struct Muon {
  Chain<ScaleByMuon, AddDecayedWeights, ScaleByLearningRate> matrices;  ///< For matrices.
  Chain<ScaleByAdam, AddDecayedWeights, ScaleByLearningRate> others;    ///< For other leaves.
  LeafFilter which = {};                                                ///< Leaves for Muon.

  /// Returns the pair of the states for matrices and for other leaves.
  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    return optimizers(params, at).init(params, at);
  }
  /// Returns the updates and the next state.
  template <class T, class State>
  std::pair<T, State> update(const T& grads, const State& state, const T& params,
                             SourceLocation at = SourceLocation::current()) const {
    return optimizers(params, at).update(grads, state, params, at);
  }

 private:
  template <class T> auto optimizers(const T& params, SourceLocation at) const {
    const Walk w = walk_of(params, {.paths = true});
    const auto chosen = which.chosen("muon", w, at);
    const auto are = detail::are_matrices(ScaleByMuon::matrices(params));
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < are.size(); ++i)
      if (are[i] && chosen[i]) paths.push_back(w.paths[i]);
    return groups(group(detail::with_paths(std::move(paths)), matrices),
                  group(LeafFilter(), others));
  }
};
/// Returns Muon (Jordan 2024) for matrices, and AdamW with Nesterov momentum for all other leaves.
/// `ScaleByMuon` lists the leaves that are matrices.
///
///     auto optimizer = optim::muon({.learning_rate = 0.02, .adam_learning_rate = 3e-4,
///                                   .which = !LeafFilter("embed")});
Muon muon(MuonOptions options = {});

/// @}

}  // namespace optim
}  // namespace haliax
