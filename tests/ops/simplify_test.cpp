// The simplification rules: each has an example, keeps the values, and also applies to nodes that a
// rewrite creates.
#include <doctest/doctest.h>

#include <set>

#include "haliax/haliax.h"
#include "ops/attr.h"
#include "ops/simplify.h"
#include "support/near.h"
#include "transforms/rewrite.h"

using namespace haliax;

namespace {

const Axis A{"a", 3}, B{"b", 4}, C{"c", 2}, Flat{"flat", 12};

// A node that the rule simplifies, as its op would create it without rules.
struct Example {
  const char* rule;
  prim::NodeSpec spec;
};

std::vector<Example> examples() {
  auto x = (arange({A, B}) * .5 - 2.).eval().node(),
       small = astype(NamedArray(x), DType::bf16).eval().node();
  auto f32 = [](double v) { return prim::number(v, DType::f32); };
  auto map = [](const Op& op, Nodes in) {
    auto axes = in[0]->axes.empty() ? in.back()->axes : in[0]->axes;
    return prim::NodeSpec{op, std::move(in), axes, DType::f32, {}};
  };
  auto with = [](const Op& op, Nodes in, Axes axes, Attr attr = {}) {
    auto dtype = in[0]->dtype;
    return prim::NodeSpec{op, std::move(in), std::move(axes), dtype, std::move(attr)};
  };
  const Axis renamed{"r", 3};
  const RenameAttr to_r{{"a"}, {"r"}}, to_a{{"r"}, {"a"}};
  const auto r = prim::rename(x, {"a"}, {"r"});
  auto broadcast = prim::fit(prim::iota(A, DType::f32), {A, B});
  const SliceAttr half{"b", 1, 2, 1, false}, all{"b", 0, 4, 1, false}, back{"b", 2, 2, -2, false},
      reversed{"b", 3, 4, -1, false};
  const Axes halves{A, Axis("b", 2)};
  auto first = prim::slice(x, SliceAttr{"b", 1, 3, 1, false});
  const RegroupAttr regroup{{"a", "b"}, "flat"};
  auto flat = prim::flatten(x, {"a", "b"}, Flat);
  auto line = arange({Flat}).astype(DType::f32).eval().node();
  return {
      {"number + number", map(prim::kAdd, {f32(2), f32(.5)})},
      {"number - number", map(prim::kSub, {f32(2), f32(.5)})},
      {"x + 0 -> x", map(prim::kAdd, {f32(0), x})},
      {"x - 0 -> x", map(prim::kSub, {x, f32(0)})},
      {"number * number", map(prim::kMul, {f32(2), f32(.5)})},
      {"x * 1 -> x", map(prim::kMul, {x, f32(1)})},
      {"number / number", map(prim::kDiv, {f32(1), f32(3)})},
      {"x / 1 -> x", map(prim::kDiv, {x, f32(1)})},
      {"neg(neg(x)) -> x", map(prim::kNeg, {prim::neg(x)})},
      {"neg(number)", map(prim::kNeg, {f32(2)})},
      {"cast to the same dtype -> x", map(prim::kCast, {x})},
      {"cast of a number", map(prim::kCast, {prim::integer(3, DType::i32)})},
      {"cast of a widening cast -> one cast", map(prim::kCast, {prim::cast(small, DType::f64)})},
      {"fit to the same axes -> x", with(prim::kFit, {x}, {A, B})},
      {"fit of a fit -> one fit", with(prim::kFit, {broadcast}, {B, C, A})},
      {"rename of a broadcast scalar",
       with(prim::kRename, {prim::filled(2, DType::f32, {A})}, {renamed}, to_r.attr())},
      {"rename of a rename -> one rename", with(prim::kRename, {r}, {A, B}, to_a.attr())},
      {"slice of all positions -> x", with(prim::kSlice, {x}, {A, B}, all.attr())},
      {"slice of a broadcast -> a broadcast", with(prim::kSlice, {broadcast}, halves, half.attr())},
      {"slice of a slice -> one slice", with(prim::kSlice, {first}, halves, back.attr())},
      {"place of zeros -> zeros",
       with(prim::kPlace, {prim::filled(0, DType::f32, halves)}, {A, B}, half.attr())},
      {"place of all positions -> a slice", with(prim::kPlace, {x}, {A, B}, reversed.attr())},
      {"flatten of a number",
       with(prim::kFlatten, {prim::filled(2, DType::f32, {A, B})}, {Flat}, regroup.attr())},
      {"flatten of its unflatten -> x",
       with(prim::kFlatten, {prim::unflatten(line, "flat", {A, B})}, {Flat}, regroup.attr())},
      {"unflatten of a number",
       with(prim::kUnflatten, {prim::filled(3, DType::f32, {Flat})}, {A, B}, regroup.attr())},
      {"unflatten of its flatten -> x", with(prim::kUnflatten, {flat}, {A, B}, regroup.attr())},
  };
}
NodePtr build(const prim::NodeSpec& d) { return prim::build(d.op, d.in, d.axes, d.dtype, d.attr); }
NodePtr unsimplified(const prim::NodeSpec& d) { return make(d.op, d.in, d.axes, d.dtype, d.attr); }

}  // namespace

TEST_CASE("simplify: each rule has an example and keeps values, axes and dtype") {
  std::set<std::string> shown;
  for (auto& e : examples()) {
    CAPTURE(std::string(e.rule));
    shown.insert(e.rule);
    auto rules = prim::simplify_rules();
    auto rule = std::find_if(rules.begin(), rules.end(),
                             [&](auto& r) { return r.op == &e.spec.op && r.apply(e.spec); });
    REQUIRE(rule != rules.end());
    CHECK(std::string(rule->name) == e.rule);
    auto simple = build(e.spec), full = unsimplified(e.spec);
    CHECK(simple != full);
    CHECK(simple->axes == full->axes);
    CHECK(simple->dtype == full->dtype);
    CHECK(NamedArray(simple).doubles() == NamedArray(full).doubles());
  }
  for (auto& rule : prim::simplify_rules()) CHECK_MESSAGE(shown.count(rule.name) == 1, rule.name);
}

TEST_CASE("simplify: nodes that a rewrite creates are simplified") {
  auto x = prim::input({A, B}, DType::f32), one = prim::input({}, DType::f32);
  auto y = prim::add(prim::mul(x, one), x);
  Rewrite to{{one.get(), prim::number(1, DType::f32)}};
  CHECK(substitute(y, to) == prim::add(x, x));
  auto part = prim::input({A, Axis("b", 2)}, DType::f32), outer = prim::slice(part, "b", 1, 1);
  Rewrite sliced{{part.get(), prim::slice(x, "b", 2, 2)}};
  CHECK(substitute(outer, sliced) == prim::slice(x, "b", 3, 1));
}

TEST_CASE("simplify: casts that round stay") {
  auto x = prim::input({A}, DType::f32);
  auto rounded = prim::cast(prim::cast(x, DType::bf16), DType::f32);
  CHECK(rounded != x);
  CHECK(rounded->in[0]->dtype == DType::bf16);
  auto wraps = prim::cast(prim::cast(prim::input({A}, DType::i32), DType::i8), DType::i32);
  CHECK(wraps->in[0]->dtype == DType::i8);
}
