// associative_scan over a tree whose arrays have their axes in different orders.
#include <doctest/doctest.h>

#include "haliax/haliax.h"

using namespace haliax;

TEST_CASE("associative_scan: each result has the axis order that the function returns") {
  Axis Time("time", 5), Embed("embed", 3);
  using Pair = std::pair<NamedArray, NamedArray>;
  auto a = sin(arange(Axes{Time, Embed}) * 0.7), b = cos(arange(Axes{Embed, Time}) * 0.3);
  auto left_first = [](const Pair& l, const Pair& r) {
    return Pair{l.first * r.first, l.second * r.first + r.second};
  };
  auto right_first = [](const Pair& l, const Pair& r) {
    return Pair{r.first * l.first, r.first * l.second + r.second};
  };
  auto turned = [](const Pair& l, const Pair& r) {
    return Pair{rearrange(l.first * r.first, Names{"embed", "time"}),
                rearrange(l.second * r.first + r.second, Names{"time", "embed"})};
  };
  auto both = [](const NamedArray& c, const NamedArray& x, const NamedArray& y) {
    return std::pair{c * x + y, c * x + y};
  };
  auto check = [&](auto f, const char* first, const char* second) {
    for (bool reverse : {false, true}) {
      auto walk = [&](const Pair& p) { return associative_scan(f, "time", p, reverse); };
      auto expected = scan(both, "time", {.reverse = reverse})(zeros({Embed}), a, b).second;
      auto twice = vmap(walk, "copy")(Pair{stack("copy", {a, a}), b});
      for (auto& r : {walk({a, b}), jit(walk)(Pair{a, b}),
                      Pair{at(twice.first, "copy", 1), at(twice.second, "copy", 1)}}) {
        CHECK_EQ(to_string(r.first.axes()), first);
        CHECK_EQ(to_string(r.second.axes()), second);
        CHECK(max(abs(r.second - expected)).item() < 1e-6);
      }
    }
  };
  const auto by_time = "(time=5, embed=3)", by_embed = "(embed=3, time=5)";
  check(left_first, by_time, by_embed);
  check(right_first, by_time, by_time);
  check(turned, by_embed, by_time);
}
