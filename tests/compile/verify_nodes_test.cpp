// Planted faults of single nodes, and of nested region boundaries: legal graphs pass, and each
// fault is found and named.
#include <doctest/doctest.h>

#include "ops/attr.h"
#include "ops/prim.h"
#include "support/planned.h"
#include "support/verified.h"

using namespace haliax;

namespace {

const Axis A{"a", 4}, B{"b", 3};

}  // namespace

TEST_CASE("verify finds a graph's faults: leaves, and dtypes that an op does not support") {
  auto x = array({A, B});
  auto of = [](const Op& op, const NodePtr& x) {
    return in_graph(make(op, {x}, x->axes, x->dtype));
  };
  auto ints = array({A}, DType::i32), flags = array({A}, DType::boolean),
       key = array({}, DType::f32);
  CHECK(
      reports(in_graph(make(prim::kNumber, {}, {A}, DType::f32)), "it is a scalar, but has (a=4)"));
  CHECK(reports(in_graph(make(prim::kIota, {}, {A, B}, DType::i32)),
                "positions of one axis are i32 (a=4, b=3)"));
  CHECK(of(prim::kExp, x) == "");
  CHECK(reports(of(prim::kExp, ints), "a floating-point function of i32"));
  CHECK(reports(of(prim::kNeg, flags), "the negative of bool"));
  auto& random = *prim::threefry(program::Code::threefry0, key, key, key, key)->op;
  CHECK(reports(in_graph(make(random, {key, key, key, key}, {}, DType::f32)),
                "random bits of dtype f32"));
  CHECK(reports(in_graph(prim::slice(x, "a", 1, 2, 0)),
                "it reads position 1 of (a=4, b=3) repeatedly"));
}

TEST_CASE("verify finds a graph's faults: positions, and axes that are indexed") {
  auto x = array({A, B}), ids = array({A}, DType::i32);
  CHECK(in_graph(make(prim::kArgmax, {x}, {B}, DType::i32, {.names = {"a"}})) == "");
  CHECK(reports(in_graph(make(prim::kArgmax, {x}, {B}, DType::i32, {.names = {"b"}})),
                "it counts positions along other axes than it reduces"));
  CHECK(reports(in_graph(make(prim::kArgmax, {x}, {B}, DType::i32)),
                "it counts positions along other axes than it reduces"));
  CHECK(in_graph(make(prim::kGather, {x, ids}, {A, B}, DType::f32,
                      GatherAttr{.axes = {"a"}}.attr())) == "");
  CHECK(reports(
      in_graph(make(prim::kGather, {x, ids}, {A, B}, DType::f32, GatherAttr{.axes = {"c"}}.attr())),
      "(a=4, b=3) has no axis c"));
  CHECK(
      reports(in_graph(make(prim::kGather, {x}, {B}, DType::f32, GatherAttr{.axes = {"a"}}.attr())),
              "it has 1 operands, but indexes 1 axes"));
}

TEST_CASE("verify finds a graph's faults: nested region boundaries") {
  auto x = array({A, B});
  Attr outer{.names = {"a", "a"}, .ints = {4, 0, 0, 0, 0, 0, 0, 1, 0, 0}}, inner = outer;
  inner.ints[5] = 1;  // a call inside of the other one
  auto border = [&](const Op& op, const NodePtr& y, const Attr& of) {
    return make(op, {y}, y->axes, DType::f32, of);
  };
  auto both = border(prim::kEnter, border(prim::kEnter, x, outer), inner);
  CHECK(in_graph(border(prim::kLeave, border(prim::kLeave, both, inner), outer)) == "");
  CHECK(reports(in_graph(border(prim::kLeave, border(prim::kLeave, both, outer), inner)),
                "it leaves a region before a nested region"));
}
