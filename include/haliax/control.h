// Control flow by values that are known only when the program runs: cond, switch_ and while_loop.
// Arguments and results are trees.
#pragma once
#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "haliax/ops.h"
#include "haliax/transforms.h"

namespace [[gnu::visibility("default")]] haliax {
namespace detail {

// The branches of a choice, as functions without arguments, and the call that error messages name.
struct Sides {
  const LeafFunction* each;
  std::size_t count;
  const char* word;
  SourceLocation at;
};
// Returns the result of branch `which`, clamped to the valid range. For a bool: the first branch if
// it is true.
Leaves chosen(const NamedArray& which, const Sides&);

template <class R, class... A> struct Side {  // f(args...), as a function of leaves
  template <class F> static Leaves run(void* self, const Leaves&) {
    auto& s = *static_cast<Side*>(self);
    s.out = spread(*static_cast<const F*>(s.f), *s.args);
    return flatten(*s.out);
  }
  const void* f;
  const std::tuple<const A&...>* args;
  std::optional<R> out = {};
};

template <class... F> struct Chooser {
  NamedArray which;
  std::tuple<F...> sides;
  const char* word;
  SourceLocation at;
  template <class... A> auto operator()(const A&... args) const {
    using R = CallResult<const std::tuple_element_t<0, std::tuple<F...>>&, A...>;
    constexpr bool called = (!std::is_void_v<CallResult<const F&, A...>> && ...);
    constexpr bool same = (std::is_same_v<R, CallResult<const F&, A...>> && ...);
    static_assert(same || !called,
                  "haliax: all branches of cond and switch_ must return the same type.");
    if constexpr (called && same) {
      std::tuple<const A&...> in(args...);
      return std::apply(
          [&](const F&... f) {
            std::array<Side<R, A...>, sizeof...(F)> calls{Side<R, A...>{&f, &in}...};
            std::size_t k = 0;
            std::array<LeafFunction, sizeof...(F)> each{
                LeafFunction{&calls[k++], &Side<R, A...>::template run<F>}...};
            auto out = chosen(which, {each.data(), each.size(), word, at});
            return unflatten(*calls[0].out, out);
          },
          sides);
    }
  }
};

}  // namespace detail

/// Returns a function of `args...` that runs `f` if the flag is true, and `g` otherwise.
///
/// Both branches are traced, and one of them runs. They must return the same type, with the same
/// axes and dtypes. On a mesh, all devices run the same branch, except in a `shard_map` whose flag
/// depends on the device (`axis_index`): there, each device runs its branch in the forward pass,
/// and both branches in the backward pass.
///
/// Under `vmap` with a mapped flag, both branches run and `where` selects, gradients included. A
/// NaN in the gradient of the other branch then reaches the result, so both should be finite.
///
/// @param flag  scalar bool array
/// @param f     branch for true
/// @param g     branch for false
/// @return a function of `args...`
/// @throws haliax::Error (when called) if the flag has axes (use `where` to select elementwise) or
/// is not bool, or the results differ in axes or dtypes
///
///     auto y = cond(sum(x) > 10., [](const NamedArray& x) { return sqrt(x); },
///                   [](const NamedArray& x) { return x * 2.; })(x);
/// @see where, switch_
template <class F, class G> auto cond(const Arr& flag, F f, G g) {
  return detail::Chooser<F, G>{flag.array(), {std::move(f), std::move(g)}, "cond", flag.at()};
}

/// Returns a function of `args...` that runs the branch with the index `which`.
///
/// An index out of range is clamped to the first or the last branch. The rules of `cond` apply.
///
/// @param which  scalar integer array
/// @param sides  the branches
/// @return a function of `args...`
template <class... F> auto switch_(const Arr& which, F... sides) {
  return detail::Chooser<F...>{which.array(), {std::move(sides)...}, "switch_", which.at()};
}

/// Returns a function of an initial state that applies `f` while `condition(state)` is true.
///
/// The loop runs at most as often as `most` has positions, so that memory is planned before the
/// program runs, and the loop has a gradient. Iterations after the condition fails cost almost
/// nothing. The gradient saves residuals for each possible iteration unless `options.checkpoint`
/// selects another policy.
///
/// @param condition  `condition(state)` -> scalar bool array
/// @param f          `f(state)` -> the next state, with the same type, axes and dtypes
/// @param most       an axis with the largest number of iterations as its size
/// @param options    policy for the gradient, and unrolling
/// @return a function of the initial state, with the last state as its result. Start from a
/// `NamedArray`, not from a C++ scalar.
///
///     auto root = while_loop([](const NamedArray& r) { return abs(r * r - 2.) > 1e-6; },
///                            [](const NamedArray& r) { return (r + 2. / r) * 0.5; },
///                            Axis("iteration", 20))(NamedArray(1.));
template <class P, class F>
auto while_loop(P condition, F f, const Axis& most, ScanOptions options = {},
                SourceLocation at = SourceLocation::current()) {
  options = detail::located(std::move(options), at);
  return [condition, f, most, options](const auto& init) {
    using T = std::decay_t<decltype(init)>;
    using State = std::pair<T, NamedArray>;
    using Next = detail::CallResult<const F&, T>;
    constexpr bool keeps = std::is_void_v<Next> || std::is_convertible_v<Next, T>;
    static_assert(
        keeps,
        "haliax: the function of a while_loop must return the next state, which has the type "
        "of the first one (start "
        "from a NamedArray, not from a number).");
    if constexpr (!std::is_void_v<Next> && keeps) {
      auto next_state = [&](const State& now) {
        T next = f(now.first);
        NamedArray on = condition(next);
        return State{std::move(next), on};
      };
      auto same_state = [](const State& now) { return now; };
      auto iteration = [&](const State& s) {
        return detail::Chooser<decltype(next_state), decltype(same_state)>{
            s.second, {next_state, same_state}, "while_loop", options.at}(s);
      };
      return detail::fold_of("while_loop", iteration, most, options)(State{init, condition(init)})
          .first;
    } else {
      return init;
    }
  };
}

}  // namespace haliax
