// A gathered weight that one contraction reads rotates around the ring in blocks. Plans are checked
// to the byte.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "haliax/jit.h"
#include "haliax/nn.h"
#include "ops/prim.h"
#include "support/raises.h"
#include "compile/pipeline.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 512}, Embed{"embed", 256}, Mlp{"mlp", 128}, Layers{"layers", 3};
const Mapping batch{{"batch", "data"}}, embed{{"embed", "data"}}, none;
const double full_bytes = double(Embed.size * Mlp.size * 4);

NamedArray draw(std::uint64_t seed, const Axes& axes, DType d = DType::f32) {
  return (random::normal(random::key(seed), axes) / 16.).astype(d);
}
NamedArray shape(const Axes& axes, DType d = DType::f32) {
  return eval_shape([&] { return zeros(axes, d); });
}
JitOptions on(const Mesh& mesh, bool ring, const Mapping& weights, const Mapping& out) {
  JitOptions o{.mesh = mesh, .axis_resources = batch, .ring = ring};
  o.in = Mappings::of_each({weights, batch});
  o.out = Mappings(out);
  return o;
}
Mesh of(int devices) { return Mesh{{{"data", devices}}}; }
void agree(const NamedArray& got, const NamedArray& expected, double tolerance = 1e-6) {
  auto a = got.doubles(), b = expected.doubles();
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(a[i] - b[i]) / std::max(1., std::abs(b[i])));
  CHECK(worst <= tolerance);
}
int rings(const JitReport& r) {
  return int(std::count_if(r.collectives.begin(), r.collectives.end(),
                           [](auto& c) { return c.kind == "ring"; }));
}

struct Case {
  const char* name;
  Axes weight, x;
  Axis over;
};
const Case cases[] = {
    {"the gathered axis is summed over", {Embed, Mlp}, {Batch, Embed}, Embed},
    {"it is in the result", {Embed, Mlp}, {Batch, Mlp}, Mlp},
    {"it is in both operands and in the result", {Embed, Mlp}, {Batch, Embed, Mlp}, Mlp},
};
auto contraction(const Case& c) {
  return [=](const NamedArray& w, const NamedArray& x) { return dot(x, w, c.over); };
}

PartitionInput input(const Axes& axes, const Mapping& at, const Mesh& mesh) {
  return {prim::input(axes, DType::f32), sharding_for(axes, at, mesh, "an argument")};
}
// Returns the Program of a device, without the scratch of a backend's matmuls.
program::Program program_of(const std::vector<std::pair<NamedArray, Mapping>>& results,
                            const std::vector<PartitionInput>& inputs, const Mesh& mesh,
                            bool ring) {
  Nodes roots;
  std::vector<Sharding> out;
  for (auto& [result, at] : results) {
    roots.push_back(result.node());
    out.push_back(sharding_for(roots.back()->axes, at, mesh, "a result"));
  }
  Compilation compilation{roots, {}, {.mesh = &mesh, .out = out, .partition = {.ring = ring}}};
  for (auto& i : inputs) {
    compilation.inputs.push_back(i.global);
    compilation.options.in.push_back(i.sharding);
  }

  run(compilation, Stage::graph, Stage::sharding);
  auto last = on_device(compilation, mesh.devices() - 1);
  run(last, Stage::device, Stage::program);
  return *last.program;
}
std::int64_t arena(const Case& c, const Mesh& mesh, bool ring) {
  auto w = input(c.weight, embed, mesh), x = input(c.x, batch, mesh);
  axis_mapping inside(batch);
  return program_of({{contraction(c)(NamedArray(w.global), NamedArray(x.global)), batch}}, {w, x},
                    mesh, ring)
      .arena_bytes;
}
struct Poison {
  Poison() { setenv("HALIAX_POISON", "1", 1); }
  ~Poison() { unsetenv("HALIAX_POISON"); }
};

}  // namespace

TEST_CASE(
    "ring: a sharded weight uses two blocks of memory, and communicates as much as a gather") {
  for (int n : {2, 4, 8})
    for (auto& c : cases) {
      CAPTURE(n);
      CAPTURE(std::string(c.name));
      auto plain = named_jit(contraction(c), on(of(n), false, embed, batch))
                       .plan(shape(c.weight), shape(c.x));
      auto r = named_jit(contraction(c), on(of(n), true, embed, batch))
                   .plan(shape(c.weight), shape(c.x));
      CAPTURE(r.explain);
      CHECK(plain.calls == 1);
      CHECK(r.calls == n - 1);
      CHECK(r.sent_bytes == plain.sent_bytes);
      CHECK(r.sent_bytes == full_bytes * (n - 1) / n);
      CHECK(arena(c, of(n), false) == full_bytes);
      CHECK(arena(c, of(n), true) == full_bytes / n * std::min(2, n - 1));
      REQUIRE(r.collectives.size() == 1);
      auto& moved = r.collectives[0];
      CHECK(moved.kind == "ring");
      CHECK(moved.turns == n - 1);
      CHECK(moved.loop == "data");
      CHECK(moved.bytes == full_bytes / n);
    }
}

TEST_CASE("ring: a sharded contraction matches, block by block") {
  Poison scratch;
  for (int n : {2, 4, 8})
    for (auto& c : cases) {
      CAPTURE(n);
      CAPTURE(std::string(c.name));
      auto w = draw(1, c.weight), x = draw(2, c.x);
      auto f = named_jit(contraction(c), on(of(n), true, embed, batch));
      agree(f(w, x), contraction(c)(w, x));
      CHECK(rings(f.report()) == 1);
      CHECK(f.report().program.find("poison") != std::string::npos);
    }
}

TEST_CASE("ring: a sharded batch whose last device is empty matches") {
  Poison scratch;
  const Axis Odd{"batch", 49}, Pos{"position", 16};
  auto w = draw(1, {Embed, Mlp});
  for (auto& over : {Embed, Mlp}) {
    auto f = [=](const NamedArray& w, const NamedArray& x) { return dot(x, w, over); };
    auto x = draw(2, {Odd, Pos, over});
    auto ringed = named_jit(f, on(of(8), true, embed, batch));
    agree(ringed(w, x), f(w, x));
    CHECK(rings(ringed.report()) == 1);
  }
}

TEST_CASE("ring: layers of a sharded model match, forward and backward") {
  Poison scratch;
  using Weights = std::pair<NamedArray, NamedArray>;
  auto loss = [](const Weights& w, const NamedArray& x) {
    axis_mapping inside(batch);
    auto layer = [](const NamedArray& h, const NamedArray& up, const NamedArray& down) {
      return h + dot(tanh(dot(h, up, "embed")), down, "mlp");
    };
    return mean(square(fold(layer, Layers)(x, w.first, w.second)));
  };
  auto f = [=](const Weights& w, const NamedArray& x) { return value_and_grad(loss)(w, x); };
  Weights w{draw(1, {Layers, Embed, Mlp}), draw(2, {Layers, Mlp, Embed})};
  auto x = draw(3, {Batch, Embed}) * 16.;
  for (int n : {2, 4, 8}) {
    CAPTURE(n);
    auto options = [&](bool ring) {
      auto o = on(of(n), ring, embed, none);
      o.out = Mappings::of_each({none, embed});
      return o;
    };
    auto plain = named_jit(f, options(false)), ringed = named_jit(f, options(true));
    auto [expected, expected_grads] = plain(w, x);
    auto [got, grads] = ringed(w, x);
    agree(got, expected);
    agree(grads.first, expected_grads.first);
    agree(grads.second, expected_grads.second);
    auto a = plain.report(), b = ringed.report();
    CAPTURE(a.explain);
    CAPTURE(b.explain);
    CHECK(b.sent_bytes == a.sent_bytes);
    CHECK(rings(a) == 0);
    CHECK(rings(b) == 4);  // up and down, forward and backward
    CHECK(b.calls == a.calls + Layers.size * 4 * (n - 2));
    auto received = [&](bool ring) {  // the largest value received from other devices, in bytes
      auto up = input({Layers, Embed, Mlp}, embed, of(n)),
           down = input({Layers, Mlp, Embed}, embed, of(n)),
           in = input({Batch, Embed}, batch, of(n));
      axis_mapping inside(batch);
      auto [value, by] = f({NamedArray(up.global), NamedArray(down.global)}, NamedArray(in.global));
      std::int64_t most = 0;
      for (auto& s : program_of({{value, none}, {by.first, embed}, {by.second, embed}},
                                {up, down, in}, of(n), ring)
                         .slots)
        if (s.gathered) most = std::max(most, s.bytes);
      return most;
    };
    CHECK(received(false) == full_bytes);
    CHECK(received(true) == full_bytes / n);
    for (auto& c : b.collectives)
      if (c.kind == "ring") {
        CHECK(c.loop == "layers, data");
        CHECK(c.asked == "parameter");
      }
  }
}

TEST_CASE("ring: other gathers stay gathers") {
  auto same = [](auto f, const Mesh& mesh, const Mapping& weights, const NamedArray& w,
                 const NamedArray& x) {
    auto plain = named_jit(f, on(mesh, false, weights, batch)).plan(w, x),
         r = named_jit(f, on(mesh, true, weights, batch)).plan(w, x);
    CAPTURE(r.explain);
    CHECK(plain.sent_bytes > 0);
    CHECK(rings(r) == 0);
    CHECK(r.sent_bytes == plain.sent_bytes);
    CHECK(r.calls == plain.calls);
    CHECK(r.arena_bytes == plain.arena_bytes);
  };
  auto f = contraction(cases[0]);
  const Axis Many{"batch", 8192};
  auto w = shape({Embed, Mlp}), x = shape({Many, Embed});
  SUBCASE("two readers") {
    same([](const NamedArray& w,
            const NamedArray& x) { return dot(tanh(dot(x, w, Embed)), w, Mlp); },
         of(4), embed, w, x);
  }
  SUBCASE("a reader that is no contraction") {
    same([](const NamedArray& w, const NamedArray& x) { return x * sum(square(w), Mlp); }, of(4),
         embed, w, x);
  }
  SUBCASE("sums that must be bitwise identical on all devices") {
    auto all = [](const NamedArray& w, const NamedArray& x) {
      return dot(x, shard(w, none), Embed);
    };
    same(all, of(4), embed, w, shape({Axis("rows", 512), Embed}));
  }
  SUBCASE("uneven blocks") {
    const Axis Odd = Embed.resize(255);
    same([=](const NamedArray& w, const NamedArray& x) { return dot(x, w, Odd); }, of(4), embed,
         shape({Odd, Mlp}), shape({Many, Odd}));
  }
  SUBCASE("two mesh axes") {
    same(f, Mesh{{{"replica", 2}, {"data", 2}}}, Mapping{{"embed", {"replica", "data"}}}, w, x);
  }
  SUBCASE("small gathers, which merge") {
    const Axis Few = Mlp.resize(16);
    same(f, of(4), embed, shape({Embed, Few}), x);
  }
  SUBCASE("sums of half floats whose f32 form would exceed the saving") {
    same(f, of(4), embed, shape({Embed, Mlp}, DType::bf16), shape({Many, Embed}, DType::bf16));
  }
}

TEST_CASE("ring: strict refuses a ring that no code requested") {
  auto o = on(of(4), true, embed, batch);
  o.strict = true;
  raises(
      [&] { named_jit(contraction(cases[0]), o).plan(shape(cases[0].weight), shape(cases[0].x)); },
      {"[strict] dot gathers", "in each of 3 iterations over data"});
}

TEST_CASE("ring: half floats are summed in f32") {
  Poison scratch;
  const Axis Few{"batch", 16}, Wide{"mlp", 512};
  for (int n : {4, 8})
    for (bool sums : {true, false}) {
      CAPTURE(n);
      CAPTURE(sums);
      auto w = draw(1, {Embed, Wide}, DType::bf16),
           x = draw(2, {Few, sums ? Embed : Wide}, DType::bf16);
      auto f = [=](const NamedArray& w, const NamedArray& x) {
        return tanh(dot(x, w, sums ? Embed : Wide));
      };
      auto plain = named_jit(f, on(of(n), false, embed, batch)),
           ringed = named_jit(f, on(of(n), true, embed, batch));
      agree(ringed(w, x), plain(w, x), 1. / 256);
      CHECK(rings(ringed.report()) == rings(plain.report()) + 1);
      CHECK(ringed.report().arena_bytes < plain.report().arena_bytes);
    }
}
