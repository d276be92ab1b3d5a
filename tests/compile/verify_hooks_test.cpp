// The verifier runs after each pass, on the graph, the plan and the Programs, and for all devices
// of a mesh.
#include <doctest/doctest.h>

#include "base/verify_error.h"
#include "compile/pipeline.h"
#include "ops/collective.h"
#include "ops/prim.h"
#include "runtime/mesh_run.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis A{"a", 4}, B{"b", 3};
const Mesh mesh{{{"data", 2}}};

// Returns the verifier's message about the passes from `from` on, in one stage. Other errors
// propagate to the caller.
std::string message_of_passes(Compilation c, Stage stage, std::string_view from) {
  c.options.from = from;
  try {
    run(c, stage, stage);
  } catch (const VerifyError& e) {
    return e.what();
  }
  return "";
}
Sharding sharded(Name a) {
  Sharding s;
  s.set(a, {0});
  return s;
}
// Copies `elements` elements of an argument, which has four, to the result.
program::Program copies(std::int64_t elements) {
  program::Program p;
  p.slots = {{16, program::Home::argument, 0}, {16, program::Home::result, 0}};
  p.arguments = p.results = 1;
  p.argument_slots = {0};
  p.result_slots = {1};
  program::Step s;
  s.kind = program::Kind::copy;
  s.op = "copy";
  s.copy = {{elements}, {0, DType::f32, 0, {1}, {}}, {1, DType::f32, 0, {1}, {}}};
  p.steps = {s};
  return p;
}

// A leaf that is computed in place, as positions are: `on_block` computes the block of a device.
Op made_in_blocks(decltype(Op::on_block) on_block) {
  Op op{.name = "blocks", .kind = Kind::leaf};
  op.on_block = on_block;
  op.cheap = true;
  return op;
}
Compilation for_devices(const NodePtr& root) {
  return {{root}, {}, {.mesh = &mesh, .out = {sharded("a")}}};
}

}  // namespace

TEST_CASE("verify runs after each pass, and before the first one") {
  auto x = prim::input({A, B}, DType::f32);
  auto wrong = make(prim::kSum, {x}, {B}, DType::f64);
  CHECK(message_of_passes({{prim::sum(x, {A})}, {x}}, Stage::graph, "merge_loops") == "");
  CHECK(has(message_of_passes({{wrong}, {x}}, Stage::graph, "merge_loops"),
            "sum after merge_loops: the result is f64"));
  CHECK(has(message_of_passes({{wrong}, {x}}, Stage::device, "row_dots"),
            "sum after row_dots: the result is f64"));
  Compilation traced{{wrong}, {x}};
  CHECK(has(message_of([&] { run(traced); }), "sum after tracing: the result is f64"));
  // A plan: the input is sharded along an axis that it lacks.
  auto planned = [&](const Sharding& in) {
    Compilation c{{prim::exp(x)}, {x}, {.mesh = &mesh, .in = {in}, .out = {{}}}};
    return message_of_passes(c, Stage::sharding, "plan");
  };
  CHECK(planned(sharded("a")) == "");
  CHECK(has(planned(sharded("c")), "after plan: sharded axis c is not in (a=4, b=3)"));
}

TEST_CASE("verify checks both Programs while there are two") {
  auto of = [](std::int64_t elements, std::int64_t of_alternative, std::string_view from) {
    Compilation c;
    c.program = std::make_shared<program::Program>(copies(elements));
    if (of_alternative > 0) c.alternative = copies(of_alternative);
    return message_of_passes(c, Stage::program, from);
  };
  for (auto* pass : {"overlap", "plan_memory"}) {
    CAPTURE(std::string(pass));
    auto message = std::string("copy after ") + pass + ": a view reaches elements 0 to 4 of slot 0";
    CHECK(of(4, 0, pass) == "");
    CHECK(of(4, 4, pass) == "");
    CHECK(has(of(5, 0, pass), message));
    CHECK(has(of(4, 5, pass), message));
  }
}

TEST_CASE("verify checks the block of each device") {
  static const Op right =
      made_in_blocks([](const Node& n, Nodes, const Axes& axes, const std::vector<Block>&) {
        return prim::filled(1, n.dtype, axes);
      });
  static const Op wrong =
      made_in_blocks([](const Node& n, Nodes, const Axes&, const std::vector<Block>&) {
        return prim::filled(1, n.dtype, n.axes);  // the full array
      });
  auto emitted = [&](const Op& op) {
    auto compilation = for_devices(make(op, {}, {A}, DType::f32));
    run(compilation, Stage::sharding, Stage::sharding);
    return message_of([&] { compilation.partition->device_graph(1); });
  };
  CHECK(emitted(right) == "");
  CHECK(has(emitted(wrong), "blocks after emit on device 1: it is (a=4), but its block is (a=2)"));
}

TEST_CASE("verify checks the collectives of all devices") {
  static const Op wrong =
      made_in_blocks([](const Node& n, Nodes, const Axes& axes, const std::vector<Block>& blocks) {
        auto mine = prim::filled(1, n.dtype, axes);
        if (blocks[0].start->attr.number == 0) return mine;
        CollectiveSpec w;  // no other device takes part
        w.number = 1;
        w.collective.over = {0};
        w.collective.ranks = 2;
        w.collective.size = {0};
        w.out = {axes};
        w.along = {Name()};
        return collective_result(make_collective({mine}, std::move(w)), 0);
      });
  auto c = for_devices(make(wrong, {}, {A}, DType::f32));
  run(c, Stage::sharding, Stage::sharding);
  CHECK(has(message_of([&] { compile_for_mesh(c, "reference", false); }),
            "[verify] collective 0 of device 1 is all-reduce 0"));
}
