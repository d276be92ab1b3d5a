// Optimizers as chains of gradient transformations, as in Optax. See docs/how-to/training.md.
//
// A transformation has two functions: `init(params)` returns its state, and `update(grads, state,
// params)` returns a pair of updates and the next state. A state holds trees of the type of the
// model. It is therefore sharded, saved and printed like the model.
//
// - All transformations are elementwise, except for the global norm.
// - Each transformation of `bf16` or `f16` computes in `f32` and rounds its result once.
// - Leaves without a gradient (frozen leaves, integers) have empty updates and empty states.
#pragma once
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "haliax/ops.h"
#include "haliax/schedules.h"
#include "haliax/tree.h"

namespace haliax {
class CallSite;
}
namespace [[gnu::visibility("default")]] haliax {
namespace optim {

/// A number of an optimizer, such as a learning rate: a constant, or a scalar array that the step
/// receives, as from `inject_hyperparams`.
class Hyperparameter {
 public:
  /// Converts a constant.
  Hyperparameter(double value) : value_(value) {}
  /// Converts a scalar array.
  Hyperparameter(const NamedArray& value) : array_(value) {}
  /// Returns the constant, or the array.
  Arr arr(SourceLocation at = SourceLocation::current()) const {
    return array_.empty() ? Arr(value_, at) : Arr(array_, at);
  }
  /// Returns true if it is this constant.
  bool is(double value) const { return array_.empty() && value_ == value; }
  /// Returns the negative.
  Hyperparameter operator-() const;

 private:
  double value_ = 0;
  NamedArray array_;
};

namespace detail {

struct Updated {
  Leaves updates, mu, nu;
};
class UpdateScope {  // errors inside name the location of the call of init or update
 public:
  explicit UpdateScope(SourceLocation);
  // Errors also name the fields of the params. The `Walk` must have paths.
  UpdateScope(const Walk& params, SourceLocation);
  ~UpdateScope();
  UpdateScope(const UpdateScope&) = delete;

 private:
  std::shared_ptr<CallSite> here_;
};
Leaves trainable_zeros(const Leaves&, const std::vector<bool>& frozen);
NamedArray norm(const Leaves&);
Leaves scaled(Leaves, const Hyperparameter& by);
Leaves clipped(Leaves, const Hyperparameter& max_norm);
Updated adam(Leaves grads, Leaves mu, Leaves nu, const NamedArray& count, double b1, double b2,
             double eps, bool nesterov = false);
std::pair<Leaves, Leaves> momentum(Leaves grads, Leaves trace, double decay, bool nesterov);
Leaves decayed(Leaves updates, const Walk& params, const Hyperparameter& weight_decay,
               const LeafFilter& mask);
Leaves applied(Leaves params, const Leaves& updates);
NamedArray first_step();  // 0, i32
// mine where chosen, otherwise others
Leaves chosen_or(const Leaves& mine, const std::vector<bool>& chosen, Leaves others);
// For each array, the index of the first filter that selects it, or -1. Raises for a string that is
// in no path.
std::vector<int> group_of(const Walk& params, std::initializer_list<LeafFilter>);
Leaves of_group(Leaves, const std::vector<int>& group, int which);  // the others are empty

}  // namespace detail

/// @name Trees of gradients
/// @{

/// The state of a transformation without state.
struct Empty {};

/// Returns the square root of the sum of the squares of all elements of all leaves, as an `f32`
/// scalar.
template <class T>
NamedArray global_norm(const T& tree, SourceLocation at = SourceLocation::current()) {
  detail::UpdateScope scope(at);
  return detail::norm(flatten(tree));
}
/// Returns `params + updates`, in the dtypes of the params. Leaves without an update stay
/// unchanged.
///
///     auto [updates, next] = optimizer.update(grads, state, model);
///     model = optim::apply_updates(model, updates);
///
/// @throws haliax::Error if the trees have different structures, or two arrays have different axes
template <class T>
T apply_updates(const T& params, const T& updates, SourceLocation at = SourceLocation::current()) {
  detail::UpdateScope scope(at);
  return unflatten(params, detail::applied(flatten(params), flatten(updates)));
}

/// @}

/// @name Transformations
/// @{

/// Clips gradients by their global norm: multiplies all leaves by `max_norm / norm` if the global
/// norm exceeds `max_norm`.
struct ClipByGlobalNorm {
  Hyperparameter max_norm;  ///< Largest global norm.
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the clipped gradients.
  template <class T> std::pair<T, Empty> update(const T& grads, const Empty&, const T&) const {
    return {unflatten(grads, detail::clipped(flatten(grads), max_norm)), {}};
  }
};

/// The state of `ScaleByAdam`.
template <class T> struct AdamState {
  NamedArray count;  ///< Number of updates, an `i32` scalar.
  T mu;              ///< First moments.
  T nu;              ///< Second moments.
};
/// Adam (Kingma and Ba 2015): `m / (sqrt(v) + eps)`, where `m` and `v` are running means of the
/// gradient and of its square, with bias correction.
struct ScaleByAdam {
  double b1 = 0.9;        ///< Decay rate of the first moment.
  double b2 = 0.999;      ///< Decay rate of the second moment.
  double eps = 1e-8;      ///< Added to the square root.
  bool nesterov = false;  ///< Applies Nesterov momentum (Dozat 2016).
  /// Returns zero moments for each trainable leaf.
  template <class T> AdamState<T> init(const T& params) const {
    Walk w = walk_of(params);
    auto zeros = unflatten(params, detail::trainable_zeros(w.leaves(), w.frozen));
    return {detail::first_step(), zeros, zeros};
  }
  /// Returns the scaled gradients and the next state.
  /// @throws haliax::Error if a leaf has a gradient and no moments
  template <class T>
  std::pair<T, AdamState<T>> update(const T& grads, const AdamState<T>& s, const T&) const {
    auto count = s.count + 1;
    auto r =
        detail::adam(flatten(grads), flatten(s.mu), flatten(s.nu), count, b1, b2, eps, nesterov);
    return {unflatten(grads, r.updates), {count, unflatten(s.mu, r.mu), unflatten(s.nu, r.nu)}};
  }
};

/// Momentum: `trace = g + decay * trace`. The update is the trace, or `g + decay * trace` with
/// Nesterov momentum.
struct Momentum {
  double decay = 0.9;     ///< Decay rate of the trace.
  bool nesterov = false;  ///< Applies Nesterov momentum.
  /// Returns a zero trace for each trainable leaf.
  template <class T> T init(const T& params) const {
    Walk w = walk_of(params);
    return unflatten(params, detail::trainable_zeros(w.leaves(), w.frozen));
  }
  /// Returns the updates and the next trace.
  template <class T> std::pair<T, T> update(const T& grads, const T& trace, const T&) const {
    auto [updates, next] = detail::momentum(flatten(grads), flatten(trace), decay, nesterov);
    return {unflatten(grads, updates), unflatten(trace, next)};
  }
};

/// Weight decay: `updates + weight_decay * params`.
struct AddDecayedWeights {
  Hyperparameter weight_decay = 0;  ///< Factor of the params.
  LeafFilter mask = {};             ///< Leaves that decay. Default: all.
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the updates with the decay added.
  template <class T>
  std::pair<T, Empty> update(const T& updates, const Empty&, const T& params) const {
    Walk w = walk_of(params, {.paths = !mask.all()});
    return {unflatten(updates, detail::decayed(flatten(updates), w, weight_decay, mask)), {}};
  }
};

/// Multiplies updates by a constant. Gradient descent has a negative factor.
struct Scale {
  Hyperparameter factor = 1;  ///< The constant.
  /// Returns the state.
  template <class T> Empty init(const T&) const { return {}; }
  /// Returns the scaled updates.
  template <class T> std::pair<T, Empty> update(const T& updates, const Empty&, const T&) const {
    return {unflatten(updates, detail::scaled(flatten(updates), factor)), {}};
  }
};

/// Multiplies updates by a schedule: a function of the number of previous updates (an `i32` scalar)
/// that returns a factor. The state is this number.
template <class Schedule> struct ScaleBySchedule {
  Schedule schedule;  ///< The function.
  /// Returns 0.
  template <class T> NamedArray init(const T&) const { return detail::first_step(); }
  /// Returns the scaled updates and the next count.
  template <class T>
  std::pair<T, NamedArray> update(const T& updates, const NamedArray& count, const T&) const {
    return {unflatten(updates, detail::scaled(flatten(updates), schedule(count))), count + 1};
  }
};
/// A schedule that increases linearly from 0 to `peak` in `warmup` steps, and then decays to
/// `final` along half a cosine until step `total`.
///
///     auto optimizer = optim::adamw(optim::WarmupCosine{3e-4, 100, 1000}, {});
struct WarmupCosine {
  double peak;          ///< Maximum.
  std::int64_t warmup;  ///< Steps of the linear increase.
  std::int64_t total;   ///< Steps until `final`, warmup included.
  double final = 0;     ///< Value from step `total` on.
  /// Returns the value at step `count`, an `f32` scalar.
  NamedArray operator()(const NamedArray& count) const;
};
/// The negative of a schedule.
template <class Schedule> struct Negative {
  Schedule schedule;  ///< The schedule.
  /// Returns `-schedule(count)`.
  NamedArray operator()(const NamedArray& count) const { return -schedule(count); }
};

/// A sequence of transformations, each applied to the updates of the one before. The state is the
/// tuple of their states.
template <class... Steps> struct Chain {
  std::tuple<Steps...> steps;  ///< The transformations, in order.

  /// Returns the initial state for `params`.
  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(walk_of(params, {.paths = true}), at);
    return std::apply([&](const auto&... s) { return std::tuple(s.init(params)...); }, steps);
  }
  /// Returns the updates and the next state.
  /// @throws haliax::Error if `grads`, `state` and `params` do not match
  template <class T, class State>
  std::pair<T, State> update(const T& grads, const State& state, const T& params,
                             SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    std::pair<T, State> r{grads, state};
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((std::tie(r.first, std::get<I>(r.second)) =
            std::get<I>(steps).update(r.first, std::get<I>(state), params)),
       ...);
    }
    (std::index_sequence_for<Steps...>{});
    return r;
  }
};
/// Returns the sequence of these transformations.
///
///     auto optimizer = optim::chain(optim::clip_by_global_norm(1), optim::adamw());
template <class... Steps> Chain<Steps...> chain(Steps... steps) { return {{std::move(steps)...}}; }

/// @}

/// @name Parts of a model
/// @{

/// A transformation of the leaves that a filter selects. The other updates pass through unchanged
/// and have no state, as in Optax.
template <class Inner> struct Masked {
  LeafFilter which;  ///< The transformed leaves.
  Inner inner;       ///< The transformation.

  /// Returns the initial state of the selected leaves.
  /// @throws haliax::Error if the filter is a string that no path contains
  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    return inner.init(filter(params, which));
  }
  /// Returns the updates and the next state.
  template <class T, class State>
  std::pair<T, State> update(const T& updates, const State& state, const T& params,
                             SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    Walk w = walk_of(params, {.paths = true});
    auto chosen = which.chosen("masked", w, at);
    auto mine = [&](const T& tree) {
      return unflatten(tree, haliax::detail::only_leaves(flatten(tree), chosen));
    };
    auto [next, after] = inner.update(mine(updates), state, mine(params));
    return {unflatten(updates, detail::chosen_or(flatten(next), chosen, flatten(updates))), after};
  }
};
/// Returns `inner`, applied to the leaves that `which` selects.
template <class Inner> Masked<Inner> masked(Inner inner, LeafFilter which) {
  return {std::move(which), std::move(inner)};
}

/// A filter with the optimizer of the leaves that it selects.
template <class Optimizer> struct Group {
  LeafFilter which;     ///< The leaves.
  Optimizer optimizer;  ///< Their optimizer.
};
/// Returns a group for `groups`.
template <class Optimizer> Group<Optimizer> group(LeafFilter which, Optimizer optimizer) {
  return {std::move(which), std::move(optimizer)};
}
/// Optimizers by path. The first group that selects a leaf updates it. A leaf without a group has
/// no update. Each group has states for its own leaves.
template <class... Optimizers> struct Groups {
  std::tuple<Group<Optimizers>...> all;  ///< The groups, in order.

  /// Returns the initial state: the tuple of the states of the groups.
  /// @throws haliax::Error if a filter is a string that no path contains
  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    auto group = groups_of(params);
    return each(
        [&](auto i, const auto& g) { return g.optimizer.init(part(params, group, int(i))); });
  }
  /// Returns the updates and the next state.
  template <class T, class State>
  std::pair<T, State> update(const T& grads, const State& state, const T& params,
                             SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    auto group = groups_of(params);
    Leaves updates(group.size());
    State next = state;
    each([&](auto i, const auto& g) {
      auto& mine = std::get<i>(next);
      auto [u, after] =
          g.optimizer.update(part(grads, group, int(i)), mine, part(params, group, int(i)));
      updates = haliax::detail::merged_leaves(detail::of_group(flatten(u), group, int(i)), updates);
      mine = after;
      return 0;
    });
    return {unflatten(grads, updates), next};
  }

 private:
  template <class F> auto each(const F& f) const {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::tuple{f(std::integral_constant<std::size_t, I>(), std::get<I>(all))...};
    }
    (std::index_sequence_for<Optimizers...>{});
  }
  template <class T> std::vector<int> groups_of(const T& params) const {
    Walk w = walk_of(params, {.paths = true});
    return std::apply([&](const auto&... g) { return detail::group_of(w, {g.which...}); }, all);
  }
  template <class T> static T part(const T& tree, const std::vector<int>& group, int which) {
    return unflatten(tree, detail::of_group(flatten(tree), group, which));
  }
};
/// Returns an optimizer with one optimizer per group.
///
///     optim::groups(optim::group("lora", optim::adamw({.learning_rate = 1e-3})),
///                   optim::group("norm", optim::sgd()));
template <class... Optimizers> Groups<Optimizers...> groups(Group<Optimizers>... all) {
  return {{std::move(all)...}};
}

/// An optimizer with a label, for `multi_transform`.
template <class Optimizer> struct Labeled {
  std::string label;    ///< The label.
  Optimizer optimizer;  ///< The optimizer of the leaves with this label.
};
/// Returns a labeled optimizer for `multi_transform`.
template <class Optimizer> Labeled<Optimizer> labeled(std::string label, Optimizer optimizer) {
  return {std::move(label), std::move(optimizer)};
}
namespace detail {
// Returns true if the label is `mine`. Raises unless it is in `all`.
bool has_label(const std::string& label, const std::string& mine,
               const std::vector<std::string>& all, const std::string& path);
}  // namespace detail
/// Returns an optimizer with one optimizer per label, as `multi_transform` of Optax. Each leaf has
/// one label.
///
///     optim::multi_transform(
///         [](const std::string& path, const NamedArray& leaf) {
///           return path.find("norm") == path.npos ? "muon" : "adam";
///         },
///         optim::labeled("muon", optim::scale_by_muon()), optim::labeled("adam", optim::adam()));
///
/// @param label       `label(path, array)` -> the label of a leaf
/// @param optimizers  an optimizer for each label
/// @return an optimizer; its `init` raises haliax::Error for a label without an optimizer
/// @see groups, which selects leaves by filters
template <class F, class... Optimizers>
Groups<Optimizers...> multi_transform(F label, Labeled<Optimizers>... optimizers) {
  const std::vector<std::string> all{optimizers.label...};
  auto filter = [&](const std::string& mine) {
    return LeafFilter([label, mine, all](const std::string& path, const NamedArray& leaf) {
      return detail::has_label(label(path, leaf), mine, all, path);
    });
  };
  return groups(group(filter(optimizers.label), std::move(optimizers.optimizer))...);
}

/// @}

/// @name Types for members of classes
/// @{

/// The state of an optimizer for a model: `optim::State<optim::AdamW, Model>`.
template <class Optimizer, class Model>
using State = decltype(std::declval<const Optimizer&>().init(std::declval<const Model&>()));
/// The result of `sgd`.
using Sgd = Chain<Momentum, Scale>;
/// The result of `adam`.
using Adam = Chain<ScaleByAdam, Scale>;
/// The result of `adamw` with a constant learning rate.
using AdamW = Chain<ScaleByAdam, AddDecayedWeights, Scale>;
/// The result of `adamw` with a schedule.
template <class Schedule>
using ScheduledAdamW = Chain<ScaleByAdam, AddDecayedWeights, ScaleBySchedule<Negative<Schedule>>>;

/// @}

/// @name Optimizers
/// @{

/// Returns a transformation that clips gradients to a global norm of at most `max_norm`.
ClipByGlobalNorm clip_by_global_norm(const Hyperparameter& max_norm);
/// Returns the scaling of Adam; see `ScaleByAdam`.
ScaleByAdam scale_by_adam(double b1 = 0.9, double b2 = 0.999, double eps = 1e-8,
                          bool nesterov = false);
/// Returns weight decay of the leaves that `mask` selects, by default of all leaves.
AddDecayedWeights add_decayed_weights(const Hyperparameter& weight_decay, LeafFilter mask = {});
/// Returns a multiplication by `factor`.
Scale scale(const Hyperparameter& factor);
/// Returns a multiplication by a schedule; see `ScaleBySchedule`.
template <class S> ScaleBySchedule<S> scale_by_schedule(S schedule) {
  return {std::move(schedule)};
}

/// Options of `adam`.
struct AdamOptions {
  Hyperparameter learning_rate = 1e-3;  ///< Learning rate.
  double b1 = 0.9;                      ///< Decay rate of the first moment.
  double b2 = 0.999;                    ///< Decay rate of the second moment.
  double eps = 1e-8;                    ///< Added to the square root.
};
/// Options of `adamw`.
struct AdamWOptions {
  Hyperparameter learning_rate = 1e-3;  ///< Learning rate. Not used with a schedule.
  double b1 = 0.9;                      ///< Decay rate of the first moment.
  double b2 = 0.999;                    ///< Decay rate of the second moment.
  double eps = 1e-8;                    ///< Added to the square root.
  Hyperparameter weight_decay = 1e-4;   ///< Weight decay, times the learning rate.
  LeafFilter mask = {};                 ///< Leaves that decay. Default: all.
};
/// Options of `sgd`.
struct SgdOptions {
  Hyperparameter learning_rate = 1e-2;  ///< Learning rate.
  double momentum = 0;                  ///< Decay rate of the momentum.
  bool nesterov = false;                ///< Applies Nesterov momentum.
};
/// Returns stochastic gradient descent: `p - learning_rate * trace`, with the trace of `Momentum`.
Sgd sgd(SgdOptions options = {});
/// Returns Adam: `p - learning_rate * m / (sqrt(v) + eps)`.
Adam adam(AdamOptions options = {});
/// Returns AdamW (Loshchilov and Hutter 2019): `p - learning_rate * (m / (sqrt(v) + eps) +
/// weight_decay * p)`.
///
///     auto optimizer = optim::adamw({.learning_rate = 3e-4, .weight_decay = 0.1});
///     auto state = optimizer.init(model);
///     auto [updates, next] = optimizer.update(grads, state, model);
AdamW adamw(AdamWOptions options = {});
/// Returns AdamW with a schedule in place of the learning rate.
template <class S> ScheduledAdamW<S> adamw(S schedule, AdamWOptions o) {
  return chain(ScaleByAdam{o.b1, o.b2, o.eps}, AddDecayedWeights{o.weight_decay, o.mask},
               ScaleBySchedule<Negative<S>>{{std::move(schedule)}});
}

/// @}

/// @name Hyperparameters in the state
/// @{

/// The hyperparameters of `inject_hyperparams`, by name. A tree: each is an `f32` scalar.
class Hyperparams {
 public:
  using key_type = std::string;    ///< A name.
  using mapped_type = NamedArray;  ///< A value.
  struct key_compare {};           ///< Names are in the order of `inject_hyperparams`.
  using value_type = std::pair<std::string, NamedArray>;  ///< A name and its value.
  /// Creates hyperparameters without names.
  Hyperparams();
  /// Creates hyperparameters.
  explicit Hyperparams(std::vector<value_type> all);
  Hyperparams(const Hyperparams&);
  Hyperparams(Hyperparams&&) noexcept;
  Hyperparams& operator=(const Hyperparams&);
  Hyperparams& operator=(Hyperparams&&) noexcept;
  ~Hyperparams();
  /// Returns the value of a name. Assign it to change the value of the next update.
  /// @throws haliax::Error if there is no such name
  NamedArray& operator[](const std::string& name);
  const NamedArray& operator[](const std::string& name) const;
  /// Returns an iterator to the pair of a name, or `end()`.
  std::vector<value_type>::iterator find(const std::string& name);
  /// Returns an iterator to the first pair.
  std::vector<value_type>::iterator begin();
  std::vector<value_type>::const_iterator begin() const;
  /// Returns an iterator past the last pair.
  std::vector<value_type>::iterator end();
  std::vector<value_type>::const_iterator end() const;
  /// Returns the number of hyperparameters.
  std::size_t size() const;

 private:
  std::vector<value_type> all_;
};

/// A name with its value, or with a schedule of it, for `inject_hyperparams`.
struct Injected {
  std::string name;        ///< Name of the hyperparameter.
  double value = 0;        ///< Initial value, without a schedule.
  Schedule schedule = {};  ///< Schedule of the value; empty: the value of the state.
  /// Names a value.
  Injected(const char* n, double v) : name(n), value(v) {}
  /// Names a schedule.
  template <class F>
  requires std::is_invocable_r_v<NamedArray, const F&, const NamedArray&> Injected(const char* n,
                                                                                   F f)
      : name(n), schedule(std::move(f)) {}
};
namespace detail {
// Returns the values at a step: of the schedules, otherwise of `state`, or initial ones without it.
Hyperparams hyperparams_at(const std::vector<Injected>&, const NamedArray& count,
                           const Hyperparams* state);
}  // namespace detail

/// The state of `InjectHyperparams`.
template <class Inner> struct InjectState {
  NamedArray count;         ///< Number of updates, an `i32` scalar.
  Hyperparams hyperparams;  ///< The values of the last update; assigned ones apply to the next.
  Inner inner;              ///< The state of the optimizer.
};
/// An optimizer that is created from the hyperparameters in its state; see `inject_hyperparams`.
template <class Make> struct InjectHyperparams {
  Make make;                     ///< `make(hyperparams)` -> optimizer
  std::vector<Injected> values;  ///< The hyperparameters.

  /// Returns the initial state.
  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    auto count = detail::first_step();
    auto h = detail::hyperparams_at(values, count, nullptr);
    auto inner = make(std::as_const(h)).init(params);
    return InjectState<decltype(inner)>{count, h, inner};
  }
  /// Returns the updates and the next state.
  template <class T, class Inner>
  std::pair<T, InjectState<Inner>> update(const T& grads, const InjectState<Inner>& state,
                                          const T& params,
                                          SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    auto h = detail::hyperparams_at(values, state.count, &state.hyperparams);
    auto [updates, inner] = make(std::as_const(h)).update(grads, state.inner, params);
    return {updates, {state.count + 1, h, inner}};
  }
};
/// Returns an optimizer whose state holds hyperparameters, so that they can be logged and changed
/// between steps, as in Optax. A jitted step is not traced again when a value changes.
///
///     auto optimizer = optim::inject_hyperparams(
///         [](const optim::Hyperparams& h) {
///           return optim::adamw({.learning_rate = h["learning_rate"]});
///         },
///         {{"learning_rate", 3e-4}});
///     auto state = optimizer.init(model);
///     state.hyperparams["learning_rate"] = 1e-4;
///
/// A value with a schedule is computed in each update; an assigned value has no effect.
///
/// @param make    `make(hyperparams)` -> optimizer; it must not depend on values, which may be
///     unknown while a step is traced
/// @param values  names with values or schedules
template <class Make>
InjectHyperparams<Make> inject_hyperparams(Make make, std::vector<Injected> values) {
  return {std::move(make), std::move(values)};
}

/// @}

}  // namespace optim
}  // namespace haliax
