// Transformations of functions: gradients, vectorization, loops, activation checkpointing.
//
// A transformation returns a function. When it is called, it traces the original function on its
// arguments and builds graph nodes; it computes nothing. Arguments and results are trees: arrays,
// modules, and vectors, pairs, tuples and maps of them. Functions return their results: they must
// not assign to captured variables. Arguments are passed as `const`.
#pragma once
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/array.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Loop options
/// @{

/// The intermediates of a block to save: all, none, or those with a name; see
/// `tree_checkpoint_name`.
class BlockInternals {
 public:
  /// Saves no intermediates.
  BlockInternals() = default;
  /// Saves all intermediates, or none.
  BlockInternals(bool all) : all_(all) {}
  /// Saves the intermediates with these names.
  BlockInternals(std::initializer_list<const char*> names);
  BlockInternals(std::vector<std::string> names);
  /// Returns true if all intermediates are saved.
  bool all() const { return all_; }
  /// Returns the names of the intermediates to save.
  const std::vector<std::string>& names() const { return names_; }

 private:
  bool all_ = false;
  std::vector<std::string> names_;
};

/// The residuals of a loop in detail, with the fields of Haliax. It converts to a `ScanCheckpoint`.
///
///     blocks.gradient_checkpointing =
///         ScanCheckpointPolicy{.save_block_internals = {"attn_out"}};   // and the carries
/// @see ScanCheckpoint, tree_checkpoint_name
struct ScanCheckpointPolicy {
  /// Has no effect: the backward pass starts each iteration from its carry, so every policy saves
  /// carries.
  bool save_carries = true;
  /// Has no effect: the arguments of a loop stay in memory, and are sliced again.
  bool save_inputs = false;
  /// Intermediates to save: all (the policy `none` of `ScanCheckpoint`), or those with a name.
  BlockInternals save_block_internals = {};
  /// Names of further intermediates to save. They stay in the memory of the device: values are not
  /// moved to the host.
  std::vector<std::string> offload_block_internals = {};
  bool disable = false;  ///< Saves all residuals, as the policy `none`.
  bool simple = false;   ///< Has no effect: as the policy `carries`.
  /// 0: no blocks. 1 or true: about sqrt(n) blocks of iterations. Otherwise: the number of blocks,
  /// which must divide the size of the axis.
  std::int64_t nested = 0;
};

/// The policy for the residuals of a loop: save them, or recompute (rematerialize) them in the
/// backward pass.
///
/// - `none` (default) saves the residuals of each iteration. Nothing is recomputed.
/// - `carries` saves the carry of each iteration, and intermediates with a name in `saved`.
///   The rest of the body is recomputed once.
/// - `nested` saves the carry of each of about sqrt(n) blocks of iterations. The body is recomputed
///   twice.
///
/// It converts from a name, from a bool, where `true` is `carries`, and from a
/// `ScanCheckpointPolicy`.
struct ScanCheckpoint {
  /// The policies.
  enum class Policy : std::uint8_t {
    none,     ///< saves the residuals; the fastest
    carries,  ///< saves the carries, and recomputes the body
    /// Saves the carry of each block of iterations and recomputes the body twice, but its sums over
    /// devices once. The least memory.
    nested,
  };
  static constexpr bool is_static = true;  ///< a field of a module is static
  Policy policy = Policy::none;            ///< the policy
  std::int64_t blocks = 0;                 ///< number of blocks of `nested`; 0: about sqrt(n)
  std::vector<std::string> saved = {};     ///< names of intermediates that are saved as well
  /// Creates the policy `none`.
  ScanCheckpoint() = default;
  /// Converts a policy, or a bool: `true` is `carries`, `false` is `none`.
  ScanCheckpoint(Policy p) : policy(p) {}
  ScanCheckpoint(bool on) : policy(on ? Policy::carries : Policy::none) {}
  /// Converts a name: `"none"` (`"save_all"`), `"carries"` (`"full"`, `"recompute"`, `"offload"`)
  /// or `"nested"`. `"offload"` saves carries in the memory of the device: values are not moved to
  /// the host.
  ///
  /// @throws haliax::Error for any other name
  ScanCheckpoint(const char* name, SourceLocation at = SourceLocation::current());
  /// Converts a policy in detail.
  ///
  /// @throws haliax::Error if all intermediates are saved and some are to be offloaded, or if
  ///     `nested` is negative
  ScanCheckpoint(const ScanCheckpointPolicy& policy, SourceLocation at = SourceLocation::current());
  ScanCheckpoint(const ScanCheckpoint&);
  ScanCheckpoint(ScanCheckpoint&&) noexcept;
  ScanCheckpoint& operator=(const ScanCheckpoint&);
  ScanCheckpoint& operator=(ScanCheckpoint&&) noexcept;
  ~ScanCheckpoint();
  friend bool operator==(const ScanCheckpoint& a, const ScanCheckpoint& b) { return a.equal(b); }

 private:
  bool equal(const ScanCheckpoint& other) const;
};

/// Options of `scan`, `fold`, `map` and `while_loop`.
struct ScanOptions {
  ScanCheckpoint checkpoint = {};  ///< policy for residuals
  bool reverse = false;            ///< starts at the last position; stacked results stay in place
  /// Positions per iteration: the body is traced for each of them. If it is at least the size of
  /// the axis, there is no loop.
  std::int64_t unroll = 1;
  /// The arrays of the arguments that are sliced if they have the axis; default: all. The others
  /// are passed in full. A path starts with the position of the argument, from 0: `1.weight`.
  LeafFilter is_scanned = {};
  SourceLocation at = {};  ///< the line that error messages name; default: the line of the call
};

/// @}

struct Context;

namespace detail {

// A function of trees, as a function of leaves.
struct LeafFunction {
  void* self;
  Leaves (*call)(void* self, const Leaves& in);
  Leaves operator()(const Leaves& in) const { return call(self, in); }
};
struct BodyFunction {
  void* self;
  void (*call)(void* self, const Leaves& carry, const Leaves& xs, Leaves& next, Leaves& out);
};
// Marks a trace for its lifetime. The destructor restores the context, also after an exception.
class Tracing {
 public:
  Tracing();
  ~Tracing();
  Tracing(const Tracing&) = delete;

 private:
  std::shared_ptr<Context> before_;
};
// Returns unique tracers with the values of the float leaves, to differentiate with respect to.
// Other leaves, and frozen ones, are returned unchanged.
Leaves tracers(const Leaves&, const std::vector<bool>& frozen,
               const std::vector<std::string>& paths);
// Return the cotangents of `wrt`. Leaves of `wrt` that are not tracers have empty cotangents.
Leaves gradients(const NamedArray& loss, const Leaves& wrt, SourceLocation);
Leaves pullback(const Leaves& ys, const Leaves& gs, const Leaves& wrt, SourceLocation);
std::pair<Leaves, Leaves> jvp(LeafFunction, const Leaves& primals, const Leaves& tangents,
                              SourceLocation);
// The axes that vmap hides from the mapped function, the outermost first.
class MappedAxes {
 public:
  MappedAxes(const AxisSelector&, SourceLocation);
  MappedAxes(std::vector<AxisSelector>, SourceLocation);
  MappedAxes(std::initializer_list<AxisSelector>, SourceLocation);
  MappedAxes(const MappedAxes&);
  ~MappedAxes();
  // Hides the axes of the arguments. Returns the hidden axes.
  Axes hide(const Walk& arguments) const;
  // Adds the axes to the results, in front.
  void show(const Walk& results, const Axes& hidden) const;

 private:
  std::vector<AxisSelector> axes_;
  SourceLocation at_;
};
// `op` is the name in error messages.
std::pair<Leaves, Leaves> scan(const char* op, const AxisSelector&, const ScanOptions&,
                               const Walk& init, const Walk& xs, BodyFunction);
Leaves checkpoint(LeafFunction, const Leaves& in, SourceLocation,
                  const std::vector<std::string>& saved = {});
NamedArray with_checkpoint_name(const NamedArray&, const std::string& name, SourceLocation);
Leaves custom_vjp(LeafFunction forward, const Leaves& in, std::shared_ptr<void> backward,
                  Leaves (*call)(void*, const Leaves& in, const Leaves& out,
                                 const Leaves& cotangents));
// Returns the cotangents of `in` for a linear function of its tangents to tangents of `out`.
Leaves transposed(LeafFunction linear, const Leaves& in, const Leaves& out, const Leaves& g);
Leaves eval_shape(LeafFunction, const Leaves& in);
// Returns the first position along the axis, and the others.
std::pair<NamedArray, NamedArray> first_and_rest(const NamedArray&, const AxisSelector&,
                                                 SourceLocation);
Leaves associative_scan_leaves(const AxisSelector&, const Leaves& xs, BodyFunction, bool reverse,
                               SourceLocation);

// Replaces the float arrays of `tree`, or the ones that `wrt` selects, by tracers.
template <class T> Walk traced(T& tree, const LeafFilter& wrt = {}, SourceLocation at = {}) {
  Walk w = walk_of(tree, {.paths = true});
  auto left_out = w.frozen;
  if (!wrt.all()) {
    left_out = trainable_of(w, wrt.chosen("grad", w, at));
    left_out.flip();
  }

  w.assign(tracers(w.leaves(), left_out, w.paths));
  return w;
}
// The result type of f for these arguments. If f cannot be called with them, it is void, and an
// assertion fails.
template <class F, class... A> constexpr auto call_result() {
  constexpr bool takes = std::is_invocable_v<F, const A&...>;
  static_assert(
      takes,
      "haliax: a traced function is called with arguments of its parameter types; arguments are "
      "passed as const.");
  if constexpr (takes) {
    using R = std::decay_t<std::invoke_result_t<F, const A&...>>;
    // a transformation whose call has failed already
    constexpr bool is_transformed = requires {
      typename std::remove_cvref_t<F>::TransformedFunction;
    };
    static_assert(!std::is_void_v<R> || is_transformed,
                  "haliax: a traced function must return its results; "
                  "an assignment to a capture has no value.");
    return std::type_identity<R>();
  } else {
    return std::type_identity<void>();
  }
}
template <class F, class... A> using CallResult = typename decltype(call_result<F, A...>())::type;
// Calls f with the elements of a tuple. It instantiates two functions for each f; std::apply does
// four.
template <class F, class... A> decltype(auto) spread(const F& f, const std::tuple<A...>& args) {
  return [&]<std::size_t... I>(std::index_sequence<I...>)->decltype(auto) {
    if constexpr (std::is_member_pointer_v<F>)
      return std::apply(f, args);
    else
      return f(std::get<I>(args)...);
  }
  (std::index_sequence_for<A...>());
}
// A call of f with the arguments `like`, as a function of leaves. The result is stored for its
// structure.
template <class F, class A, class R> struct LeafCall {
  const F* f;
  A like;
  std::optional<R> out = {};
  LeafFunction function() {
    return {this, [](void* self, const Leaves& in) {
              auto& c = *static_cast<LeafCall*>(self);
              c.out = spread(*c.f, unflatten(c.like, in));
              return flatten(*c.out);
            }};
  }
};
// The result of a transformation of f. It accepts the arguments of f; jit finds f by this type.
template <class F, class Call> struct TransformOf : Call { using TransformedFunction = F; };
template <class F, class Call> TransformOf<F, Call> transform_of(Call call) {
  return {std::move(call)};
}
// The type to differentiate with respect to: a C++ scalar becomes a scalar array.
template <class T>
using Differentiable = std::conditional_t<std::is_arithmetic_v<T>, NamedArray, T>;
template <class T> struct with_aux : std::false_type {};
template <class A> struct with_aux<std::pair<NamedArray, A>> : std::true_type {};

template <class F> auto vmap_over(F f, MappedAxes axes) {
  return transform_of<F>([f, axes](const auto&... args) {
    if constexpr (!std::is_void_v<CallResult<const F&, std::decay_t<decltype(args)>...>>) {
      Tracing tracing;
      std::tuple<std::decay_t<decltype(args)>...> in(args...);
      auto hidden = axes.hide(walk_of(in));
      auto out = spread(f, in);
      axes.show(walk_of(out), hidden);
      return out;
    }
  });
}

}  // namespace detail

/// @name Gradients
/// @{

/// Returns a function that computes `f` and its gradient with respect to the first argument.
///
/// `f(model, args...)` returns a loss, which is a scalar float array, or a pair of the loss and any
/// auxiliary results. The model is an array, a module or another tree. The new function returns a
/// pair of the result of `f` and the gradient, which has the type of the model. Gradients nest to
/// any order.
///
/// - Leaves that are not floats, and leaves in `Frozen`, have empty gradients.
/// - With `wrt`, leaves that it does not select have empty gradients.
/// - To differentiate with respect to several arguments, pass them as a pair or a tuple.
/// - Inside the traced function arrays have values, unless `jit` traces it, too.
///
/// @param f    `f(model, args...)` -> loss, or `std::pair(loss, aux)`
/// @param wrt  selects leaves by path, for example `"lora"`; default: all float leaves
/// @param at   the line that error messages name
/// @return a function `(model, args...)` -> `std::pair(result of f, gradient)`
/// @throws haliax::Error (when called) if the loss has axes or is not a float
///
///     auto [loss, grads] = value_and_grad(loss_fn)(model, inputs, targets);
/// @see grad, vjp, trainable
template <class F>
auto value_and_grad(F f, const LeafFilter& wrt, SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>([f, wrt, at](const auto& model, const auto&... args) {
    using T = detail::Differentiable<std::decay_t<decltype(model)>>;
    if constexpr (!std::is_void_v<
                      detail::CallResult<const F&, T, std::decay_t<decltype(args)>...>>) {
      detail::Tracing tracing;
      T mine = model;
      Walk w = detail::traced(mine, wrt, at);
      auto value = f(std::as_const(mine), args...);
      static_assert(
          std::is_same_v<decltype(value), NamedArray> || detail::with_aux<decltype(value)>::value,
          "haliax: a differentiated function must return a NamedArray, "
          "or a std::pair of it and anything else.");
      const NamedArray* loss = nullptr;
      if constexpr (detail::with_aux<decltype(value)>::value)
        loss = &value.first;
      else if constexpr (std::is_same_v<decltype(value), NamedArray>)
        loss = &value;
      auto g = detail::gradients(*loss, w.leaves(), at);
      return std::pair{std::move(value), unflatten(T(model), g)};
    }
  });
}
template <class F> auto value_and_grad(F f, SourceLocation at = SourceLocation::current()) {
  return value_and_grad(std::move(f), LeafFilter(), at);
}

/// Returns a function that computes the gradient of `f` with respect to the first argument.
///
/// The rules of `value_and_grad` apply. If `f` returns a pair, the result is a pair of the gradient
/// and the auxiliary results.
///
///     auto grads = grad(loss_fn)(model, inputs, targets);
///     auto second = grad([&](const NamedArray& x) { return sum(grad(f)(x)); })(x);
template <class F>
auto grad(F f, const LeafFilter& wrt, SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>(
      [vg = value_and_grad(f, wrt, at)](const auto& model, const auto&... args) {
        if constexpr (!std::is_void_v<decltype(vg(model, args...))>) {
          auto r = vg(model, args...);
          if constexpr (detail::with_aux<decltype(r.first)>::value)
            return std::pair{r.second, r.first.second};
          else
            return r.second;
        }
      });
}
template <class F> auto grad(F f, SourceLocation at = SourceLocation::current()) {
  return grad(std::move(f), LeafFilter(), at);
}

/// Computes `f(x)` and its pullback.
///
/// The pullback is a function from a cotangent of the result, which has the axes of the result, to
/// the cotangent of `x`. It may be called several times.
///
/// @param f   `f(x)` -> any tree
/// @param x   array or tree
/// @param at  the line that error messages name
/// @return `std::pair(f(x), pullback)`
///
///     auto [y, pullback] = vjp(f, x);
///     auto dx = pullback(ones_like(y));
template <class F, class T>
auto vjp(F f, const T& x, SourceLocation at = SourceLocation::current()) {
  using X = detail::Differentiable<T>;
  auto mine = std::make_shared<X>(x);
  Walk w = detail::traced(*mine);
  auto y = f(std::as_const(*mine));
  auto pull = [mine, wrt = w.leaves(), ys = flatten(y), like = X(x),
               at](const decltype(y)& cotangent) {
    return unflatten(like, detail::pullback(ys, flatten(cotangent), wrt, at));
  };
  // The caller receives a copy without its graph; the pullback retains the graph.
  Walk out = walk_of(y);
  out.assign(detail::tracers(out.leaves(), std::vector<bool>(out.arrays.size()),
                             std::vector<std::string>(out.arrays.size())));
  return std::pair{std::move(y), std::move(pull)};
}

/// Computes `f(primal)` and its derivative along `tangent`.
///
/// `tangent` has the structure and the axes of `primal`. The derivative is a gradient of a
/// gradient, so every op that has a gradient supports it.
///
/// @return `std::pair(f(primal), derivative)`
template <class F, class T>
auto jvp(F f, const T& primal, const T& tangent, SourceLocation at = SourceLocation::current()) {
  using X = detail::Differentiable<T>;
  using R = detail::CallResult<F&, X>;
  if constexpr (!std::is_void_v<R>) {
    struct Call {
      F* f;
      X like;
      std::optional<R> out;
    } c{&f, X(primal), {}};
    auto [ys, ts] = detail::jvp({&c,
                                 [](void* self, const Leaves& in) {
                                   auto& call = *static_cast<Call*>(self);
                                   call.out = (*call.f)(unflatten(call.like, in));
                                   return flatten(*call.out);
                                 }},
                                flatten(c.like), flatten(X(tangent)), at);
    return std::pair{unflatten(*c.out, ys), unflatten(*c.out, ts)};
  }
}

/// @}

/// @name Vectorization
/// @{

/// Returns a function that maps `f` over an axis: `f` is written for one position, and the new
/// function computes all of them at once.
///
/// `f` receives arrays without the axis. Arguments that lack the axis are shared by all positions.
/// Results have the axis first. An `Axis` with a size may be absent from all arguments. Random
/// draws inside differ by position only if their keys do: map over an array of keys. An argument
/// that `f` captures is not mapped, even if it has the axis.
///
/// @param f     function of trees
/// @param axes  axis to map over, or several axes; the first one is the outermost
/// @param at    the line that error messages name
/// @return a function with the parameters of `f`
/// @throws haliax::Error (when called) if no argument has an axis and it has no size, or a result
/// already has it
///
///     auto per_example = vmap(grad(loss_fn), "batch")(model, inputs);   // a gradient for each
///     vmap(f, {"batch", "position"})(x);   // two axes: results are (batch, position, ...)
template <class F>
auto vmap(F f, std::vector<AxisSelector> axes, SourceLocation at = SourceLocation::current()) {
  return detail::vmap_over(std::move(f), detail::MappedAxes(std::move(axes), at));
}
template <class F>
auto vmap(F f, const AxisSelector& axis, SourceLocation at = SourceLocation::current()) {
  return detail::vmap_over(std::move(f), detail::MappedAxes(axis, at));
}
template <class F>
auto vmap(F f, std::initializer_list<AxisSelector> axes,
          SourceLocation at = SourceLocation::current()) {
  return detail::vmap_over(std::move(f), detail::MappedAxes(axes, at));
}

/// @}

/// A tree without leaves.
struct Nothing {};

}  // namespace haliax
#include "haliax/detail/loops.h"  // uses ScanOptions and Nothing
namespace [[gnu::visibility("default")]] haliax {

/// @name Loops
/// A loop calls its function once for each position of an axis, in order. It is traced once, so
/// compile time does not depend on the size. Loop-invariant values are computed once.
/// @{

/// Returns a function `(init, xs...)` that runs `f` over an axis with a carry, and stacks results.
///
/// `f(carry, x...)` returns a pair of the next carry and a result. Arrays of `xs` that have the
/// axis are sliced at the position; other arrays, and those that `options.is_scanned` does not
/// select, are passed in full. The carry has the same type, axes, axis order and dtypes in each
/// iteration.
///
/// @param f        `f(carry, x...)` -> `std::pair(carry, y)`
/// @param axis     axis of the loop
/// @param options  order, policy for residuals, unrolling, and the arrays to slice
/// @return a function `(init, xs...)` -> `std::pair(last carry, stacked y)`; stacks have the axis
/// first. Start from a `NamedArray`, not from a C++ scalar.
/// @throws haliax::Error (when called) if no argument has `axis` and it has no size, or the carry
/// changes its axes or dtypes
///
///     auto step = [](const NamedArray& state, const NamedArray& x) {
///       auto next = tanh(state + x);
///       return std::pair(next, next);
///     };
///     auto [last, states] = scan(step, "time")(zeros(Embed), xs);   // xs (time, embed)
/// @see fold, map, associative_scan
template <class F>
auto scan(F f, const AxisSelector& axis, ScanOptions options = {},
          SourceLocation at = SourceLocation::current()) {
  return detail::scan_of("scan", std::move(f), axis, detail::located(std::move(options), at));
}

/// Returns a function `(init, xs...)` that runs `f` over an axis with a carry: a `scan` without
/// stacked results.
///
/// @param f        `f(carry, x...)` -> carry
/// @param axis     axis of the loop
/// @param options  order, policy for residuals, and unrolling
/// @return a function `(init, xs...)` -> last carry
///
///     auto add = [](const NamedArray& total, const NamedArray& x) { return total + x; };
///     auto total = fold(add, "time")(zeros(Embed), xs);   // (time, embed) -> (embed)
template <class F>
auto fold(F f, const AxisSelector& axis, ScanOptions options = {},
          SourceLocation at = SourceLocation::current()) {
  return detail::fold_of("fold", std::move(f), axis, detail::located(std::move(options), at));
}

/// Returns a function `(xs...)` that calls `f` for each position of an axis, one after the other.
///
/// The results are stacked, with the axis first. `vmap` computes the same values for all positions
/// at once, with more memory.
///
/// @param f        `f(x...)` -> y
/// @param axis     axis of the loop
/// @param options  order, policy for residuals, and unrolling
template <class F>
auto map(F f, const AxisSelector& axis, ScanOptions options = {},
         SourceLocation at = SourceLocation::current()) {
  options = detail::located(std::move(options), at);
  return detail::transform_of<F>([f, axis, options](const auto&... xs) {
    if constexpr (!std::is_void_v<detail::CallResult<const F&, std::decay_t<decltype(xs)>...>>) {
      auto g = [&f](const Nothing& n, const auto&... x) { return std::pair{n, f(x...)}; };
      return detail::scan_of("map", g, axis, options)(Nothing{}, xs...).second;
    }
  });
}

/// An axis, with the source location of the caller. Names and axes convert to it.
struct AxisHere {
  AxisSelector axis;  ///< the axis
  SourceLocation at;  ///< the line of the caller
  /// Converts a name or an axis.
  template <class A>
  AxisHere(const A& a, SourceLocation l = SourceLocation::current()) : axis(a), at(l) {}
};

/// Reduces an axis with a function of your own: `fold(f, axis)(init, xs...)`.
///
/// Without `init`, it reduces one array and starts at its first position.
///
/// @param f     `f(carry, x...)` -> carry
/// @param axis  axis to reduce
/// @param init  initial carry
/// @param xs    arrays or trees
/// @return the last carry
/// @throws haliax::Error if there is no `init` and the axis has size 0
template <class F, class C, class... X>
auto reduce(F f, AxisHere axis, const C& init, const X&... xs) {
  return detail::fold_of("reduce", std::move(f), axis.axis, {.at = axis.at})(init, xs...);
}
template <class F> NamedArray reduce(F f, AxisHere axis, const NamedArray& xs) {
  auto [first, rest] = detail::first_and_rest(xs, axis.axis, axis.at);
  return detail::fold_of("reduce", std::move(f), axis.axis.name, {.at = axis.at})(first, rest);
}

/// Computes all running results of an associative function in log2(size) parallel steps.
///
/// @param f        `f(a, b)`, associative; it receives slices along the axis, and not single
///                 positions
/// @param axis     axis to scan
/// @param xs       array, or tree of arrays that all have the axis
/// @param reverse  starts at the last position
/// @param at       the line that error messages name
/// @return tree like `xs`: at each position, the combination of all positions up to it. Each array
/// has the axis order that `f` returns.
template <class F, class T>
T associative_scan(F f, const AxisSelector& axis, const T& xs, bool reverse = false,
                   SourceLocation at = SourceLocation::current()) {
  struct Call {
    F* f;
    T like;
  } call{&f, xs};
  auto combine = [](void* self, const Leaves& a, const Leaves& b, Leaves& out, Leaves&) {
    auto& c = *static_cast<Call*>(self);
    out = flatten(T((*c.f)(unflatten(c.like, a), unflatten(c.like, b))));
  };
  return unflatten(
      xs, detail::associative_scan_leaves(axis, flatten(xs), {&call, combine}, reverse, at));
}

/// @}

/// @name Rematerialization and custom gradients
/// @{

/// Returns `f` with activation checkpointing: the backward pass recomputes the intermediates of `f`
/// instead of saving them.
///
/// The values are those of `f`. The arguments of `f` and the arrays that it captures are saved.
///
///     auto y = checkpoint(block)(x);
///     auto z = checkpoint(block, {"attn_out"})(x);   // does not recompute "attn_out"
///
/// @param f      function of trees
/// @param saved  names of intermediates that are saved as well; see `tree_checkpoint_name`
/// @param at     the line that error messages name
/// @see ScanCheckpoint
template <class F>
auto checkpoint(F f, std::vector<std::string> saved,
                SourceLocation at = SourceLocation::current()) {
  return detail::transform_of<F>([f, at, saved = std::move(saved)](const auto&... args) {
    using A = std::tuple<std::decay_t<decltype(args)>...>;
    using R = detail::CallResult<const F&, std::decay_t<decltype(args)>...>;
    if constexpr (!std::is_void_v<R>) {
      detail::LeafCall<F, A, R> call{&f, A(args...)};
      auto out = detail::checkpoint(call.function(), flatten(call.like), at, saved);
      return unflatten(std::move(*call.out), out);
    }
  });
}
template <class F> auto checkpoint(F f, SourceLocation at = SourceLocation::current()) {
  return checkpoint(std::move(f), std::vector<std::string>(), at);
}

/// Returns the tree with a name for its arrays. Policies that list the name save these arrays for
/// the backward pass instead of recomputing them. Without such a policy, it has no effect.
///
/// A policy of a loop applies to the names in its body, and not to those in loops inside of the
/// body.
///
///     auto attn_out = tree_checkpoint_name(attention(x), "attn_out");
///
/// @param tree  array or tree
/// @param name  the name; several arrays may share it
/// @see ScanCheckpointPolicy::save_block_internals, checkpoint
template <class T>
T tree_checkpoint_name(const T& tree, const std::string& name,
                       SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return detail::with_checkpoint_name(a, name, at); },
                  tree);
}

/// Returns `forward` with a gradient of your own.
///
/// An array that `backward` captures has no gradient. It must not capture an array from the body of
/// a loop that is recomputed, for example for a second derivative: pass such an array as an
/// argument.
///
/// @param forward   `forward(args...)` -> out
/// @param backward  `backward(std::tuple(args...), out, cotangent of out)` -> a tuple of cotangents
///                  of `args`, which are empty or have the axes of the argument
/// @return a function of `args...`
///
///     auto clipped = custom_vjp(
///         [](const NamedArray& x) { return x * 1.; },
///         [](const std::tuple<NamedArray>&, const NamedArray&, const NamedArray& g) {
///           return std::tuple(clip(g, -1., 1.));
///         });
template <class F, class B> auto custom_vjp(F forward, B backward) {
  return detail::transform_of<F>([forward, backward](const auto&... args) {
    using A = std::tuple<std::decay_t<decltype(args)>...>;
    using R = detail::CallResult<const F&, std::decay_t<decltype(args)>...>;
    constexpr bool back_takes = std::is_void_v<R> || std::is_invocable_v<B&, A, R, R>;
    static_assert(back_takes,
                  "haliax: the backward of custom_vjp must accept "
                  "the arguments as a tuple, the result, and its cotangent.");
    if constexpr (!std::is_void_v<R> && back_takes) {
      detail::LeafCall<F, A, R> call{&forward, A(args...)};
      struct Back {
        B b;
        A like;
        std::optional<R> out;
      };
      auto back = std::make_shared<Back>(Back{backward, call.like, {}});
      auto pull = [](void* self, const Leaves& in, const Leaves& result, const Leaves& g) {
        auto& b = *static_cast<Back*>(self);
        return flatten(
            A(b.b(unflatten(b.like, in), unflatten(*b.out, result), unflatten(*b.out, g))));
      };
      auto out = detail::custom_vjp(call.function(), flatten(call.like), back, pull);
      back->out = *call.out;
      // only their structure is retained
      Walk given = walk_of(back->like), made = walk_of(*back->out);
      given.assign(Leaves(given.arrays.size()));
      made.assign(Leaves(made.arrays.size()));
      return unflatten(std::move(*call.out), out);
    }
  });
}

/// Returns `f` with a derivative of your own, which `grad`, `vjp` and `jvp` use.
///
/// The rule must be linear in the tangents, which are empty for arguments that are not floats. An
/// array that the rule captures has no gradient.
/// @param f     `f(args...)` -> out
/// @param rule  `rule(std::tuple(args...), tangents)` -> `std::pair(out, tangent of out)`; only the
///              second is read. The tangents are a tuple like the arguments.
/// @return a function of `args...`
/// @throws haliax::Error (in the backward pass) if a tangent has other axes than its result
///
///     auto straight = custom_jvp(  // a gradient as if x were not clipped
///         [](const NamedArray& x) { return clip(x, -1, 1); },
///         [](const auto& in, const auto& tangents) {
///           return std::pair(std::get<0>(in), std::get<0>(tangents));
///         });
template <class F, class Rule> auto custom_jvp(F f, Rule rule) {
  return detail::transform_of<F>([f, rule](const auto&... args) {
    using A = std::tuple<std::decay_t<decltype(args)>...>;
    constexpr bool takes = std::is_invocable_v<const Rule&, const A&, const A&>;
    static_assert(takes, "haliax: the rule of custom_jvp must accept two tuples of arguments.");
    if constexpr (takes) {
      auto backward = [rule](const A& in, const auto& out, const auto& g) {
        auto tangent = [&](const auto&... t) { return rule(in, A(t...)).second; };
        using Out = decltype(std::apply(tangent, in));
        detail::LeafCall<decltype(tangent), A, Out> call{&tangent, in};
        return unflatten(
            in, detail::transposed(call.function(), flatten(in), flatten(out), flatten(g)));
      };
      return custom_vjp(f, backward)(args...);
    }
  });
}

/// Returns the result of `f` with axes and dtypes but without values: reading its arrays raises.
///
/// Use it for the shapes of a model that does not fit in memory.
///
///     auto shapes = eval_shape(Model::init, random::key(0));
template <class F, class... A> auto eval_shape(F f, const A&... args) {
  using R = detail::CallResult<F&, A...>;
  if constexpr (!std::is_void_v<R>) {
    detail::LeafCall<F, std::tuple<A...>, R> call{&f, std::tuple<A...>(args...)};
    auto out = detail::eval_shape(call.function(), flatten(call.like));
    return unflatten(std::move(*call.out), out);
  }
}

/// @}

}  // namespace haliax
