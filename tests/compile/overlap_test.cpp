// Collectives that run concurrently with computation: where they start and finish, their memory,
// and values that do not depend on it.
#include <doctest/doctest.h>

#include <algorithm>
#include <regex>

#include "compile/memory/memory.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 64}, Embed{"embed", 64}, Mlp{"mlp", 96}, Layers{"layers", 4};
const Mesh four{{{"data", 4}}};

struct Layer {
  NamedArray up, down, scale;
  HALIAX_FIELDS(up, down, scale)
};
Layer drawn(const Axis& embed) {
  auto draw = [](std::uint64_t seed, const Axes& axes) {
    return random::normal(random::key(seed), axes) * 0.1;
  };
  return {draw(1, {Layers, embed, Mlp}), draw(2, {Layers, Mlp, embed}),
          draw(3, {Layers, embed}) + 1.};
}
NamedArray loss(const Layer& layers, const NamedArray& x) {
  auto layer = [](const NamedArray& h, const Layer& w) {
    return h + dot(nn::gelu(dot(h * w.scale, w.up, "embed")), w.down, "mlp");
  };
  auto y = fold(layer, Layers, {.checkpoint = "full"})(x, layers);
  return mean(square(y));
}
// The step of a model whose weights are sharded, and gathered layer by layer.
auto step(bool overlap, const char* backend, const Axis& embed = Embed) {
  JitOptions o{.backend = backend,
               .mesh = four,
               .axis_resources = Mapping{{"batch", "data"}},
               .overlap = overlap};
  o.in = Mappings::of_each({Mapping{{"embed", "data"}}, Mapping{{"batch", "data"}}});
  o.out = Mappings::of_each({Mapping{}, Mapping{{"embed", "data"}}});
  auto train =
      named_jit([](const Layer& l, const NamedArray& x) { return value_and_grad(loss)(l, x); }, o);
  auto x = random::normal(random::key(9), {Batch, embed});
  auto made = train(drawn(embed), x);
  return std::tuple(made.first, made.second, train.report());
}
int count(const std::string& text, const std::string& what) {
  std::regex r(what);
  return int(std::distance(std::sregex_iterator(text.begin(), text.end(), r), {}));
}

}  // namespace

TEST_CASE(
    "overlap: gathers start an iteration ahead and sums finish one later, with identical bits, "
    "bytes and order") {
  std::string backend;
  SUBCASE("cpu") { backend = "cpu"; }
  SUBCASE("cuda-sim") { backend = "cuda-sim"; }
  CAPTURE(backend);
  auto [y, g, plain] = step(false, backend.c_str());
  auto [y2, g2, beside] = step(true, backend.c_str());
  CHECK(y.item() == y2.item());
  CHECK(g.up.doubles() == g2.up.doubles());
  CHECK(g.down.doubles() == g2.down.doubles());
  CHECK(g.scale.doubles() == g2.scale.doubles());
  CHECK(beside.sent_bytes == plain.sent_bytes);
  CHECK(count(plain.program, "start|finish") == 0);
  // In both loops one collective gathers a layer: before the loop, and for the next iteration.
  auto& text = beside.program;
  for (auto* loop : {"0", "1"}) {
    CAPTURE(loop);
    CHECK(count(text, "\nstart " + std::string(loop) + ": all_gather") == 1);
    CHECK(count(text, "\n *if .*\n *start " + std::string(loop) + ": all_gather") == 1);
    CHECK(count(text, "\n *finish " + std::string(loop)) == 1);
  }
  CHECK(count(text, "start 2: reduce_scatter") == 1);
  CHECK(count(text, "\n  finish 2") == 1);  // before the next iteration computes another one
  CHECK(count(text, "\nfinish 2") == 1);    // and after the last iteration
  CHECK(plain.explain.find("overlapped with computation") == plain.explain.npos);
  CHECK(count(beside.explain,
              "all-gather of 3 arrays.*, prefetched one iteration ahead, finished before mul") ==
        1);
  CHECK(count(beside.explain,
              "all-gather of 3 arrays.*, prefetched one iteration ahead, finished before dot") ==
        1);
  CHECK(count(beside.explain,
              "reduce-scatter of 3 arrays.*, finished before .* of the next iteration") == 1);
  // Gathered values and sums have separate memory. (The scratch of the cpu's matmuls depends on the
  // machine.)
  if (backend == "cpu") return;
  CHECK(plain.peak_bytes == 197380);
  CHECK(beside.peak_bytes == 246788);
}

TEST_CASE("overlap: uneven blocks leave collectives in place") {
  auto [y, g, plain] = step(false, "cpu", Axis("embed", 66));
  auto [y2, g2, beside] = step(true, "cpu", Axis("embed", 66));
  CHECK(beside.program == plain.program);
  CHECK(y.item() == y2.item());
  const auto mentions_uneven = [](auto& report) {
    return report.explain.find("the blocks of an axis are uneven") != std::string::npos;
  };
  CHECK(mentions_uneven(beside));
  CHECK(!mentions_uneven(plain));
}

TEST_CASE("overlap: a collective starts after the step that computes the offset of its operand") {
  const Axis Row("row", 64), Column("column", 64);
  auto x = arange({Row, Column}).eval();
  auto sliced = [](const NamedArray& x, const NamedArray& i) { return slice(x, "row", i + 3, 8); };
  auto step = named_jit(sliced, {.mesh = four,
                                 .axis_resources = Mapping{},
                                 .in = Mappings::of_each({Mapping{{"column", "data"}}, Mapping{}}),
                                 .out = Mappings(Mapping{}),
                                 .overlap = true});
  auto i = full({}, 2, DType::i32).eval();
  CHECK(step(x, i).bytes() == sliced(x, i).bytes());
}

TEST_CASE("verify: no step touches the arrays of an in-flight collective") {
  using namespace program;
  auto view = [](int slot) { return View{slot, DType::f32, 0, {1}, {}}; };
  auto made = [&](bool writes_x, bool reads_out) {
    Program p;
    p.slots = {{.bytes = 16, .home = Home::argument, .index = 0},
               {.bytes = 16, .offset = 0},
               {.bytes = 16, .offset = 64},
               {.bytes = 16, .home = Home::result, .index = 0}};
    p.argument_slots = {0};
    p.result_slots = {3};
    p.arguments = p.results = p.calls = 1;
    p.arena_bytes = 128;
    auto copy = [&](int from, int to) {
      return Step{.kind = Kind::copy, .copy = {{4}, view(from), view(to)}, .op = "copy"};
    };
    Step start{.kind = Kind::collective, .op = "sum"}, finish{.kind = Kind::finish, .op = "sum"};
    start.collective.x = {{{4}, view(1)}};
    start.collective.out = {{{4}, view(2)}};
    start.collective.call = 0;
    finish.finish = {0, {{1, DType::f32, 0, {}, {}}}, {{2, DType::f32, 0, {}, {}}}};
    p.steps = {copy(0, 1), start, copy(1, 3)};
    if (writes_x) p.steps.push_back(copy(0, 1));
    if (reads_out) p.steps.push_back(copy(2, 3));
    p.steps.push_back(finish);
    p.steps.push_back(copy(2, 3));
    return p;
  };
  CHECK_NOTHROW(verify(made(false, false), "a test", true));
  raises([&] { verify(made(true, false), "a test", true); },
         {"slot 1 is written before collective 0 is finished"});
  raises([&] { verify(made(false, true), "a test", true); },
         {"slot 2 is read before collective 0 is finished"});
}
