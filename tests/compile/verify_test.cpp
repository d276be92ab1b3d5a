// Planted faults, one for each rule of the verifier: legal graphs pass, and each fault is found and
// named.
#include <doctest/doctest.h>

#include <functional>

#include "compile/verify_loops.h"
#include "base/verify_error.h"
#include "compile/chunk/chunk.h"
#include "compile/lower/masked_matmuls.h"
#include "compile/sharding/planner.h"
#include "compile/verify.h"
#include "haliax/chunked.h"
#include "haliax/custom_op.h"
#include "haliax/jit.h"
#include "haliax/transforms.h"
#include "haliax/ops.h"
#include "ops/attr.h"
#include "ops/collective.h"
#include "ops/prim.h"
#include "support/planned.h"
#include "support/raises.h"
#include "support/verified.h"
#include "transforms/scores.h"

using namespace haliax;
using namespace haliax::verify_loops;

TEST_CASE("verify finds a graph's faults: axes and dtypes") {
  auto x = array({A, B}), y = array({A}), integers = array({A}, DType::i32);
  CHECK(in_graph(prim::add(x, y)) == "");
  CHECK(reports(in_graph(make(prim::kAdd, {x, x}, {A, B, A}, DType::f32)), "axis a occurs twice"));
  CHECK(reports(in_graph(make(prim::kAdd, {x, y}, {A}, DType::f32)),
                "it maps axis b of (a=4, b=3), but produces (a=4)"));
  CHECK(reports(in_graph(make(prim::kAdd, {x, y}, {A, Axis("b", 5)}, DType::f32)),
                "it maps axis b of (a=4, b=3)"));
  CHECK(reports(in_graph(make(prim::kAdd, {y, integers}, {A}, DType::f32)),
                "an operand is i32, but the result is f32"));
  CHECK(reports(in_graph(make(prim::kLess, {y, y}, {A}, DType::f32)), "a comparison is f32"));
  CHECK(reports(in_graph(make(prim::kSelect, {y, y, y}, {A}, DType::f32)),
                "operands have different dtypes"));
  CHECK(reports(in_graph(make(prim::kSum, {y}, {B}, DType::f32)), "no operand has axis b"));
  CHECK(reports(in_graph(make(prim::kSum, {y}, {}, DType::f64)), "the result is f64"));
  CHECK(reports(in_graph(make(prim::kContract, {x, y}, {Axis("c", 2)}, DType::f32)),
                "no operand has axis c"));
  CHECK(reports(in_graph(make(prim::kContract, {x, array({Axis("a", 5)})}, {B}, DType::f32)),
                "axis a has two sizes"));
  CHECK(reports(in_graph(make(prim::kAdd, {x}, {A, B}, DType::f32)),
                "it has 1 operands, expected 2"));
  CHECK(reports(in_graph(make(prim::kNeg, {x, x}, {A, B}, DType::f32)),
                "it has 2 operands, expected 1"));
  CHECK(reports(in_graph(make(prim::kSum, {x, y}, {B}, DType::f32)),
                "it has 2 operands, expected 1"));
  CHECK(reports(in_graph(make(prim::kContract, {x, y, y}, {B}, DType::f32)),
                "it has 3 operands, expected 2"));
}

TEST_CASE("verify finds a graph's faults: matmuls that skip blocks") {
  auto x = array({A, B}), y = array({B});
  auto masked = [&](const Axis& block, std::int64_t size, DType d, const char* axis) {
    return make(kMaskedMatmul, {x, y, array({block}, d)}, {A}, DType::f32,
                MaskedMatmulAttr{.blocked = {{axis, size}}}.attr());
  };
  const Axis blocks("(blocks of b)", 2);
  CHECK(in_graph(masked(blocks, 2, DType::boolean, "b")) == "");
  const char* wrong = "its flags ((blocks of b)=2) do not match its blocks";
  CHECK(reports(in_graph(masked(blocks, 1, DType::boolean, "b")), wrong));
  CHECK(reports(in_graph(masked(blocks, 0, DType::boolean, "b")), wrong));
  CHECK(reports(in_graph(masked(blocks, 2, DType::f32, "b")), wrong));
  CHECK(reports(in_graph(masked(blocks, 2, DType::boolean, "q")), wrong));
  CHECK(reports(in_graph(make(kMaskedMatmul, {x, y}, {A}, DType::f32,
                              MaskedMatmulAttr{.blocked = {{"b", 2}}}.attr())),
                "it has no block flags"));
}

TEST_CASE(
    "verify finds parts of iterations that do not cover their loop, and layouts that do not fit") {
  auto x = array({A, B});
  auto row = prim::slice(x, "a", 0, 1, 1, true, loop_index());
  auto result = loop_of_one({ResultKind::fold, Monoid::sum, {row}}, loop_index()),
       most = loop_of_one({ResultKind::fold, Monoid::max, {row}}, loop_index());
  auto flag = prim::less(loop_index(), prim::number(2, loop_index()->dtype));
  auto with = [&](const NodePtr& r, std::vector<std::vector<IterationPart>> parts) {
    return message_of([&] { verify(Nodes{r}, "a pass", {{r->in[0].get(), std::move(parts)}}); });
  };
  CHECK(with(result, {{{flag, {{0, row}, {0, row}}}}}) == "");
  CHECK(reports(with(result, {}), "parts of iterations have 0 bodies, but it has 1"));
  CHECK(
      reports(with(result, {{{flag, {}}}}), "no part of an iteration produces one of its results"));
  CHECK(reports(with(result, {{{prim::less(row, row), {{0, row}}}}}),
                "the exit condition of a part of an iteration is not a flag"));
  CHECK(reports(with(result, {{{nullptr, {{0, x}}}}}),
                "a part of an iteration produces (a=4, b=3) for a result"));
  CHECK(reports(with(most, {{{nullptr, {{0, row}}}, {nullptr, {{0, row}}}}}),
                "two parts of an iteration produce a result that is not a sum"));
  CHECK(reports(with(result, {{{flag, {{0, make(prim::kNeg, {row, row}, {B}, DType::f32)}}}}}),
                "it has 2 operands, expected 1"));
  auto other = prim::index(B, 0, 1, 0);
  auto elsewhere = prim::less(other, prim::number(2, other->dtype));
  CHECK(reports(with(result, {{{elsewhere, {{0, row}}}}}), "it is read outside of its loop"));
  auto laid = [&](const Axes& order) {
    return message_of([&] { verify(Nodes{x}, "a pass", {}, {{x.get(), order}}); });
  };
  CHECK(laid({B, A}) == "");
  CHECK(reports(laid({B}), "its layout is (b=3), but its axes are (a=4, b=3)"));
  CHECK(reports(laid({B, A, A}), "its layout is"));
}

TEST_CASE("verify finds a graph's faults: ops that move elements") {
  auto x = array({A, B}), y = array({A});
  auto slice = [&](SliceAttr c, const Axes& axes) {
    return in_graph(make(prim::kSlice, {x}, axes, DType::f32, c.attr()));
  };
  CHECK(slice({"a", 1, 2}, {Axis("a", 2), B}) == "");
  CHECK(reports(slice({"a", 1, 4}, {Axis("a", 4), B}), "it reaches outside of (a=4, b=3)"));
  CHECK(slice({"a", 1, 2, -1}, {Axis("a", 2), B}) == "");
  CHECK(reports(slice({"a", 0, 2, -1}, {Axis("a", 2), B}), "it reaches outside"));
  CHECK(reports(slice({"a", 1, 2}, {Axis("a", 3), B}),
                "the slice has (a=3, b=3), but 2 positions are sliced"));
  CHECK(reports(slice({"a", 1, 2}, {Axis("a", 2)}),
                "it maps axis b of (a=4, b=3), but produces (a=2)"));
  CHECK(reports(slice({"q", 0, 1}, {A, B}), "part (a=4, b=3) does not fit (a=4, b=3)"));
  CHECK(reports(slice({"q", 0, 1, 1, true}, {A, B}), "(a=4, b=3) is not a slice of (a=4, b=3)"));
  CHECK(reports(in_graph(make(prim::kFit, {x}, {A}, DType::f32)),
                "it maps axis b of (a=4, b=3), but produces (a=4)"));
  CHECK(
      reports(in_graph(make(prim::kRename, {x}, {A}, DType::f32, RenameAttr{{"b"}, {"c"}}.attr())),
              "it maps axis b of (a=4, b=3), but produces (a=4)"));
  CHECK(reports(in_graph(make(prim::kFlatten, {x}, {Axis("c", 11)}, DType::f32,
                              RegroupAttr{{"a", "b"}, "c"}.attr())),
                "it produces (c=11) from (a=4, b=3)"));
  CHECK(reports(
      in_graph(make(prim::kConcat, {x, x}, {Axis("a", 9), B}, DType::f32, {.names = {"a"}})),
      "its parts have 8 positions"));
  CHECK(reports(in_graph(make(prim::kTracer, {x}, {A}, DType::f32)),
                "its axes or dtype differ from its operand"));
  Attr border{.names = {"a", "a"}, .ints = {5, 0, 0, 0, 0, 0, 0, 1, 0, 0}};
  CHECK(reports(in_graph(make(prim::kEnter, {x}, x->axes, DType::f32, border)),
                "a region boundary is around (a=4, b=3)"));
  border.ints[0] = 4;
  auto border_of = [&](const Op& op, const NodePtr& y) {
    return make(op, {y}, y->axes, DType::f32, border);
  };
  auto entered = prim::add(border_of(prim::kEnter, x), y);
  CHECK(in_graph(border_of(prim::kLeave, entered)) == "");
  CHECK(reports(in_graph(entered), "it is in a region that it never leaves"));
  CHECK(reports(in_graph(prim::add(entered, border_of(prim::kLeave, entered))),
                "it is in a region that it never leaves"));
  // f may return a captured array, which never entered the region.
  CHECK(chunked_reduce("a", {.chunk = 2},
                       [&](const NamedArray&) { return NamedArray(x); })(NamedArray(y))
            .node() == x);
}

TEST_CASE("verify finds a graph's faults: axes that break the op's rule") {
  const Axis I{"i", 2};
  auto x = array({A, B}), ids = array({I}, DType::i32);
  auto graph_reports = [&](const NodePtr& n, const char* what) {
    return reports(in_graph(n), what);
  };
  auto order = [&](const Op& op, const Axes& axes, DType d, Name axis) {
    return make(op, {x}, axes, d, {.names = {axis}});
  };
  CHECK(in_graph(prim::sort(x, "a")) == "");
  CHECK(graph_reports(order(prim::kSort, {A, B}, DType::i32, "a"),
                      "an operand is f32, but the result is i32"));
  CHECK(graph_reports(order(prim::kArgsort, {A, B}, DType::f32, "a"),
                      "an operand is f32, but the result is f32"));
  CHECK(graph_reports(order(prim::kSort, {A, B}, DType::f32, "q"), "it has no axis q"));
  CHECK(
      graph_reports(order(prim::kSort, {B}, DType::f32, "a"), "it produces (b=3) from (a=4, b=3)"));
  CHECK(graph_reports(order(prim::kArgsort, {Axis("a", 7), B}, DType::i32, "a"),
                      "it maps axis a of (a=4, b=3), but produces (a=7, b=3)"));
  auto taken = [&](const NodePtr& at, const Axes& axes, DType d) {
    return make(prim::kGather, {x, at}, axes, d, GatherAttr{{"a"}}.attr());
  };
  CHECK(in_graph(taken(ids, {I, B}, DType::f32)) == "");
  CHECK(graph_reports(taken(array({I}), {I, B}, DType::f32), "ids are f32"));
  CHECK(graph_reports(taken(ids, {I, B}, DType::i32), "an operand is f32, but the result is i32"));
  CHECK(graph_reports(taken(ids, {A, B}, DType::f32),
                      "it maps axis i of (i=2), but produces (a=4, b=3)"));
  auto placed = [&](const NodePtr& what, const Axes& axes) {
    return make(prim::kScatter, {x, what, ids}, axes, DType::f32, ScatterAttr{{"a"}}.attr());
  };
  CHECK(in_graph(placed(array({I, B}), {A, B})) == "");
  CHECK(graph_reports(placed(array({I, B}), {A}),
                      "it maps axis b of (a=4, b=3), but produces (a=4)"));
  CHECK(graph_reports(placed(array({Axis("i", 5), B}), {A, B}), "axis i has two sizes"));
  CHECK(graph_reports(placed(array({I, B}, DType::i32), {A, B}),
                      "an operand is i32, but the result is f32"));
  auto renamed = [&](const Axes& axes) {
    return make(prim::kRename, {x}, axes, DType::f32, RenameAttr{{"a"}, {"c"}}.attr());
  };
  CHECK(in_graph(renamed({Axis("c", 4), B})) == "");
  CHECK(graph_reports(renamed({Axis("z", 4), B}),
                      "it maps axis a of (a=4, b=3), but produces (z=4, b=3)"));
  CHECK(graph_reports(renamed({Axis("c", 3), Axis("b", 4)}),
                      "it maps axis a of (a=4, b=3), but produces (c=3, b=4)"));
  auto flat = [&](const Names& parts, const Axes& axes) {
    return make(prim::kFlatten, {x}, axes, DType::f32, RegroupAttr{parts, "c"}.attr());
  };
  CHECK(in_graph(flat({"a", "b"}, {Axis("c", 12)})) == "");
  CHECK(graph_reports(flat({"q", "r"}, {Axis("c", 12)}),
                      "it maps axis a of (a=4, b=3), but produces (c=12)"));
  CHECK(
      graph_reports(flat({"a", "b", "q"}, {Axis("c", 12)}), "it produces (c=12) from (a=4, b=3)"));
  CHECK(graph_reports(flat({"a"}, {Axis("c", 4)}), "it maps axis b of (a=4, b=3)"));
  static const Op twice = [] {
    auto op = prim::kFlatten;
    op.name = "twice";
    op.linear = Linear::one;
    return op;
  }();
  CHECK(graph_reports(
      make(twice, {x}, {Axis("c", 12)}, DType::f32, RegroupAttr{{"a", "b"}, "c"}.attr()),
      "it regroups axis a, but does more than move values"));
  auto unflattened = [&](const Axes& axes) {
    return make(prim::kUnflatten, {x}, axes, DType::f32, RegroupAttr{{"p", "q"}, "a"}.attr());
  };
  CHECK(in_graph(unflattened({Axis("p", 2), Axis("q", 2), B})) == "");
  CHECK(graph_reports(unflattened({Axis("p", 2), Axis("r", 2), B}), "no operand has axis r"));
  auto joined = [&](const NodePtr& y, const Axes& axes) {
    return make(prim::kConcat, {x, y}, axes, DType::f32, {.names = {"a"}});
  };
  CHECK(graph_reports(joined(array({A, B}, DType::i32), {Axis("a", 8), B}),
                      "an operand is i32, but the result is f32"));
  CHECK(graph_reports(joined(array({B}), {Axis("a", 8), B}), "part (b=3) does not fit (a=8, b=3)"));
  CHECK(graph_reports(joined(array({A}), {Axis("a", 8)}),
                      "it maps axis b of (a=4, b=3), but produces (a=8)"));
  CHECK(graph_reports(make(prim::kContract, {x, ids}, {B, I}, DType::f32),
                      "an operand is i32, but the result is f32"));
  CHECK(graph_reports(make(prim::kBitAnd, {x, x}, {A, B}, DType::f32), "bits of f32"));
  CHECK(graph_reports(make(prim::kLess, {x, ids}, {A, B, I}, DType::boolean),
                      "operands have different dtypes"));
  CHECK(in_graph(prim::bitcast(x, DType::i32)) == "");
  CHECK(graph_reports(prim::bitcast(x, DType::f64), "a bitcast from f32 to f64 changes the size"));
  CHECK(in_graph(prim::logical_not(array({A}, DType::boolean))) == "");
  CHECK(graph_reports(prim::logical_not(x), "its operand is f32, expected bool"));
  auto foldy = custom_op({.name = "foldy",
                          .along = {AxisRule::reduce_sum},
                          .cpu = {[](Strided<const float>, Strided<float>) {}}});
  auto fold = foldy(NamedArray(x), "a").node();
  CHECK(in_graph(fold) == "");
  CHECK(graph_reports(make(*fold->op, {x}, {A, B}, DType::f32, fold->attr),
                      "it reduces axis a of (a=4, b=3), but produces (a=4, b=3)"));
  CHECK(graph_reports(make(*fold->op, {x}, {}, DType::f32, fold->attr),
                      "it maps axis b of (a=4, b=3), but produces ()"));
}

// A custom op that moves positions as its attribute specifies.
TEST_CASE("verify finds segments that overlap, or exceed the axis") {
  auto x = array({A});
  Op op{.name = "mover", .kind = Kind::step, .linear = Linear::moves};
  op.along = [](const Node&, std::size_t, Name a) { return Along{Along::Way::shift, a}; };
  op.segments = [](const Node& n) {
    auto& i = n.attr.ints;
    return std::vector<AxisSegment>{{0, i[0], 0, 2}, {0, 0, i[1], i[2]}};
  };
  auto moved = [&](std::vector<std::int64_t> ints) {
    return in_graph(make(op, {x}, {A}, DType::f32, {.names = {"a"}, .ints = std::move(ints)}));
  };
  CHECK(moved({2, 2, 2}) == "");
  CHECK(reports(moved({3, 2, 2}), "it reaches outside of (a=4)"));
  CHECK(reports(moved({2, 1, 2}), "it writes position 1 of (a=4) twice"));
  CHECK(reports(moved({2, 2, 3}), "its parts have 5 positions, but it has (a=4)"));
  op.linear = Linear::one;  // so it computes values, too
  CHECK(reports(moved({2, 2, 2}), "it shifts axis a, but does more than move values"));
  op.linear = Linear::moves;
  op.segments = nullptr;
  CHECK(reports(moved({2, 2, 2}), "it shifts axis a, but has no segments"));
}

TEST_CASE("verify: an empty slice has no bounds to exceed") {
  auto x = array({Axis("z", 0), A});
  CHECK(in_graph(make(prim::kSlice, {x}, {Axis("z", 0), Axis("a", 2)}, DType::f32,
                      SliceAttr{"a", 3, 2}.attr())) == "");
  const Axis Z("z", 0), N("n", 6);
  auto f = named_jit([](const NamedArray& x) { return slice(x, "n", 1, 4); },
                     {.mesh = Mesh{{{"data", 4}}}, .axis_resources = Mapping{{"n", "data"}}});
  CHECK(f(zeros({Z, N})).axes() == Axes{Z, Axis("n", 4)});
}

TEST_CASE("verify: the search for chunks propagates errors of its trials") {
  const Axis Q("q", 64), K("k", 64), D("d", 8);
  auto q = prim::input({Q, D}, DType::f32), k = prim::input({K, D}, DType::f32),
       v = prim::input({K, D}, DType::f32);
  auto weights = prim::exp(prim::contract(q, k, {Q, K}, DType::f32));
  const Nodes roots{prim::contract(prim::div(weights, prim::reduce(Monoid::sum, weights, {Q})), v,
                                   {Q, D}, DType::f32)};
  auto bordered = with_score_boundaries(roots, std::int64_t(1), 0, {});
  auto run_trials = [&](auto raised) {
    return tile_regions(
        bordered, [=](const Nodes&, const Nodes&, int) -> TrialResult { throw raised; }, 0, false,
        nullptr);
  };
  CHECK(!(bordered == roots));
  CHECK_THROWS_AS(run_trials(VerifyError("[verify] a pass is wrong")), VerifyError);
  CHECK_THROWS_WITH_AS(run_trials(Error("out of memory")), "out of memory", Error);
}

TEST_CASE("verify finds a graph's faults: loops") {
  auto x = array({A, B});
  auto row = prim::slice_at(x, loop_index(), true);
  auto carry = prim::carry(loop_index(), {B}, DType::f32);
  CHECK(in_graph(loop_of_one({ResultKind::stack, Monoid::sum, {row}}, loop_index())) == "");
  CHECK(in_graph(loop_of_one(
            {ResultKind::carry, Monoid::sum, {prim::add(carry, row)}, array({B}), carry},
            loop_index())) == "");
  CHECK(reports(in_graph(row), "it is read outside of its loop"));
  CHECK(reports(in_graph(prim::add(array({B}), carry)), "it is read outside of its loop"));
  CHECK(reports(in_graph(loop_of_one(
                    {ResultKind::carry, Monoid::sum, {prim::add(carry, row)}, array({A}), carry},
                    loop_index())),
                "the start of a carry has other axes or another dtype"));
  CHECK(reports(in_graph(loop_of_one(
                    {ResultKind::carry, Monoid::sum, {prim::sum(row, {B})}, array({B}), carry},
                    loop_index())),
                "an iteration returns () for the carry (b=3)"));
  CHECK(reports(
      in_graph(loop_of_one({ResultKind::fold, Monoid::sum, {row}, array({A})}, loop_index())),
      "the start of a fold has other axes or another dtype"));
  CHECK(reports(in_graph(loop_of_one({ResultKind::stack, Monoid::sum, {prim::mul(row, array({A}))}},
                                     loop_index())),
                "a value of one position has the loop axis"));
  CHECK(reports(in_graph(loop_of_one({ResultKind::stack, Monoid::sum, {row, row}}, loop_index())),
                "a result has no value in one of its bodies"));
  auto stack = loop_of_one({ResultKind::stack, Monoid::sum, {row}}, loop_index())->in[0];
  CHECK(reports(in_graph(make(kResult, {stack}, {Axis("z", 9)}, DType::f32, {.ints = {0}})),
                "it is (z=9), but its loop produces (a=4, b=3)"));
  auto bodies = [&](const NodePtr& second) {
    Loop l;
    l.axis = A;
    l.index = {prim::index(A, 0, 3, 0), second};
    l.results = {{ResultKind::fold, Monoid::sum, {}}};
    for (auto& i : l.index)
      l.results[0].value.push_back(prim::sum(prim::slice_at(x, i, false), {A}));
    return in_graph(loop_result(make_loop(std::move(l)), 0));
  };
  CHECK(bodies(prim::index(A, 3, 1, 0)) == "");
  CHECK(reports(bodies(prim::index(A, 2, 1, 0)), "a body does not start after 3 positions"));
  CHECK(reports(bodies(prim::index(A, 3, 2, 0)), "its bodies iterate over 5 positions of a=4"));
}

TEST_CASE("verify finds a graph's faults: bodies of a loop") {
  auto x = array({A, B});
  const Nodes index{prim::index(A, 0, 3, 0), prim::index(A, 3, 1, 0)};
  auto in = [&](ResultKind kind, const std::function<NodePtr(const NodePtr&, std::size_t)>& value) {
    Loop l;
    l.axis = A;
    l.index = index;
    l.results = {{kind, Monoid::sum, {}}};
    for (std::size_t b = 0; b < 2; ++b)
      l.results[0].value.push_back(value(prim::slice_at(x, index[b], false), b));
    return in_graph(make_loop(std::move(l)));
  };
  auto sum = [](auto& block, auto) { return prim::sum(block, {A}); };
  CHECK(in(ResultKind::stack, [](auto& block, auto) { return block; }) == "");
  CHECK(in(ResultKind::fold, sum) == "");
  CHECK(reports(in(ResultKind::stack, sum), "a stacked value is not a chunk of a=4"));
  CHECK(reports(in(ResultKind::fold,
                   [&](auto& block, auto b) {
                     return b ? prim::cast(sum(block, b), DType::f64) : sum(block, b);
                   }),
                "bodies return values of different dtypes"));
  CHECK(reports(in(ResultKind::fold,
                   [](auto& block, auto b) {
                     return prim::sum(block, b ? Axes{A, B} : Axes{A});
                   }),
                "bodies reduce different axes"));
  auto other = [&](auto& block, auto b) { return b ? prim::sum(block, {B}) : block; };
  CHECK(reports(in(ResultKind::stack, other), "bodies stack different axes"));
  Loop none;
  none.axis = A;
  CHECK(reports(in_graph(make_loop(none)), "it has no body"));
  auto pairs = prim::index(A, 0, 2, 0);
  CHECK(reports(
      in_graph(loop_of_one(
          {ResultKind::stack, Monoid::sum, {prim::sum(prim::slice_at(x, pairs, false), {A})}},
          pairs)),
      "its iterations have one position each, but its chunk is 2"));
  auto row = prim::slice_at(x, loop_index(), true),
       carry = prim::carry(loop_index(), {B}, DType::f32);
  CHECK(reports(
      in_graph(loop_of_one({ResultKind::carry, Monoid::sum, {row}, array({B})}, loop_index())),
      "a carried result has no carry"));
  Loop twice;
  const LoopResult carried{
      ResultKind::carry, Monoid::sum, {prim::add(carry, row)}, array({B}), carry};
  twice.axis = A;
  twice.index = {loop_index()};
  twice.drop = true;
  twice.results = {carried, carried};
  CHECK(reports(in_graph(make_loop(twice)), "two results have one carry"));
  auto conditional = prim::conditional(prim::conditional_index(3), array({}, DType::boolean));
  CHECK(in_graph(make_loop(conditional)) == "");
  auto& condition = conditional.results[0];
  condition.value = {prim::logical_not(condition.carry)};
  CHECK(reports(in_graph(make_loop(conditional)), "the condition is not a flag"));
  auto flag = prim::carry(loop_index(), {}, DType::boolean);
  condition.value = {flag};
  condition.carry = flag;
  CHECK(reports(in_graph(loop_of_one(condition, loop_index())), "a conditional has"));
}

TEST_CASE("verify finds a graph's faults: reads of a body, and their scope") {
  auto x = array({A, B}), start = array({B});
  const Nodes index{prim::index(A, 0, 3, 0), prim::index(A, 3, 1, 0)};
  auto carry = prim::carry(index[0], {B}, DType::f32);
  auto block = [&](const NodePtr& i) { return prim::sum(prim::slice_at(x, i, false), {A}); };
  // Bodies that read blocks, each by the given index.
  auto reads = [&](const NodePtr& first, const NodePtr& second) {
    Loop l;
    l.axis = A;
    l.index = index;
    l.results = {{ResultKind::carry, Monoid::sum, {}, start, carry}};
    for (auto& i : {first, second}) l.results[0].value.push_back(prim::add(carry, block(i)));
    return in_graph(loop_result(make_loop(std::move(l)), 0));
  };
  CHECK(reads(index[0], index[1]) == "");
  CHECK(reports(reads(index[0], index[0]), "it is read outside of its loop"));
  CHECK(reports(reads(index[1], index[1]), "it is read outside of its loop"));
  // A loop inside the second body, which reads the block of an index of the outer loop.
  auto nested = [&](const NodePtr& by) {
    const Axis C{"c", 2};
    auto inner_index = prim::index(C, 0, 1, 1);
    Loop inner;
    inner.axis = C;
    inner.index = {inner_index};
    inner.drop = true;
    inner.results = {{ResultKind::fold,
                      Monoid::sum,
                      {prim::mul(block(by), prim::slice_at(array({C}), inner_index, true))}}};
    auto sum = loop_result(make_loop(std::move(inner)), 0);
    Loop l;
    l.axis = A;
    l.index = index;
    l.results = {{ResultKind::carry, Monoid::sum, {carry, prim::add(carry, sum)}, start, carry}};
    return in_graph(loop_result(make_loop(std::move(l)), 0));
  };
  CHECK(nested(index[1]) == "");
  CHECK(reports(nested(index[0]), "it is read outside of its loop"));
  // Values of a body are checked like all other values.
  auto row = prim::slice_at(x, loop_index(), true);
  auto wrong = make(prim::kNeg, {row}, {B}, DType::i32);
  CHECK(reports(in_graph(loop_of_one({ResultKind::stack, Monoid::sum, {wrong}}, loop_index())),
                "an operand is f32, but the result is i32"));
  // A region that is entered in an iteration must be left in it, or after the loop.
  Attr region{.names = {"b", "b"}, .ints = {3, 0, 0, 0, 0, 0, 0, 1, 0, 0}};
  auto border = [&](const Op& op, const NodePtr& y) {
    return make(op, {y}, y->axes, DType::f32, region);
  };
  auto stacks = [&](const NodePtr& value) {
    return in_graph(loop_of_one({ResultKind::stack, Monoid::sum, {value}}, loop_index()));
  };
  auto entered = prim::neg(border(prim::kEnter, row));
  CHECK(stacks(border(prim::kLeave, entered)) == "");
  CHECK(in_graph(border(prim::kLeave, loop_of_one({ResultKind::stack, Monoid::sum, {entered}},
                                                  loop_index()))) == "");
  CHECK(reports(stacks(entered), "it is in a region that it never leaves"));
  auto through = [&](const NodePtr& y) {  // a region around the loop
    return loop_of_one({ResultKind::stack, Monoid::sum, {prim::mul(row, y)}}, loop_index());
  };
  CHECK(in_graph(border(prim::kLeave, through(border(prim::kEnter, start)))) == "");
  CHECK(reports(in_graph(through(border(prim::kEnter, start))),
                "it is in a region that it never leaves"));
}

TEST_CASE("verify finds a graph's faults: collectives") {
  using program::CollectiveKind;
  auto x = array({A, B});
  auto made = [&](CollectiveKind wire, const Axes& out, Name along, std::int64_t size) {
    CollectiveSpec w;
    w.number = 1;
    w.collective.kind = wire;
    w.collective.ranks = 2;
    w.collective.size = {size};
    w.out = {out};
    w.along = {along};
    return in_graph(collective_result(make_collective({x}, w), 0));
  };
  CHECK(made(CollectiveKind::all_reduce, {A, B}, {}, 0) == "");
  CHECK(reports(made(CollectiveKind::all_reduce, {B, A}, {}, 0),
                "it produces (b=3, a=4) from (a=4, b=3)"));
  CHECK(made(CollectiveKind::all_gather, {Axis("a", 7), B}, "a", 7) == "");
  CHECK(reports(made(CollectiveKind::all_gather, {Axis("a", 8), B}, "a", 7),
                "it produces (a=8, b=3) from (a=4, b=3)"));
  // blocks of 3
  CHECK(reports(made(CollectiveKind::all_gather, {Axis("a", 6), B}, "a", 6),
                "it produces (a=6, b=3) from (a=4, b=3)"));
  CHECK(reports(made(CollectiveKind::all_gather, {A, B}, "c", 8),
                "(a=4, b=3) lacks the axis that is gathered"));
  CHECK(made(CollectiveKind::reduce_scatter, {Axis("a", 2), B}, "a", 4) == "");
  CHECK(reports(made(CollectiveKind::reduce_scatter, {Axis("a", 3), B}, "a", 4),
                "it produces (a=3, b=3) from (a=4, b=3)"));
  CHECK(reports(made(CollectiveKind::reduce_scatter, {Axis("a", 2), Axis("b", 2)}, "a", 4),
                "it produces (a=2, b=2) from (a=4, b=3)"));
  auto exchange = [&](const program::BoxTransfer& send, const program::BoxTransfer& receive) {
    CollectiveSpec w;
    w.number = 1;
    w.collective.kind = CollectiveKind::exchange;
    w.collective.sends = {send};
    w.collective.receives = {receive};
    w.out = {{A, B}};
    return in_graph(collective_result(make_collective({x}, w), 0));
  };
  const program::BoxTransfer all{1, 0, {0, 0}, {4, 3}, {1, 1}};
  CHECK(exchange(all, all) == "");
  CHECK(exchange({1, 0, {3, 0}, {4, 3}, {-1, 1}}, all) == "");
  CHECK(reports(exchange({1, 0, {1, 0}, {4, 3}, {1, 1}}, all),
                "a box reaches outside of (a=4, b=3)"));
  CHECK(reports(exchange(all, {1, 0, {0, 0}, {4}, {1}}), "a box reaches outside of (a=4, b=3)"));
  CHECK(reports(exchange(all, {1, 2, {0, 0}, {4, 3}, {1, 1}}), "it has no array 2"));
  auto made_by = [&](const std::function<void(CollectiveSpec&)>& change) {
    CollectiveSpec w;
    w.number = 1;
    w.collective.kind = CollectiveKind::exchange;
    w.collective.sends = w.collective.receives = {all};
    w.out = {{A, B}};
    w.along = {Name()};
    change(w);
    return in_graph(make_collective({x}, w));
  };
  CHECK(made_by([](auto&) {}) == "");
  CHECK(reports(made_by([&](auto& w) {
                  w.collective.receives = {all, all};
                }),
                "24 elements are received into (a=4, b=3)"));
  CHECK(reports(made_by([](auto& w) { w.number = 0; }), "the collective has no number"));
  CHECK(reports(made_by([](auto& w) {
                  w.collective.kind = CollectiveKind::all_reduce;
                  w.out.resize(2);
                }),
                "it produces 2 arrays from 1"));
  CHECK(reports(made_by([](auto& w) { w.ranks = 2; }), "it is not a ring"));
  auto ring = [&](const Axes& other, const Axes& block, const Axes& out) {
    CollectiveSpec w;
    w.number = 1;
    w.ranks = 2;
    w.collective.kind = CollectiveKind::exchange;
    w.out = {out};
    w.along = {"a"};
    return in_graph(collective_result(make_collective({array(other), array(block)}, w), 0));
  };
  const Axis half{"a", 2};
  CHECK(ring({A, B}, {half}, {B}) == "");
  CHECK(ring({B}, {half, B}, {A}) == "");
  CHECK(reports(ring({half, B}, {half}, {B}),
                "axis a=4 of blocks of (a=2) is neither in (a=2, b=3) nor in (b=3)"));
  CHECK(reports(ring({B}, {half, B}, {half}),
                "axis a=4 of blocks of (a=2, b=3) is neither in (b=3) nor in (a=2)"));
  CHECK(reports(ring({A, B}, {half}, {B, Axis("c", 2)}), "no operand has axis c=2"));
  CHECK(reports(ring({A, B}, {B}, {A}), "the block (b=3) lacks axis a"));
  CollectiveSpec w;
  w.number = 1;
  w.collective.size = {0};
  w.out = {{A, B}};
  w.along = {Name()};
  auto call = make_collective({x}, w);
  CHECK(reports(in_graph(make(kResult, {call}, {A}, DType::f32, {.ints = {0}})),
                "it is (a=4), but its collective produces (a=4, b=3)"));
  CHECK(reports(in_graph(make(kResult, {call}, {A, B}, DType::i32, {.ints = {0}})),
                "the result is i32"));
  CHECK(reports(in_graph(make(kResult, {call}, {A, B}, DType::f32, {.ints = {1}})),
                "its collective has no result 1"));
}

TEST_CASE("verify finds a graph's faults: custom gradients") {
  auto x = array({A, B}), y = array({B});
  auto checkpointed = checkpoint([](const NamedArray& x, const NamedArray& y) { return x * y; })(
                          NamedArray(x), NamedArray(y))
                          .node()
                          ->in[0];
  auto by_hand = custom_vjp([](const NamedArray& x) { return exp(x); },
                            [](const auto&, const auto& out, const auto& g) {
                              return std::tuple(out * g);
                            })(NamedArray(x))
                     .node()
                     ->in[0];
  auto of = [&](const NodePtr& custom, const Nodes& operands) {
    return in_graph(custom_vjp_result(make(kCustomVjp, operands, {}, DType::f32, custom->attr), 0));
  };
  CHECK(of(checkpointed, checkpointed->in) == "");
  CHECK(of(by_hand, by_hand->in) == "");
  CHECK(reports(of(checkpointed, {checkpointed->in[0], x, x}),
                "array 2 was traced as f32 (b=3), but is f32 (a=4, b=3)"));
  CHECK(reports(of(checkpointed, {checkpointed->in[0], y, x}),
                "array 1 was traced as f32 (a=4, b=3), but is f32 (b=3)"));
  CHECK(reports(of(checkpointed, {y, x, y}),
                "array 0 was traced as f32 (a=4, b=3), but is f32 (b=3)"));
  CHECK(reports(of(checkpointed, {checkpointed->in[0], x}),
                "it was traced with 3 arrays, but has 2"));
  CHECK(reports(in_graph(make(kCustomVjp, {}, {}, DType::f32, by_hand->attr)),
                "it has 1 results, but 0 operands"));
  CHECK(reports(
      of(by_hand, {by_hand->in[0], x, y}),
      "its function has 1 arguments and 1 results, but it has 3 operands, 1 of them results"));
  CHECK(reports(in_graph(make(kResult, {checkpointed}, {A}, DType::f32, {.ints = {0}})),
                "it is (a=4), but its custom_vjp produces (a=4, b=3)"));
  CHECK(reports(in_graph(make(kResult, {checkpointed}, {A, B}, DType::f32, {.ints = {1}})),
                "its custom_vjp has no result 1"));
}

// ---- sharding plans ----
