// Optimisers as chains of gradient transformations. Each has init(params) -> state and
// update(grads, state, params) -> {updates, state}; a state holds trees of the model's own type, so
// that it shards, saves and prints as the model does. All is elementwise: one pass per array. Each
// transformation of bf16 and f16 is made in f32, and what it gives is rounded once. Leaves without
// a gradient (frozen ones, integers) have empty updates and empty states.
#pragma once
#include <memory>
#include <tuple>
#include <utility>

#include "haliax/ops.h"
#include "haliax/tree.h"

namespace haliax {
class CallSite;
}
namespace [[gnu::visibility("default")]] haliax {
namespace optim {

namespace detail {

struct Updated {
  Leaves updates, mu, nu;
};
class UpdateScope {  // what goes wrong inside is reported where the update was called
 public:
  explicit UpdateScope(SourceLocation);
  // from here on messages name the fields of the params; the walk has paths
  UpdateScope(const Walk& params, SourceLocation);
  ~UpdateScope();
  UpdateScope(const UpdateScope&) = delete;

 private:
  std::shared_ptr<CallSite> here_;
};
Leaves trainable_zeros(const Leaves&, const std::vector<bool>& frozen);
NamedArray norm(const Leaves&);
Leaves scaled(Leaves, const NamedArray& by);
Leaves clipped(Leaves, double max_norm);
Updated adam(Leaves grads, Leaves mu, Leaves nu, const NamedArray& count, double b1, double b2,
             double eps);
std::pair<Leaves, Leaves> momentum(Leaves grads, Leaves trace, double decay, bool nesterov);
Leaves decayed(Leaves updates, const Walk& params, double weight_decay, const LeafFilter& mask);
Leaves applied(Leaves params, const Leaves& updates);
NamedArray first_step();  // 0, i32
// mine where chosen, else the others
Leaves chosen_or(const Leaves& mine, const std::vector<bool>& chosen, Leaves others);
// For each array the first of the filters that chooses it, or -1. Raises for a text that is in no
// path.
std::vector<int> group_of(const Walk& params, std::initializer_list<LeafFilter>);
Leaves of_group(Leaves, const std::vector<int>& group, int which);  // the others are empty

}  // namespace detail

struct Empty {};  // the state of what has none

// sqrt of the sum of the squares of all elements of all leaves, in f32.
template <class T> NamedArray global_norm(const T& tree) { return detail::norm(flatten(tree)); }
// params + updates, in the dtypes of the params.
template <class T>
T apply_updates(const T& params, const T& updates, SourceLocation at = SourceLocation::current()) {
  detail::UpdateScope scope(at);
  return unflatten(params, detail::applied(flatten(params), flatten(updates)));
}

// Scales all down together, so that their global norm is at most this.
struct ClipByGlobalNorm {
  double max_norm;
  template <class T> Empty init(const T&) const { return {}; }
  template <class T> std::pair<T, Empty> update(const T& grads, const Empty&, const T&) const {
    return {unflatten(grads, detail::clipped(flatten(grads), max_norm)), {}};
  }
};

template <class T> struct AdamState {
  NamedArray count;
  T mu, nu;
};
// m / (sqrt(v) + eps), with m and v corrected for having started from zero.
struct ScaleByAdam {
  double b1 = 0.9, b2 = 0.999, eps = 1e-8;
  template <class T> AdamState<T> init(const T& params) const {
    Walk w = walk_of(params);
    auto zeros = unflatten(params, detail::trainable_zeros(w.leaves(), w.frozen));
    return {detail::first_step(), zeros, zeros};
  }
  template <class T>
  std::pair<T, AdamState<T>> update(const T& grads, const AdamState<T>& s, const T&) const {
    auto count = s.count + 1;
    auto r = detail::adam(flatten(grads), flatten(s.mu), flatten(s.nu), count, b1, b2, eps);
    return {unflatten(grads, r.updates), {count, unflatten(s.mu, r.mu), unflatten(s.nu, r.nu)}};
  }
};

// trace = g + decay * trace; updates by the trace, or one step ahead of it.
struct Momentum {
  double decay = 0.9;
  bool nesterov = false;
  template <class T> T init(const T& params) const {
    Walk w = walk_of(params);
    return unflatten(params, detail::trainable_zeros(w.leaves(), w.frozen));
  }
  template <class T> std::pair<T, T> update(const T& grads, const T& trace, const T&) const {
    auto [updates, next] = detail::momentum(flatten(grads), flatten(trace), decay, nesterov);
    return {unflatten(grads, updates), unflatten(trace, next)};
  }
};

// updates + weight_decay * params, where the mask says so by the leaf's path and array; everywhere,
// if there is none.
struct AddDecayedWeights {
  double weight_decay = 0;
  LeafFilter mask = {};
  template <class T> Empty init(const T&) const { return {}; }
  template <class T>
  std::pair<T, Empty> update(const T& updates, const Empty&, const T& params) const {
    Walk w = walk_of(params, {.paths = !mask.all()});
    return {unflatten(updates, detail::decayed(flatten(updates), w, weight_decay, mask)), {}};
  }
};

struct Scale {
  double factor = 1;
  template <class T> Empty init(const T&) const { return {}; }
  template <class T> std::pair<T, Empty> update(const T& updates, const Empty&, const T&) const {
    return {unflatten(updates, detail::scaled(flatten(updates), factor)), {}};
  }
};

// A schedule: a function of the number of steps made (i32) and giving a factor.
template <class Schedule> struct ScaleBySchedule {
  Schedule schedule;
  template <class T> NamedArray init(const T&) const { return detail::first_step(); }
  template <class T>
  std::pair<T, NamedArray> update(const T& updates, const NamedArray& count, const T&) const {
    return {unflatten(updates, detail::scaled(flatten(updates), schedule(count))), count + 1};
  }
};
// From 0 to the peak in `warmup` steps, then down to `final` along half a cosine, until step
// `total`.
struct WarmupCosine {
  double peak;
  std::int64_t warmup, total;
  double final = 0;
  NamedArray operator()(const NamedArray& count) const;
};
template <class Schedule> struct Negative {
  Schedule schedule;
  NamedArray operator()(const NamedArray& count) const { return -schedule(count); }
};

// One after the other: each transforms the updates of the one before. The state is the tuple of
// their states.
template <class... Steps> struct Chain {
  std::tuple<Steps...> steps;

  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(walk_of(params, {.paths = true}), at);
    return std::apply([&](const auto&... s) { return std::tuple(s.init(params)...); }, steps);
  }
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
template <class... Steps> Chain<Steps...> chain(Steps... steps) { return {{std::move(steps)...}}; }

// ---- parts of a model ----
// A transformation of some updates alone; the others pass as they are, and have no state. As
// Optax's.
template <class Inner> struct Masked {
  LeafFilter which;
  Inner inner;

  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    return inner.init(filter(params, which));
  }
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
template <class Inner> Masked<Inner> masked(Inner inner, LeafFilter which) {
  return {std::move(which), std::move(inner)};
}

// Rates, decay and rules by path: each array is updated by the first group that its path is of, and
// stays as it is if there is none. A group has states of its own arrays alone.
//   optim::groups(optim::group("lora", optim::adamw({.learning_rate = 1e-3})), optim::group("norm",
//   optim::sgd()))
template <class Optimizer> struct Group {
  LeafFilter which;
  Optimizer optimizer;
};
template <class Optimizer> Group<Optimizer> group(LeafFilter which, Optimizer optimizer) {
  return {std::move(which), std::move(optimizer)};
}
template <class... Optimizers> struct Groups {
  std::tuple<Group<Optimizers>...> all;

  template <class T>
  auto init(const T& params, SourceLocation at = SourceLocation::current()) const {
    detail::UpdateScope scope(at);
    auto group = groups_of(params);
    return each(
        [&](auto i, const auto& g) { return g.optimizer.init(part(params, group, int(i))); });
  }
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
template <class... Optimizers> Groups<Optimizers...> groups(Group<Optimizers>... all) {
  return {{std::move(all)...}};
}

// ---- types, for members of classes ----
// What an optimiser keeps of a model: State<AdamW, Model>.
template <class Optimizer, class Model>
using State = decltype(std::declval<const Optimizer&>().init(std::declval<const Model&>()));
using Sgd = Chain<Momentum, Scale>;
using Adam = Chain<ScaleByAdam, Scale>;
using AdamW = Chain<ScaleByAdam, AddDecayedWeights, Scale>;
template <class Schedule>
using ScheduledAdamW = Chain<ScaleByAdam, AddDecayedWeights, ScaleBySchedule<Negative<Schedule>>>;

// ---- by their usual names ----
ClipByGlobalNorm clip_by_global_norm(double max_norm);
ScaleByAdam scale_by_adam(double b1 = 0.9, double b2 = 0.999, double eps = 1e-8);
AddDecayedWeights add_decayed_weights(double weight_decay, LeafFilter mask = {});
Scale scale(double factor);
template <class S> ScaleBySchedule<S> scale_by_schedule(S schedule) {
  return {std::move(schedule)};
}

struct AdamOptions {
  double learning_rate = 1e-3, b1 = 0.9, b2 = 0.999, eps = 1e-8;
};
struct AdamWOptions {
  double learning_rate = 1e-3, b1 = 0.9, b2 = 0.999, eps = 1e-8, weight_decay = 1e-4;
  LeafFilter mask = {};  // what decays
};
struct SgdOptions {
  double learning_rate = 1e-2, momentum = 0;
  bool nesterov = false;
};
Sgd sgd(SgdOptions = {});
Adam adam(AdamOptions = {});
// p - learning_rate * (m / (sqrt(v) + eps) + weight_decay * p)
AdamW adamw(AdamWOptions = {});
// The same with a schedule in place of the learning rate.
template <class S> ScheduledAdamW<S> adamw(S schedule, AdamWOptions o) {
  return chain(ScaleByAdam{o.b1, o.b2, o.eps}, AddDecayedWeights{o.weight_decay, o.mask},
               ScaleBySchedule<Negative<S>>{{std::move(schedule)}});
}

}  // namespace optim
}  // namespace haliax
