// Planted faults in sharding plans and in the graphs of devices: the verifier finds and names each.
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

namespace {

using namespace partitioning;

const Mesh mesh{{{"data", 2}, {"model", 2}}};

// Verifies a plan in which n reads operands with these shardings and has the sharding `made`.
std::string in_plan_of(const NodePtr& n, const std::vector<Sharding>& operands,
                       const Sharding& made) {
  GlobalGraph global({n}, {{}}, mesh);
  Plan p;
  p.bodies.emplace_back();
  Version of{.kind = Compute{}, .node = global.find(n.get()), .sharding = made, .live = true};
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    p.versions.push_back({.kind = Given{},
                          .node = global.find(n->in[k].get()),
                          .sharding = operands[k],
                          .live = true});
    of.in.push_back(int(k));
  }
  p.versions.push_back(of);
  p.roots = {int(n->in.size())};
  return message_of([&] { verify(p, global, "a pass"); });
}
std::string in_plan(const NodePtr& n, const Sharding& operand, const Sharding& made) {
  return in_plan_of(n, {operand}, made);
}
std::string damaged(const NodePtr& n, const NodePtr& x, const Sharding& at, const Sharding& wanted,
                    const Version::Kind& kind, const std::function<void(Version&, Plan&)>& damage) {
  return damaged(n, {{x, at}}, wanted, mesh, kind, damage);
}
Sharding pending(int x, Monoid m = Monoid::sum) {
  Sharding s;
  s.add_partial(x, m);
  return s;
}

// Verifies a plan that reshards x from `from` by the step `reshard`, and claims the sharding
// `arrives`.
std::string in_reshard(const Sharding& from, const ReshardStep& reshard, const Sharding& arrives) {
  auto x = array({A, B});
  GlobalGraph global({x}, {{}}, mesh);
  Plan p;
  p.bodies.emplace_back();
  p.versions = {
      {.kind = Given{}, .node = 0, .sharding = from, .live = true},
      {.kind = Reshard{reshard}, .node = 0, .sharding = arrives, .in = {0}, .live = true}};
  p.roots = {1};
  return message_of([&] { verify(p, global, "a pass"); });
}
// Verifies a loop over a that carries a row of x. The carry starts as `start` and leaves as `left`;
// the plan claims `inside` and `at`.
std::string in_loop(const Sharding& start, const Sharding& left, const Sharding& inside,
                    const Sharding& at) {
  auto row = array({B}), carry = prim::carry(loop_index(), {B}, DType::f32);
  auto result =
      loop_of_one({ResultKind::carry, Monoid::sum, {prim::neg(carry)}, row, carry}, loop_index());
  GlobalGraph global({result}, {{}}, mesh);
  auto id = [&](const NodePtr& n) { return global.add(n); };
  Plan p;
  p.bodies = {{}, {.parent = 0, .loop = 0}};
  p.loops = {{.node = id(result->in[0]),
              .bodies = {1},
              .inside = {inside},
              .after_loop = {at},
              .value = {{2}},
              .carry = {{1}},
              .start = {0}}};
  p.versions = {{.kind = Given{}, .node = id(row), .sharding = start, .live = true},
                {.kind = Carry{0}, .node = id(carry), .body = 1, .sharding = left, .live = true},
                {.kind = Compute{},
                 .node = id(prim::neg(carry)),
                 .body = 1,
                 .sharding = left,
                 .in = {1},
                 .live = true},
                {.kind = RunLoop{0}, .node = id(result->in[0]), .in = {0}, .live = true}};
  return message_of([&] { verify(p, global, "a pass"); });
}

// Verifies a loop over two blocks of a that rotate around a ring. `array_at`: the sharding of the
// array; `block_at`: the claimed sharding in the loop; `sent`: a value of the body is sharded along
// b, and gathered again.
std::string in_round(const Sharding& array_at, const Sharding& block_at, bool sent = false) {
  auto x = array({A, B}), index = prim::index(A, 0, 2, 0);
  auto block = prim::slice(x, "a", 0, 2, 1, false, index), value = prim::neg(block);
  auto result = loop_of_one({ResultKind::fold, Monoid::sum, {value}}, index);
  GlobalGraph global({result}, {{}}, mesh);
  auto id = [&](const NodePtr& n) { return global.add(n); };
  auto b = sharded("b", {0});
  Plan p;
  p.bodies = {{}, {.parent = 0, .loop = 0}};
  p.loops = {{.node = id(result->in[0]),
              .bodies = {1},
              .ring_axes = {0},
              .inside = {{}},
              .after_loop = {{}},
              .value = {{sent ? 4 : 2}},
              .carry = {{}},
              .start = {-1}}};
  p.versions = {{.kind = Given{}, .node = id(x), .sharding = array_at, .live = true},
                {.kind = RingReceive{{ReshardStep::Kind::slice, {}, {0}, "a", 1}},
                 .node = id(block),
                 .body = 1,
                 .sharding = block_at,
                 .in = {0},
                 .live = true},
                {.kind = Compute{}, .node = id(value), .body = 1, .in = {1}, .live = true},
                {.kind = Reshard{{ReshardStep::Kind::slice, b, {}, {}}},
                 .node = id(value),
                 .body = 1,
                 .sharding = b,
                 .in = {2},
                 .live = sent},
                {.kind = Reshard{{ReshardStep::Kind::all_gather, {}, {0}, "b", 1}},
                 .node = id(value),
                 .body = 1,
                 .in = {3},
                 .live = sent},
                {.kind = RunLoop{0}, .node = id(result->in[0]), .live = true}};
  return message_of([&] { verify(p, global, "a pass"); });
}

}  // namespace

TEST_CASE("verify finds a plan's faults") {
  auto x = array({A, B});
  CHECK(in_plan(prim::exp(x), sharded("a", {0}), sharded("a", {0})) == "");
  CHECK(in_plan(prim::sum(x, {A}), sharded("a", {0}), pending(0)) == "");
  CHECK(reports(in_plan(prim::sum(x, {A}), sharded("a", {0}), {}),
                "its operands imply {partial: 0}, but its plan is {}"));
  CHECK(reports(in_plan(prim::sort(x, "a"), sharded("a", {0}), {}),
                "axis a of operand 0 is data, expected unsharded"));
  CHECK(reports(in_plan(prim::sort(x, "a"), {}, sharded("a", {0})),
                "it computes the full axis a, which is sharded"));
  CHECK(reports(in_plan(prim::exp(x), pending(0), pending(0)),
                "it is not linear in an operand with a partial sum"));
  CHECK(reports(in_plan(prim::neg(x), pending(0), {}),
                "its operands imply {partial: 0}, but its plan is {}"));
  CHECK(
      reports(in_plan(prim::exp(x), sharded("c", {0}), {}), "sharded axis c is not in (a=4, b=3)"));
  auto both = sharded("a", {0});
  both.set("b", {0});
  CHECK(reports(in_plan(prim::exp(x), both, both), "mesh axis data is used twice"));
  CHECK(reports(in_plan(prim::exp(x), sharded("a", {7}), sharded("a", {7})),
                "the mesh has no axis with index 7"));
  auto with = [&](auto damage) { return damaged(prim::exp(x), x, {}, {}, Given{}, damage); };
  CHECK(reports(with([](Version& v, Plan&) { v.live = false; }), "an operand is never computed"));
}

TEST_CASE("verify finds a plan's faults: operands that do not match the result") {
  auto x = array({A, B}), y = array({A, B}), v = array({A});
  auto a = sharded("a", {0});
  CHECK(in_plan_of(prim::add(x, v), {a, a}, a) == "");
  CHECK(reports(in_plan(prim::exp(x), a, sharded("b", {0})),
                "axis a of operand 0 is data, expected unsharded"));
  CHECK(reports(in_plan(prim::exp(x), {}, a), "axis a of operand 0 is unsharded, expected data"));
  CHECK(reports(in_plan(prim::exp(x), sharded("a", {0, 1}), sharded("a", {1, 0})),
                "axis a of operand 0 is data+model, expected model+data"));
  CHECK(reports(in_plan_of(prim::mul(x, y), {a, sharded("a", {1})}, a),
                "axis a of operand 1 is model, expected data"));
  CHECK(reports(in_plan_of(prim::contract(v, array({A}), {}), {a, {}}, pending(0)),
                "axis a of operand 1 is unsharded, expected data"));
  auto renamed = prim::rename(x, {"a"}, {"c"});
  CHECK(in_plan(renamed, a, sharded("c", {0})) == "");
  CHECK(reports(in_plan(renamed, a, sharded("b", {0})),
                "axis a of operand 0 is data, expected unsharded"));
  auto flat = prim::flatten(x, {"a", "b"}, Axis("f", 12));
  CHECK(in_plan(flat, a, sharded("f", {0})) == "");
  CHECK(reports(in_plan(flat, sharded("b", {0}), sharded("f", {0})),
                "axis f is not sharded in blocks of a"));
  CHECK(reports(in_plan(prim::slice(x, "a", 1, 3), a, {}),
                "axis a of operand 0 is data, expected unsharded"));
  CHECK(reports(in_plan(prim::slice(x, "a", 1, 3), {}, a),
                "it computes the full axis a, which is sharded"));
}

TEST_CASE("verify finds a plan's faults: partial sums") {
  const Axis I{"i", 2};
  auto x = array({A, B}), y = array({A, B}), ids = array({I}, DType::i32);
  auto one = pending(0), max = pending(0, Monoid::max);
  const Sharding none, a = sharded("a", {0});
  auto wrong = "its operands imply";
  CHECK(in_plan(prim::reduce(Monoid::max, x, {B}), a, max) == "");
  CHECK(reports(in_plan(prim::reduce(Monoid::max, x, {B}), a, one), wrong));
  CHECK(reports(in_plan(prim::sum(x, {A}), a, max), wrong));
  CHECK(reports(in_plan(prim::neg(x), none, one), wrong));
  CHECK(in_plan(prim::rename(x, {"a"}, {"c"}), max, max) == "");
  CHECK(reports(in_plan(prim::neg(x), max, max),
                "it is not linear in an operand with a partial sum"));
  CHECK(in_plan_of(prim::add(x, y), {one, one}, one) == "");
  CHECK(reports(in_plan_of(prim::add(x, y), {one, none}, one),
                "operand 0 has a partial sum, and not operand 1"));
  CHECK(reports(in_plan_of(prim::concat({x, y}, Axis("a", 8)), {none, max}, max),
                "operand 1 has a partial sum, and not operand 0"));
  CHECK(in_plan_of(prim::mul(x, y), {one, none}, one) == "");
  CHECK(reports(in_plan_of(prim::mul(x, y), {one, one}, one),
                "operand 0 has a partial sum, and also operand 1"));
  CHECK(reports(in_plan_of(prim::contract(array({A, I}), array({A}), {I}), {a, a}, none), wrong));
  auto taken = prim::gather(x, {{"a", ids}}, {I, B}, program::Outside::fill);
  CHECK(in_plan_of(taken, {a, none}, one) == "");
  CHECK(reports(in_plan_of(taken, {a, none}, none), wrong));
  auto added = prim::scatter(x, array({I, B}), {{"a", ids}}, program::Update::add, false);
  CHECK(in_plan_of(added, {one, sharded("i", {0}), sharded("i", {0})}, one) == "");
  CHECK(reports(in_plan_of(added, {none, sharded("i", {0}), sharded("i", {0})}, one),
                "its target has other partial sums than its result"));
}

TEST_CASE("verify finds a plan's faults: positions that move, and values computed in place") {
  auto x = array({A, B});
  auto a = sharded("a", {0});
  auto moved = [&](auto damage) {
    return damaged(prim::slice(x, "a", 1, 3), x, a, a, Shift{},
                   [&](Version& v, Plan&) { damage(v); });
  };
  CHECK(reports(moved([](Version& v) { v.as<Shift>().boxes[0].to = 1; }),
                "position 1 follows position 0"));
  CHECK(reports(moved([](Version& v) { v.as<Shift>().boxes[0].from = 2; }),
                "it reaches outside of (a=4, b=3)"));
  CHECK(reports(moved([](Version& v) { v.as<Shift>().boxes[0].size = 2; }),
                "2 positions are copied"));
  CHECK(reports(moved([](Version& v) { v.as<Shift>().boxes[0].sharding = {}; }),
                "it is {a: 0}, but its operand is {a: 0}"));
  CHECK(reports(moved([](Version& v) { v.sharding.add_partial(1, Monoid::sum); }),
                "it is {a: 0, partial: 1}, but its operand is {a: 0}"));
  CHECK(reports(moved([](Version& v) {
                  v.sharding.set("b", {1});
                  v.as<Shift>().step.bytes = 0;
                }),
                "axis b has another sharding"));
  auto odd = array({Axis("a", 3), Axis("b", 2)});
  auto flat = [&](auto damage) {
    return damaged(prim::flatten(odd, {"a", "b"}, Axis("p", 6)), odd, a, sharded("p", {0, 1}),
                   Regroup{}, [&](Version& v, Plan&) { damage(v); });
  };
  CHECK(reports(flat([](Version& v) { v.as<Regroup>().boxes[0].source_layout.mesh_axes[0] = {1}; }),
                "part a has another sharding"));
  auto made = damaged(prim::add(prim::iota(A, DType::f32), x), x, a, a, Generate{},
                      [](Version& v, Plan&) { v.sharding.add_partial(1, Monoid::sum); });
  CHECK(reports(made, "it is not computed from scalars and positions alone"));
}

// Device 1 of four computes n from x, whose sharding is `has`: a slice of its own, or positions
// that move.
TEST_CASE("verify finds a slice of one device that differs from the plan") {
  auto x = array({A, B});
  auto on_device = [&](const Sharding& has, Version of, const NodePtr& n, const NodePtr& mine,
                       const NodePtr& made) {
    GlobalGraph global({n}, {{}}, mesh);
    Plan p;
    p.bodies.emplace_back();
    of.node = global.find(n.get());
    of.in = {0};
    of.live = true;
    p.versions = {{.kind = Given{}, .node = global.find(x.get()), .sharding = has, .live = true},
                  of};
    p.roots = {1};
    return message_of([&] { verify_device(p, global, 1, {mine, made}, "a pass"); });
  };
  auto found = [](const std::string& text, const char* part) {
    return reports(text, "") || text.find(part) != text.npos;
  };
  const Sharding a = sharded("a", {1});
  const Version sliced{.kind = Reshard{{ReshardStep::Kind::slice, a, {}, {}}}, .sharding = a};
  auto block = [&](std::int64_t from, std::int64_t size) {
    return prim::slice(x, "a", from, size);
  };
  CHECK(on_device({}, sliced, x, x, block(2, 2)) == "");
  CHECK(found(on_device({}, sliced, x, x, block(0, 2)),
              "on device 1: position 0 of a is position 0 of its operand, expected 2"));
  CHECK(found(on_device({}, sliced, x, x, block(1, 3)),
              "on device 1: it is (a=3, b=3), but its block is (a=2, b=3)"));
  CHECK(found(on_device({}, sliced, x, x, prim::cast(block(2, 2), DType::f64)),
              "on device 1: it is f64"));
  auto swapped = prim::concat({block(3, 1), block(2, 1)}, Axis("a", 2));
  CHECK(found(on_device({}, sliced, x, x, swapped),
              "position 0 of a is position 3 of its operand, expected 2"));
  // rotated by one
  auto n = prim::concat({prim::slice(x, "a", 1, 3), prim::slice(x, "a", 0, 1)}, A);
  Version round{.kind = Shift{}, .sharding = {}};
  auto& shift = round.as<Shift>();
  shift.step.axis = "a";
  shift.boxes = {{.axes = x->axes, .axis = "a", .from = 1, .to = 0, .size = 3},
                 {.axes = x->axes, .axis = "a", .from = 0, .to = 3, .size = 1}};
  CHECK(on_device({}, round, n, x, n) == "");
  CHECK(found(on_device({}, round, n, x, x),
              "position 0 of a is position 0 of its operand, expected 1"));
  auto twice = prim::concat({block(1, 2), block(2, 1), block(0, 1)}, A);
  CHECK(found(on_device({}, round, n, x, twice),
              "position 2 of a is position 2 of its operand, expected 3"));
  auto turned = prim::concat({prim::slice(x, "a", 3, 3, -1), block(0, 1)}, A);
  CHECK(found(on_device({}, round, n, x, turned),
              "position 0 of a is position 3 of its operand, expected 1"));
  shift.boxes.pop_back();
  CHECK(found(on_device({}, round, n, x, n), "position 3 of a has no operand"));
}

TEST_CASE("verify finds a part of an axis on one device that differs from its block") {
  const Axis C("c", 4), D("d", 2), Flat("p", 8);
  auto on_device = [&](int device, const NodePtr& x, const NodePtr& n, const Sharding& has,
                       const Sharding& is, const AxisLayout& given, const AxisLayout& taken,
                       const NodePtr& mine, const NodePtr& made) {
    GlobalGraph global({n}, {{}}, mesh);
    Plan p;
    p.bodies.emplace_back();
    Version v{
        .kind = Regroup{}, .node = global.find(n.get()), .sharding = is, .in = {0}, .live = true};
    v.as<Regroup>().boxes = {{.axes = {Flat},
                              .sharding = has,
                              .axis = "p",
                              .source_layout = given,
                              .result_layout = taken}};
    p.versions = {{.kind = Given{}, .node = global.find(x.get()), .sharding = has, .live = true},
                  v};
    p.roots = {1};
    return message_of([&] { verify_device(p, global, device, {mine, made}, "a pass"); });
  };
  auto found = [](const std::string& text, const char* part) {
    return text.find(part) != text.npos;
  };
  auto parts = array({C, D});
  auto flat = prim::flatten(parts, {"c", "d"}, Flat);
  const Sharding half = sharded("p", {0});
  auto flattened = [&](int device, const NodePtr& made) {
    return on_device(device, parts, flat, {}, half, {{C, D}, {{}, {}}}, {}, parts, made);
  };
  CHECK(flattened(0, prim::slice(flat, "p", 0, 4)) == "");
  CHECK(flattened(2, prim::slice(flat, "p", 4, 4)) == "");
  CHECK(found(flattened(2, prim::slice(flat, "p", 0, 4)),
              "on device 2: position 0 of p is position 0 of the unsharded axis, expected 4"));
  auto line = array({Flat});
  auto two_axes = prim::unflatten(line, "p", {C, D});
  auto unflattened = [&](const NodePtr& local) {  // each device has every second position
    return on_device(1, line, two_axes, {}, sharded("d", {1}), {}, {{C, D}, {{}, {1}}}, line,
                     prim::unflatten(local, "p", {C, Axis("d", 1)}));
  };
  auto every_second = [&](std::int64_t from) {
    Nodes runs;
    for (std::int64_t k = 0; k < 4; ++k) runs.push_back(prim::slice(line, "p", from + 2 * k, 1));
    return prim::concat(runs, Axis("p", 4));
  };
  CHECK(unflattened(every_second(1)) == "");
  CHECK(found(unflattened(every_second(0)),
              "position 0 of p is position 0 of the unsharded axis, expected 1"));
  CHECK(found(unflattened(prim::slice(line, "p", 1, 4)),
              "position 1 of p is position 2 of the unsharded axis, expected 3"));
}

TEST_CASE("verify finds a plan's faults: shared iterations") {
  auto x = array({A, B});
  auto a = sharded("a", {0});
  auto stack = [&](const Version::Kind& kind, auto damage) {
    auto n = loop_of_one(
        {ResultKind::stack, Monoid::sum, {prim::exp(prim::slice_at(x, loop_index(), true))}},
        loop_index());
    return damaged(n, x, a, a, kind, damage);
  };
  CHECK(reports(stack(RunLoop{}, [](Version& v, Plan& p) { p.loop(v.loop()).after_loop[0] = {}; }),
                "a result is {}, but its iterations produce {a: 0}"));
  CHECK(reports(stack(RunLoop{}, [](Version& v, Plan& p) { p.loop(v.loop()).shared_by = {}; }),
                "axis a of operand 0 is data, expected unsharded"));
  CHECK(reports(stack(ResultOfLoop{}, [](Version& v, Plan&) { v.sharding = {}; }),
                "its loop result has another sharding"));
  CHECK(
      reports(stack(Compute{}, [](Version& v, Plan&) { v.as<Compute>().local_iterations = false; }),
              "axis a of operand 0 is data, expected unsharded"));
  CHECK(reports(stack(Compute{}, [](Version& v, Plan&) { v.sharding.set("b", {0}); }),
                "mesh axis data is used twice"));
  CHECK(reports(stack(Compute{}, [](Version& v, Plan&) { v.body = 0; }),
                "an operand is computed in another loop body"));
  // Chunks of two, of an array that does not vary: sharded, it would not consist of full chunks.
  auto chunk = array({Axis("a", 2), B});
  Loop l;
  l.axis = A;
  l.index = {prim::index(A, 0, 2, 0)};
  l.results = {{ResultKind::stack, Monoid::sum, {chunk}}};
  auto loop = make_loop(std::move(l));
  GlobalGraph global({loop}, {{}}, mesh);
  Plan p;
  p.bodies = {{}, {.parent = 0, .loop = 0}};
  p.loops = {{.node = global.add(loop),
              .bodies = {1},
              .inside = {a},
              .after_loop = {a},
              .value = {{0}},
              .carry = {{}},
              .start = {-1}}};
  p.versions = {{.kind = Given{}, .node = global.add(chunk), .sharding = a, .live = true},
                {.kind = RunLoop{0}, .node = global.add(loop), .in = {0}, .live = true}};
  CHECK(reports(message_of([&] { verify(p, global, "a pass"); }),
                "it stacks values that are sharded along a=4"));
}

TEST_CASE("verify finds a plan's faults: reshard steps, and loops") {
  using Way = ReshardStep::Kind;
  auto a = sharded("a", {0});
  CHECK(in_reshard(pending(0), {Way::all_reduce, {}, {0}}, {}) == "");
  CHECK(in_reshard(a, {Way::all_gather, {}, {0}, "a"}, {}) == "");
  CHECK(reports(in_reshard(pending(0), {Way::all_reduce, {}, {0}}, a),
                "its sharding is not the target of its reshard step"));
  CHECK(reports(in_reshard({}, {Way::all_reduce, {}, {0}}, {}),
                "it reduces a sum that is not partial"));
  CHECK(reports(in_reshard(pending(0), {Way::reduce_scatter, pending(0), {0}, "a"}, pending(0)),
                "axis a is unsharded, and becomes unsharded"));
  CHECK(reports(in_reshard({}, {Way::all_gather, {}, {0}, "a"}, {}),
                "axis a is unsharded, and becomes unsharded"));
  auto b = sharded("b", {1}), both = pending(0);
  both.add_partial(1, Monoid::max);
  CHECK(reports(in_reshard(a, {Way::slice, sharded("a", {1}), {1}, {}}, sharded("a", {1})),
                "axis a is data, and becomes model"));
  CHECK(reports(in_reshard(pending(0), {Way::slice, {}, {}, {}}, {}),
                "a value that is {partial: 0} becomes {}"));
  CHECK(reports(in_reshard(pending(0), {Way::exchange, a, {0}, {}}, a),
                "a value that is {partial: 0} becomes {a: 0}"));
  CHECK(reports(in_reshard(sharded("a", {0, 1}), {Way::all_gather, sharded("a", {1}), {0}, "a"},
                           sharded("a", {1})),
                "axis a is data+model, and becomes model"));
  CHECK(reports(in_reshard(both, {Way::all_reduce, {}, {0}}, {}),
                "a value that is {partial: 0, partial: 1}, of maxima becomes {}"));
  CHECK(reports(in_reshard(both, {Way::all_reduce, {}, {0, 1}}, {}),
                "it reduces partial sums of two kinds"));
  CHECK(reports(in_reshard({}, {Way::slice, pending(0), {}, {}}, pending(0)),
                "it becomes {partial: 0}, but was not a partial sum"));
  CHECK(in_reshard({}, {Way::make_partial, pending(0), {}, {}}, pending(0)) == "");
  CHECK(in_loop(b, b, b, b) == "");
  CHECK(reports(in_loop({}, b, {}, {}),
                "a loop body returns or carries a result with another sharding"));
  CHECK(reports(in_loop({}, b, b, b), "the start of a result has another sharding"));
}

TEST_CASE("verify finds a plan's faults: one collective for arrays that differ") {
  using Way = ReshardStep::Kind;
  auto x = array({A, B}), y = array({A, B});
  struct Sent {
    Sharding from;
    ReshardStep reshard_step;
    Sharding arrives;
  };
  auto together = [&](const Sent& first, const Sent& second, int bucket = 1) {
    GlobalGraph global({x, y}, {{}, {}}, mesh);
    Plan p;
    p.bodies.emplace_back();
    for (auto& [n, sent] : {std::pair(global.add(x), first), std::pair(global.add(y), second)}) {
      int given = int(p.versions.size());
      p.versions.push_back({.kind = Given{}, .node = n, .sharding = sent.from, .live = true});
      p.versions.push_back({.kind = Reshard{sent.reshard_step},
                            .node = n,
                            .sharding = sent.arrives,
                            .in = {given},
                            .live = true,
                            .bucket = bucket});
      p.roots.push_back(given + 1);
    }
    p.bodies[0].versions = {0, 2, 1, 3};
    return message_of([&] { verify(p, global, "a pass"); });
  };
  const Sent sum{pending(0), {Way::all_reduce, {}, {0}}, {}},
      other{pending(1), {Way::all_reduce, {}, {1}}, {}};
  const Sent max{pending(0, Monoid::max), {Way::all_reduce, {}, {0}}, {}},
      part{pending(0), {Way::reduce_scatter, sharded("a", {0}), {0}, "a"}, sharded("a", {0})};
  CHECK(together(sum, sum) == "");
  CHECK(together(part, part) == "");
  CHECK(together(sum, other, -1) == "");
  for (auto& unlike : {other, max, part})
    CHECK(reports(together(sum, unlike),
                  "it is merged into one collective with a different collective"));
}

TEST_CASE("verify finds results without the required sharding") {
  auto x = array({A, B});
  auto n = prim::exp(x);
  GlobalGraph global({n}, {{}}, mesh);
  auto of = [&](const Sharding& made, const std::vector<Sharding>& wanted) {
    Plan p;
    p.bodies.emplace_back();
    p.versions = {{.kind = Given{}, .node = global.find(n.get()), .sharding = made, .live = true}};
    p.roots = {0};
    return message_of([&] { verify(p, global, "a pass", &wanted); });
  };
  CHECK(of({}, {{}}) == "");
  CHECK(of(pending(0), {pending(0)}) == "");
  CHECK(of({}, {sharded("c", {0})}) == "");  // an axis that it lacks
  CHECK(reports(of(pending(0), {{}}), "as a result it is {partial: 0}, expected {}"));
  CHECK(reports(of(sharded("a", {0}), {sharded("b", {0})}),
                "as a result it is {a: 0}, expected {b: 0}"));
  CHECK(reports(of({}, {{}, {}}), "it has 1 results, expected 2"));
}

TEST_CASE("verify finds a plan's faults: ring loops") {
  auto a = sharded("a", {0});
  CHECK(in_round(a, {}) == "");
  CHECK(reports(in_round({}, {}), "the ring result is {}, but its operand is {}"));
  CHECK(
      reports(in_round(sharded("a", {1}), {}), "the ring result is {}, but its operand is {a: 1}"));
  CHECK(reports(in_round(a, a), "the ring result is {a: 0}, but its operand is {a: 0}"));
  CHECK(reports(in_round(a, {}, true),
                "it is communicated over data in a ring loop over the same mesh axis"));
}
