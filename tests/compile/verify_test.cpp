// Planted faults, one for each rule of the verifier: what is legal passes, and the fault is found and named.
#include <doctest/doctest.h>

#include "compile/memory/memory.h"
#include "compile/sharding/planner.h"
#include "compile/verify.h"
#include "haliax/ops.h"
#include "ops/attr.h"
#include "ops/prim.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis A{"a", 4}, B{"b", 3};
NodePtr array(const Axes& axes, DType d = DType::f32) { return prim::input(axes, d); }

template <class F>
std::string found(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
std::string in_graph(const NodePtr& n) {
  return found([&] { verify(Nodes{n}, "a pass"); });
}
bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  return text.starts_with("[verify] ") && text.find("after a pass: " + part) != text.npos;
}

// A loop over a: one body, one result.
NodePtr loop_of_one(LoopResult r, const NodePtr& index) {
  Loop l;
  l.axis = A, l.index = {index}, l.drop = true, l.results = {std::move(r)};
  return loop_result(make_loop(std::move(l)), 0);
}
const NodePtr& turn() {
  static const NodePtr index = prim::index(A, 0, 1, 0);
  return index;
}

}  // namespace

TEST_CASE("verify finds a graph's faults: axes and dtypes") {
  auto x = array({A, B}), y = array({A}), whole = array({A}, DType::i32);
  CHECK(in_graph(prim::add(x, y)) == "");
  CHECK(says(in_graph(make(prim::kAdd, {x, x}, {A, B, A}, DType::f32)), "axis a twice"));
  CHECK(says(in_graph(make(prim::kAdd, {x, y}, {A}, DType::f32)), "operand (a=4, b=3) does not fit (a=4)"));
  CHECK(says(in_graph(make(prim::kAdd, {x, y}, {A, Axis("b", 5)}, DType::f32)), "operand (a=4, b=3) does not fit"));
  CHECK(says(in_graph(make(prim::kAdd, {y, whole}, {A}, DType::f32)), "an operand is i32, the result f32"));
  CHECK(says(in_graph(make(prim::kLess, {y, y}, {A}, DType::f32)), "a comparison is f32"));
  CHECK(says(in_graph(make(prim::kSelect, {y, y, y}, {A}, DType::f32)), "operands have other dtypes"));
  CHECK(says(in_graph(make(prim::kSum, {y}, {B}, DType::f32)), "no operand has axis b"));
  CHECK(says(in_graph(make(prim::kSum, {y}, {}, DType::f64)), "the result is f64"));
  CHECK(says(in_graph(make(prim::kContract, {x, y}, {Axis("c", 2)}, DType::f32)), "no operand has axis c"));
  CHECK(says(in_graph(make(prim::kContract, {x, array({Axis("a", 5)})}, {B}, DType::f32)), "axis a has two sizes"));
}

TEST_CASE("verify finds a graph's faults: what moves") {
  auto x = array({A, B});
  auto slice = [&](SliceAttr c, const Axes& axes) { return in_graph(make(prim::kSlice, {x}, axes, DType::f32, c.attr())); };
  CHECK(slice({"a", 1, 2}, {Axis("a", 2), B}) == "");
  CHECK(says(slice({"a", 1, 4}, {Axis("a", 4), B}), "it reaches outside of (a=4, b=3)"));
  CHECK(slice({"a", 1, 2, -1}, {Axis("a", 2), B}) == "");
  CHECK(says(slice({"a", 0, 2, -1}, {Axis("a", 2), B}), "it reaches outside"));
  CHECK(says(slice({"a", 1, 2}, {Axis("a", 3), B}), "the part has (a=3, b=3), and 2 positions are taken"));
  CHECK(says(slice({"a", 1, 2}, {Axis("a", 2)}), "operand (a=4, b=3) does not fit (a=2)"));
  CHECK(says(in_graph(make(prim::kFit, {x}, {A}, DType::f32)), "operand (a=4, b=3) does not fit (a=4)"));
  CHECK(says(in_graph(make(prim::kRename, {x}, {A}, DType::f32, RenameAttr{{"b"}, {"c"}}.attr())), "operand (a=4, b=3) does not fit (a=4)"));
  CHECK(says(in_graph(make(prim::kFlatten, {x}, {Axis("c", 11)}, DType::f32, RegroupAttr{{"a", "b"}, "c"}.attr())), "it makes (c=11) of (a=4, b=3)"));
  CHECK(says(in_graph(make(prim::kConcat, {x, x}, {Axis("a", 9), B}, DType::f32, {.names = {"a"}})), "its parts have 8 positions"));
  CHECK(says(in_graph(make(prim::kTracer, {x}, {A}, DType::f32)), "it is not like what it shows"));
  Attr border{.names = {"a", "a"}, .ints = {5, 0, 0, 0, 0, 0, 0, 1, 0}};
  CHECK(says(in_graph(make(prim::kEnter, {x}, x->axes, DType::f32, border)), "a border is around (a=4, b=3)"));
}

TEST_CASE("verify finds a graph's faults: loops") {
  auto x = array({A, B});
  auto row = prim::slice_at(x, turn(), true);
  auto carry = prim::carry(turn(), {B}, DType::f32);
  CHECK(in_graph(loop_of_one({Fold::stack, Monoid::sum, {row}}, turn())) == "");
  CHECK(in_graph(loop_of_one({Fold::carry, Monoid::sum, {prim::add(carry, row)}, array({B}), carry}, turn())) == "");
  CHECK(says(in_graph(row), "it is read outside of its loop"));
  CHECK(says(in_graph(prim::add(array({B}), carry)), "it is read outside of its loop"));
  CHECK(says(in_graph(loop_of_one({Fold::carry, Monoid::sum, {prim::add(carry, row)}, array({A}), carry}, turn())), "a carry starts from another kind of array"));
  CHECK(says(in_graph(loop_of_one({Fold::carry, Monoid::sum, {prim::sum(row, {B})}, array({B}), carry}, turn())), "a turn leaves () where it carries (b=3)"));
  CHECK(says(in_graph(loop_of_one({Fold::fold, Monoid::sum, {row}, array({A})}, turn())), "a fold starts from another kind of array"));
  CHECK(says(in_graph(loop_of_one({Fold::stack, Monoid::sum, {prim::mul(row, array({A}))}}, turn())), "a value of one position has the axis that is walked"));
  CHECK(says(in_graph(loop_of_one({Fold::stack, Monoid::sum, {row, row}}, turn())), "a result has no value in one of its bodies"));
}

// ---- programs ----
namespace {

using program::Program;

// copy of so many elements from the argument to the result
Program copies(std::int64_t elements, std::int64_t offset = 0) {
  Program p;
  p.slots = {{16, program::Home::argument, 0}, {16, program::Home::result, 0}};
  p.arguments = p.results = 1, p.argument_slots = {0}, p.result_slots = {1};
  program::Step s;
  s.kind = program::Kind::copy, s.why = "copy";
  s.copy = {{elements}, {0, DType::f32, 0, {1}, {}}, {1, DType::f32, offset, {1}, {}}};
  p.steps = {s};
  return p;
}
std::string in_program(const Program& p, bool placed = false) {
  return found([&] { verify(p, "a pass", placed); });
}
program::Step all_reduce(std::vector<int> over) {
  program::Step s;
  s.kind = program::Kind::collective;
  s.collective.over = std::move(over);
  return s;
}

}  // namespace

TEST_CASE("verify finds a program's faults") {
  CHECK(in_program(copies(4)) == "");
  CHECK(says(in_program(copies(5)), "elements 0 to 4 of slot 0, which has 16 bytes"));
  CHECK(says(in_program(copies(2, 3)), "elements 3 to 4 of slot 1, which has 16 bytes"));
  CHECK(says(in_program(copies(2, -1)), "elements -1 to 0 of slot 1"));
  auto p = copies(4);
  std::swap(p.steps[0].copy.x, p.steps[0].copy.out);
  CHECK(says(in_program(p), "slot 1 is read before it is written"));
  p = copies(1);
  p.steps[0].copy.x.terms = {{.loop = 0, .stride = 1}};
  CHECK(says(in_program(p), "a view counts the turns of a loop that is not around it"));
  program::Step loop;
  loop.kind = program::Kind::loop, loop.loop.trips = 5, loop.loop.body = p.steps;
  p.steps = {loop};
  CHECK(says(in_program(p), "elements 0 to 4 of slot 0"));
  p.steps[0].loop.trips = 4;
  CHECK(in_program(p) == "");
  p = copies(4);
  p.steps.clear();
  CHECK(found([&] { verify(p, "a pass", false); }).find("a result is never written") != std::string::npos);
  p = copies(4);
  p.steps[0].scratch_bytes = 64, p.steps[0].scratch = 0;
  CHECK(in_program(p) == "");
  CHECK(says(in_program(p, true), "its scratch lies outside of the arena"));
}

TEST_CASE("verify finds memory that is written over before it is read") {
  auto p = copies(4);
  p.slots.push_back({16}), p.slots.push_back({16});
  p.slots[2].offset = 0, p.slots[3].offset = 64, p.arena_bytes = 128;
  auto copy = [&](int from, int to) {
    auto s = p.steps[0];
    s.copy.x.slot = from, s.copy.out.slot = to;
    return s;
  };
  p.steps = {copy(0, 2), copy(0, 3), copy(2, 1)};
  CHECK(in_program(p, true) == "");
  p.slots[3].offset = 8;
  CHECK(in_program(p, false) == "");
  CHECK(says(in_program(p, true), "slot 2 is read, and slot 3 was written over it"));
}

TEST_CASE("verify finds devices that make other calls") {
  Program a, b, c;
  a.steps = b.steps = {all_reduce({0}), all_reduce({1})};
  c.steps = {all_reduce({1}), all_reduce({0})};
  CHECK(found([&] { verify_calls({&a, &b}); }) == "");
  CHECK(found([&] { verify_calls({&a, &c}); }).find("call 0 of device 1 is all-reduce 1") != std::string::npos);
  b.steps.pop_back();
  CHECK(found([&] { verify_calls({&a, &b}); }).find("call 1 of device 1 is nothing") != std::string::npos);
}

// ---- plans of shardings ----
namespace {

using namespace partitioning;

const Mesh mesh{{{"data", 2}, {"model", 2}}};

// x, cut so, goes into n, which is said to be made so.
std::string in_plan(const NodePtr& n, const Sharding& operand, const Sharding& made) {
  Whole whole({n}, {{}}, mesh);
  Plan p;
  p.bodies.emplace_back();
  p.versions = {{.kind = Version::Kind::given, .node = whole.find(n->in[0].get()), .at = operand, .live = true},
                {.kind = Version::Kind::compute, .node = whole.find(n.get()), .at = made, .in = {0}, .live = true}};
  p.roots = {1};
  return found([&] { verify(p, whole, "a pass"); });
}
Sharding cut(Name a, const Cut& c) {
  Sharding s;
  s.set(a, c);
  return s;
}
Sharding pending(int x) {
  Sharding s;
  s.pend(x, Monoid::sum);
  return s;
}

// x, cut so, is sent, and is said to arrive so.
std::string in_hop(const Sharding& from, const Hop& hop, const Sharding& arrives) {
  auto x = array({A, B});
  Whole whole({x}, {{}}, mesh);
  Plan p;
  p.bodies.emplace_back();
  p.versions = {{.kind = Version::Kind::given, .node = 0, .at = from, .live = true},
                {.kind = Version::Kind::hop, .node = 0, .at = arrives, .in = {0}, .hop = hop, .live = true}};
  p.roots = {1};
  return found([&] { verify(p, whole, "a pass"); });
}
// A loop over a that carries a row of x, started and left as said, and said to be `inside` and `at`.
std::string in_loop(const Sharding& start, const Sharding& left, const Sharding& inside, const Sharding& at) {
  auto row = array({B}), carry = prim::carry(turn(), {B}, DType::f32);
  auto result = loop_of_one({Fold::carry, Monoid::sum, {prim::neg(carry)}, row, carry}, turn());
  Whole whole({result}, {{}}, mesh);
  auto id = [&](const NodePtr& n) { return whole.id(n); };
  Plan p;
  p.bodies = {{}, {.parent = 0, .loop = 0}};
  p.loops = {{.node = id(result->in[0]), .bodies = {1}, .inside = {inside}, .at = {at}, .value = {{2}}, .carry = {{1}}, .start = {0}}};
  p.versions = {{.kind = Version::Kind::given, .node = id(row), .at = start, .live = true},
                {.kind = Version::Kind::carry, .node = id(carry), .body = 1, .at = left, .loop = 0, .live = true},
                {.kind = Version::Kind::compute, .node = id(prim::neg(carry)), .body = 1, .at = left, .in = {1}, .live = true},
                {.kind = Version::Kind::loop, .node = id(result->in[0]), .in = {0}, .loop = 0, .live = true}};
  return found([&] { verify(p, whole, "a pass"); });
}

}  // namespace

TEST_CASE("verify finds a plan's faults") {
  auto x = array({A, B});
  CHECK(in_plan(prim::exp(x), cut("a", {0}), cut("a", {0})) == "");
  CHECK(in_plan(prim::sum(x, {A}), cut("a", {0}), pending(0)) == "");
  CHECK(says(in_plan(prim::sum(x, {A}), cut("a", {0}), {}), "it is {}, and pending in it is {pending: 0}"));
  CHECK(says(in_plan(prim::sort(x, "a"), cut("a", {0}), {}), "axis a of operand 0 is data, and should be whole"));
  CHECK(says(in_plan(prim::sort(x, "a"), {}, cut("a", {0})), "it makes all of axis a, which is cut"));
  CHECK(says(in_plan(prim::exp(x), pending(0), pending(0)), "a sum is pending in what it is not linear in"));
  CHECK(says(in_plan(prim::neg(x), pending(0), {}), "it is {}, and pending in it is {pending: 0}"));
  CHECK(says(in_plan(prim::exp(x), cut("c", {0}), {}), "axis c, which is cut, is not in (a=4, b=3)"));
  auto both = cut("a", {0});
  both.set("b", {0});
  CHECK(says(in_plan(prim::exp(x), both, both), "mesh axis data is used twice"));
  CHECK(says(in_plan(prim::exp(x), cut("a", {7}), cut("a", {7})), "the mesh has no axis number 7"));
}

TEST_CASE("verify finds a plan's faults: what is sent, and loops") {
  using Way = Hop::Kind;
  auto a = cut("a", {0});
  CHECK(in_hop(pending(0), {Way::all_reduce, {}, {0}}, {}) == "");
  CHECK(in_hop(a, {Way::all_gather, {}, {0}, "a"}, {}) == "");
  CHECK(says(in_hop(pending(0), {Way::all_reduce, {}, {0}}, a), "it is not what it was sent as"));
  CHECK(says(in_hop({}, {Way::all_reduce, {}, {0}}, {}), "it ends a sum that is not pending"));
  CHECK(says(in_hop(pending(0), {Way::reduce_scatter, pending(0), {0}, "a"}, pending(0)), "axis a is whole, and arrives whole"));
  CHECK(says(in_hop({}, {Way::all_gather, {}, {0}, "a"}, {}), "axis a is whole, and arrives whole"));
  auto b = cut("b", {1});
  CHECK(in_loop(b, b, b, b) == "");
  CHECK(says(in_loop({}, b, {}, {}), "bodies make, or carry, a result in another sharding"));
  CHECK(says(in_loop({}, b, b, b), "a result starts from another sharding"));
}
