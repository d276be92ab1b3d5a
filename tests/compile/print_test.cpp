// The output of HALIAX_PRINT.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "compile/pipeline.h"
#include "haliax/haliax.h"
#include "ops/prim.h"
#include "transforms/sharding.h"

using namespace haliax;

namespace {

// Returns the stderr of the test case with that name in a separate process. If it fails, returns
// all of its output.
std::string printed(const std::string& name, const std::string& wanted, bool fails = false) {
  auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  auto command = "HALIAX_PRINT=" + wanted + " " + self + " --no-skip -tc='" + name + "' 2>&1" +
                 (fails ? "" : " >/dev/null");
  std::array<char, 256> part;
  std::string out;
  auto* pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  while (std::fgets(part.data(), int(part.size()), pipe)) out += part.data();
  CHECK((pclose(pipe) != 0) == fails);
  return out;
}
std::size_t times(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

const char* const kHeads = "print: products of heads";

}  // namespace

// run by the next test case; x is stored head by head
TEST_CASE("print: products of heads" * doctest::skip()) {
  Axis b("b", 2), n("n", 3), h("h", 4), d("d", 5), m("m", 3);
  auto x = random::normal(random::key(1), {b, n, h, d}),
       y = random::normal(random::key(2), {b, m, h, d});
  auto f = [](const NamedArray& q, const NamedArray& k) { return dot(sin(q), exp(k), "d") * 2.; };
  for (int i = 0; i < 2; ++i) {
    Compilation c{{f(x, y + double(i)).node()}, {}};
    run(c);
    CHECK(c.layouts.size() > 0);
  }
}

TEST_CASE("layout: a mask follows its first operand with all of its axes") {
  const Axis row("row", 4), column("column", 3);
  auto x = random::normal(random::key(1), {row, column}).eval(),
       y = random::normal(random::key(2), column).eval();
  // the axes of the mask start with those of y
  auto mask = prim::equal(y.node(), x.node()), zero = prim::number(0, DType::f32);
  Compilation c{{prim::sum(prim::select(mask, x.node(), zero), {row})}, {}};
  run(c);
  REQUIRE(c.layouts.size() > 0);
  for (auto& [node, order] : c.layouts) CHECK(order == x.axes());
}

TEST_CASE(
    "print: shows the result of a pass, the layout of values, and an error for an unknown name") {
  CHECK(printed(kHeads, "''") == "");
  auto layout = printed(kHeads, "layout"), before = printed(kHeads, "accumulate_updates");
  CHECK(times(layout, "---- after ") == 2);
  CHECK(times(layout, "---- after layout\n") == 2);
  CHECK(times(layout, "  in memory (b=2, h=4, ") >= 4);  // both operands
  CHECK(times(before, "  in memory ") == 0);
  // all passes but the passes of a mesh; emit prints separately
  CHECK(times(printed(kHeads, "all"), "---- after ") == 2 * (passes().size() - 4));
  auto wrong = printed(kHeads, "layuot", true);
  CHECK(times(wrong,
              "[environment] HALIAX_PRINT is layuot; it must be all or a pass: strip_wraps ") == 1);
  for (auto& p : passes()) CHECK(times(wrong, std::string(" ") + p.name) > 0);
}

TEST_CASE("print: a Program shows the offset of its slots, once they have one, and their memory") {
  program::Program p;
  p.arguments = p.results = 1;
  p.argument_slots = {0};
  p.result_slots = {1};
  p.slots = {{16, program::Home::argument, 0}, {16, program::Home::result, 0}, {16}, {16}};
  p.slots[0].purpose = "inputs";
  p.slots[1].purpose = "results";
  p.slots[2].purpose = "activations";
  auto copy = [](int from, int to) {
    return program::Step{
        .kind = program::Kind::copy,
        .copy = {{4}, {from, DType::f32, 0, {1}, {}}, {to, DType::f32, 0, {1}, {}}}};
  };
  p.steps = {copy(0, 2), copy(2, 1)};
  CHECK(to_string(p) ==
        "1 arguments, 1 results, arena 0 bytes, peak 0 bytes\ncopy [4] arg0[1] to %2[1]\ncopy [4] "
        "%2[1] to out0[1]\n");
  // no step touches the last slot
  p.slots[1].alias = 0;
  p.slots[2].offset = 64;
  p.slots[2].gathered = true;
  p.arena_bytes = p.peak_bytes = 128;
  CHECK(to_string(p) ==
        "1 arguments, 1 results, arena 128 bytes, peak 128 bytes\n"
        "slot 0: arg0, 16 bytes, inputs\n"
        "slot 1: out0, in arg0, results\n"
        "slot 2: 16 bytes at 64, activations, gathered, live 1..2\n"
        "copy [4] arg0[1] to %2[1]    # 1\ncopy [4] %2[1] to out0=arg0[1]    # 2\n");
  CHECK(times(printed(kHeads, "plan_memory"), " bytes at 0, activations, live ") >=
        2);  // both calls
  CHECK(times(printed(kHeads, "reuse_matmuls"), "slot ") == 0);
}

TEST_CASE("print: slots are verified as placed from plan_memory on") {
  const Axis b("b", 3), n("n", 8);
  auto x = prim::input({b, n}, DType::f32);
  Compilation c{{prim::sum(prim::tanh(x), {n})}, {x}};
  run(c, Stage::graph, Stage::device);
  CHECK(!c.placed);
  run(c, Stage::program, Stage::program);
  CHECK(c.placed);
}

TEST_CASE("print: a plan names arguments by their paths, and the reason of a gather") {
  const Axis Batch("batch", 64), Layers("layers", 3), Embed("embed", 16);
  const Mesh mesh{{{"data", 2}}};
  const Mapping batch{{"batch", "data"}}, embed{{"embed", "data"}};
  use_mesh on(mesh);
  axis_mapping by(batch);
  detail::Tracing tracing;
  Compilation c{{}, {}, {.mesh = &mesh}};
  auto input = [&](const Axes& axes, const Mapping& at, const char* path) {
    c.inputs.push_back(prim::input(axes, DType::f32, Name(path)));
    c.options.in.push_back(sharding_for(axes, at, mesh, path));
    return NamedArray(c.inputs.back());
  };
  auto x = input({Batch, Embed}, batch, "x"),
       w = input({Layers, Embed, Embed.alias("next")}, embed, "layers.up.weight");
  auto layer = [](const NamedArray& x, const NamedArray& w) {
    return cumsum(rename(dot(x, w, "embed"), {{"next", "embed"}}), "embed");
  };
  c.roots = {fold(layer, Layers)(x, w).node()};
  c.options.out = {sharding_for(c.roots[0]->axes, batch, mesh, "a result")};
  run(c, Stage::graph, Stage::sharding);
  auto text = c.partition->text();
  CAPTURE(text);
  CHECK(times(text, " given input layers.up.weight f32(layers=3, embed=16, next=16)") == 1);
  CHECK(times(text, " all-gather slice of layers.up.weight f32(embed=16, next=16)") == 1);
  CHECK(times(text, "  for dot, requested by parameter") == 1);
}
