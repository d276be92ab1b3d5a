// Choices by a value that is known only when the program runs: one side runs. Arguments and results
// are trees.
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

struct Sides {  // functions of nothing; where their choice was written, and by which word
  const LeafFunction* each;
  std::size_t count;
  const char* word;
  SourceLocation at;
};
// What side `which` gives, the first or the last where there is no such side; of a bool the first
// where it is true.
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
    static_assert(same || !called, "haliax: all sides of cond and switch_ give the same type.");
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

// cond(flag, f, g)(args...): f(args...) where the flag (bool, no axes) is true, else g(args...).
// Both are traced, one of them runs. They give the same type, with the same axes and dtypes. Under
// vmap, where the flag has the mapped axis, both run, and `where` picks; so it is for gradients
// there, too: keep the side that is not picked finite.
template <class F, class G> auto cond(const Arr& flag, F f, G g) {
  return detail::Chooser<F, G>{flag.array(), {std::move(f), std::move(g)}, "cond", flag.at()};
}
// switch_(which, f, g, ...)(args...): the side of that number (an integer, no axes), the first or
// the last if there is none.
template <class... F> auto switch_(const Arr& which, F... sides) {
  return detail::Chooser<F...>{which.array(), {std::move(sides)...}, "switch_", which.at()};
}
// while_loop(goes_on, f, most)(init): f again and again while goes_on(state) (bool, no axes) is
// true, at most as often as `most` has positions. The state keeps its type, axes and dtypes. A turn
// that is not needed costs next to nothing. Its gradient keeps one block for each turn that there
// may be (ScanOptions say what is kept instead).
template <class P, class F>
auto while_loop(P goes_on, F f, const Axis& most, ScanOptions options = {}) {
  return [goes_on, f, most, options](const auto& init) {
    using T = std::decay_t<decltype(init)>;
    using State = std::pair<T, NamedArray>;
    using Next = detail::CallResult<const F&, T>;
    constexpr bool keeps = std::is_void_v<Next> || std::is_convertible_v<Next, T>;
    static_assert(keeps,
                  "haliax: the function of a while_loop gives the next state, which has the type "
                  "of the first one (start "
                  "from a NamedArray, not from a number).");
    if constexpr (!std::is_void_v<Next> && keeps) {
      auto turn = [&](const State& s) {
        return cond(
            Arr(s.second, options.at),
            [&](const State& now) {
              T next = f(now.first);
              NamedArray on = goes_on(next);
              return State{std::move(next), on};
            },
            [](const State& now) { return now; })(s);
      };
      return fold(turn, most, options)(State{init, goes_on(init)}).first;
    } else {
      return init;
    }
  };
}

}  // namespace haliax
