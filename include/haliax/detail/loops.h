// The implementation of scan and fold, with the name of the op in error messages. Included by
// haliax/transforms.h, which defines ScanOptions, Nothing and the functions of leaves first.
#pragma once
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {
namespace detail {

// True if the function of a scan has valid parameters and results; otherwise an assertion fails.
template <class R, class C> struct is_scan_result : std::false_type {};
template <class C, class Y> struct is_scan_result<std::pair<C, Y>, C> : std::true_type {};
template <class F, class C, class... X> constexpr bool check_scan_body() {
  constexpr bool takes = std::is_invocable_v<const F&, const C&, const X&...>;
  static_assert(
      takes,
      "haliax: the function of a scan must accept the carry, and then a position of each of "
      "the arrays scanned.");
  if constexpr (takes) {
    constexpr bool gives =
        is_scan_result<std::decay_t<std::invoke_result_t<const F&, const C&, const X&...>>,
                       C>::value;
    static_assert(
        gives,
        "haliax: the function of a scan must return a std::pair: the next carry, which has the "
        "type of the first one "
        "(start from a NamedArray, not from a number), and the stacked results.");
    return gives;
  }
  return false;
}

template <class F, class C, class... X> constexpr bool check_fold() {
  constexpr bool takes = std::is_invocable_v<const F&, const C&, const X&...>;
  static_assert(takes,
                "haliax: the function of a fold must accept the carry, "
                "and then a position of each of the arrays.");
  if constexpr (takes) {
    constexpr bool keeps = std::is_same_v<std::invoke_result_t<const F&, const C&, const X&...>, C>;
    static_assert(
        keeps,
        "haliax: the function of a fold must return the next carry, which has the type of the "
        "first one (start from "
        "a NamedArray, not from a number).");
    return keeps;
  }
  return false;
}

template <class F> auto scan_of(const char* op, F f, AxisSelector axis, ScanOptions options) {
  return [op, f, axis, options](const auto& init, const auto&... xs) {
    using C = std::decay_t<decltype(init)>;
    using X = std::tuple<std::decay_t<decltype(xs)>...>;
    if constexpr (check_scan_body<F, C, std::decay_t<decltype(xs)>...>()) {
      using R = std::decay_t<decltype(f(init, xs...))>;
      using Y = typename R::second_type;
      struct Call {
        const F* f;
        C carry;
        X xs;
        std::optional<Y> y;
      } call{&f, init, X(xs...), {}};
      Walk c = walk_of(init, {.paths = true});
      auto body = [](void* self, const Leaves& carry, const Leaves& in, Leaves& next, Leaves& out) {
        auto& s = *static_cast<Call*>(self);
        auto r = spread([&](const auto&... x) { return (*s.f)(unflatten(s.carry, carry), x...); },
                        unflatten(s.xs, in));
        next = flatten(r.first);
        out = flatten(r.second);
        s.y = std::move(r.second);
      };
      Walk scanned = walk_of(call.xs, {.paths = !options.is_scanned.all()});
      auto [last, ys] = detail::scan(op, axis, options, c, scanned, {&call, body});
      return std::pair{unflatten(init, last), unflatten(std::move(*call.y), ys)};
    } else {
      return std::pair{init, init};
    }
  };
}
template <class F> auto fold_of(const char* op, F f, AxisSelector axis, ScanOptions options) {
  return [op, f, axis, options](const auto& init, const auto&... xs) {
    auto g = [&f](const auto& carry, const auto&... x) {
      return std::pair{f(carry, x...), Nothing{}};
    };
    if constexpr (check_fold<F, std::decay_t<decltype(init)>, std::decay_t<decltype(xs)>...>())
      return scan_of(op, g, axis, options)(init, xs...).first;
    else
      return init;
  };
}

}  // namespace detail
}  // namespace haliax
