// Graph to graph, by itself.
#include "transforms/rewrite.h"

#include <doctest/doctest.h>

#include "ops/prim.h"

using namespace haliax;

// What is substituted in may be gone at once: another node may lie where it lay.
TEST_CASE("rewrite: one substitution after another in what nobody holds") {
  const Axis A("a", 4);
  auto x = prim::input({A}, DType::f32), y = prim::input({A}, DType::f32);
  Rewrite to{{x.get(), y}};
  for (int k = 2; k < 100; ++k) {
    auto factor = prim::number(k, DType::f32);
    auto out = substitute(prim::mul(x, factor), to);
    CAPTURE(k);
    REQUIRE(out->in.size() == 2);
    CHECK(out->in[0] == y);
    CHECK(out->in[1] == factor);
  }
}
