// The steps of `reshard` for values that are partial over several mesh axes.
#include <doctest/doctest.h>

#include "compile/sharding/reshard.h"

namespace reshard_test {
namespace {

using namespace haliax;
using Kind = ReshardStep::Kind;

// [a] -> [a: x+y], with these mesh axes, major to minor, and this partial value.
std::vector<Kind> kinds(const MeshAxes& requested, Monoid over_0, Monoid over_1) {
  const Mesh mesh{{{"x", 2}, {"y", 2}}};
  Sharding from, to;
  from.add_partial(0, over_0);
  from.add_partial(1, over_1);
  to.set("a", requested);
  std::vector<Kind> out;
  for (auto& step : reshard(mesh, {{"a", 8}}, DType::f32, from, to)) out.push_back(step.kind);
  return out;
}

TEST_CASE("A value that is partial over two mesh axes is scattered at once in either order") {
  for (const Monoid m : {Monoid::sum, Monoid::max}) {
    CHECK(kinds({0, 1}, m, m) == std::vector{Kind::reduce_scatter});
    CHECK(kinds({1, 0}, m, m) == std::vector{Kind::reduce_scatter});
  }
}

TEST_CASE("A collective never reduces by two monoids") {
  for (const MeshAxes& requested : {MeshAxes{0, 1}, MeshAxes{1, 0}})
    for (const auto& [first, second] :
         {std::pair(Monoid::sum, Monoid::max), std::pair(Monoid::max, Monoid::sum)}) {
      const auto steps = kinds(requested, first, second);
      CHECK(steps.size() > 1);
      CHECK(steps.front() != Kind::reduce_scatter);
    }
}

}  // namespace
}  // namespace reshard_test
