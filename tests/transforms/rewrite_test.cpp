// Rewrites of graphs, tested alone.
#include "transforms/rewrite.h"

#include <doctest/doctest.h>

#include "ops/prim.h"

using namespace haliax;

// A substituted node may be freed at once, and another node may reuse its address.
TEST_CASE("rewrite: successive substitutions of unowned nodes are right") {
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

TEST_CASE("rewrite: a double negation is the original node") {
  auto x = prim::input({Axis("a", 4)}, DType::f32);
  CHECK(prim::neg(prim::neg(x)) == x);
  CHECK(prim::neg(prim::neg(prim::neg(x)))->in[0] == x);
}
