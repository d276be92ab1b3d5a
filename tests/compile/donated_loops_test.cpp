// A donated array that a loop slices, and recomputes slice by slice, is updated in place. A donated
// array that is returned unchanged is returned without a copy. Reports name the reason for other
// copies.
#include <doctest/doctest.h>

#include <algorithm>

#include "haliax/haliax.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis L("layers", 4), B("batch", 2), P("position", 64), D("d", 16);
using In = const NamedArray&;
using Iteration = std::pair<NamedArray, NamedArray> (*)(In h, In c, In w, In pos);

NamedArray attended(In h, In c) { return dot(softmax(dot(c, h, "d"), "position"), c, "position"); }
NamedArray written(In c, In k, In pos) { return updated_slice(c, {{"position", pos}}, k); }

struct Run {
  JitReport report;
  std::vector<double> h, cache;
};
Run run(Iteration iteration, JitOptions options, bool reverse = false) {
  auto step = [=](In cache, In w, In x, In pos) {
    auto body = [&](In h, In c, In l) { return iteration(h, c, l, pos); };
    return scan(body, L, {.reverse = reverse})(x, cache, w);
  };
  auto f = jit(step, options);
  auto cache = random::normal(random::key(1), {L, B, P, D}).eval(),
       w = random::normal(random::key(2), {L, D}).eval();
  auto [h, next] =
      f(cache, w, random::normal(random::key(3), {B, D}).eval(), sum(arange(Axis("n", 3))).eval());
  return {f.report(), h.doubles(), next.doubles()};
}
// Returns the planned bytes with a donated array. Checks the values against the reference.
std::int64_t planned(Iteration iteration, bool reverse = false) {
  auto expected = run(iteration, {.backend = "reference"}, reverse),
       given = run(iteration, {.donate = {0}, .backend = "cpu"}, reverse);
  auto near = [](auto& a, auto& b) {
    for (std::size_t k = 0; k < a.size(); ++k)
      if (!(std::abs(a[k] - b[k]) < 1e-5)) return false;
    return a.size() == b.size();
  };
  CHECK(near(given.h, expected.h));
  CHECK(near(given.cache, expected.cache));
  CAPTURE(given.report.program);
  for (auto& n : given.report.not_donated) MESSAGE(n);
  CHECK(given.report.not_donated.empty() ==
        (given.report.peak_bytes < L.size * B.size * P.size * D.size * 4));
  return given.report.peak_bytes;
}

int copies(const JitReport& r) {
  int n = 0;
  for (auto at = r.program.find("copy ["); at != r.program.npos;
       at = r.program.find("copy [", at + 1))
    ++n;
  return n;
}

constexpr std::int64_t cache_bytes = 4 * 2 * 64 * 16 * 4;

}  // namespace

TEST_CASE("donated loops: a cache that a scan slices and stacks is updated in place") {
  Iteration after = [](In h, In c, In w, In pos) {
    auto next = written(c, h * w, pos);
    return std::pair(h + attended(h, next), next);
  };
  CHECK(planned(after) < cache_bytes / 8);
  CHECK(planned(after, true) < cache_bytes / 8);
  Iteration before = [](In h, In c, In w, In pos) {  // the old values stay until their last read
    auto o = attended(h, c);
    return std::pair(h + o, written(c, o * w, pos));
  };
  CHECK(planned(before) < cache_bytes / 8);
  Iteration all = [](In h, In c, In w, In) { return std::pair(h * w, c * 0.9 + h * w); };
  CHECK(planned(all) < cache_bytes / 8);
  Iteration placed = [](In h, In c, In w, In pos) {
    return std::pair(h, at_add(c, {{"position", pos}}, h * w));
  };
  CHECK(planned(placed) < cache_bytes / 8);
  // each iteration reads its block at other places than it writes: through a copy of the block
  Iteration rolled = [](In h, In c, In w, In) {
    auto next = roll(c, 1, P);
    return std::pair(h + attended(h, next) * w, next);
  };
  CHECK(planned(rolled) > 0);
  // the old block is read after the new one is written
  Iteration both = [](In h, In c, In w, In pos) {
    auto next = written(c, h * w, pos);
    return std::pair(h + attended(attended(h, next), c), next);
  };
  CHECK(planned(both) > 0);
}

TEST_CASE(
    "donated loops: two caches through Stacked::scan, and successive loops, are updated in place") {
  struct Layer {
    NamedArray w;
    std::pair<NamedArray, std::pair<NamedArray, NamedArray>> operator()(In h, In k, In v,
                                                                        In pos) const {
      auto keys = written(k, h * w, pos), values = written(v, h - w, pos);
      return {h + dot(softmax(dot(keys, h, "d"), "position"), values, "position"), {keys, values}};
    }
  };
  nn::Stacked<Layer> layers{{random::normal(random::key(2), {L, D}).eval()}, L};
  auto step = [](const nn::Stacked<Layer>& m, In k, In v, In h, In pos) {
    return m.scan(h, k, v, pos);
  };
  auto f = jit(step, {.donate = {1, 2}, .backend = "cpu"}),
       plain = jit(step, {.backend = "reference"});
  auto cache = [](int n) { return random::normal(random::key(n), {L, B, P, D}).eval(); };
  auto h = random::normal(random::key(3), {B, D}).eval(),
       pos = NamedArray(5.).astype(DType::i32).eval();
  auto got = f(layers, cache(4), cache(5), h, pos),
       expected = plain(layers, cache(4), cache(5), h, pos);
  CHECK(difference(got.first, expected.first, 1e-5) == "");
  CHECK(difference(got.second.first, expected.second.first, 1e-6) == "");
  CHECK(difference(got.second.second, expected.second.second, 1e-6) == "");
  CHECK(f.report().not_donated.empty());
  CHECK(f.report().peak_bytes < cache_bytes / 8);

  auto twice = [](In c, In w) {
    auto once = [&](In x) {
      auto iteration = [](In h, In b, In l) {
        auto next = b * 0.5 + l * h;
        return std::pair(h + sum(next), next);
      };
      return scan(iteration, L)(zeros(Axes{}), x, w);
    };
    auto first = once(c);
    auto second = once(first.second * first.first);
    return std::pair(second.first, second.second);
  };
  auto w = layers.stacked.w;
  auto g = jit(twice, {.donate = {0}, .backend = "cpu"});
  CHECK(difference(g(cache(6), w).second, jit(twice, {.backend = "cpu"})(cache(6), w).second, 0) ==
        "");
  CHECK(g.report().not_donated.empty());
  CHECK(g.report().peak_bytes < cache_bytes / 8);
}

TEST_CASE(
    "donated loops: an iteration that reads more than its own block retains the array, and the "
    "report states the line") {
  auto reads_all = [](In cache, In x) {  // captured, so each iteration reads all of it
    return scan([&](In h, In c) { return std::pair(h + sum(cache), c * 2. + h); }, L)(x, cache);
  };
  auto made = [] { return random::normal(random::key(1), {L, P, D}).eval(); };
  auto f = jit(reads_all, {.donate = {0}, .backend = "cpu"});
  auto got = f(made(), NamedArray(1.)),
       expected = jit(reads_all, {.backend = "reference"})(made(), NamedArray(1.));
  CHECK(difference(got.second, expected.second, 1e-3) == "");

  auto late = jit(
      [](In a) {
        auto b = cumsum(a, "d");
        return std::pair(b, sum(b) * sum(b * a));
      },
      {.donate = {0}, .backend = "cpu"});
  const int line = __LINE__ - 4;  // line of the cumsum
  late(made());
  REQUIRE(late.report().not_donated.size() == 1);
  auto why = late.report().not_donated[0];
  CAPTURE(why);
  CHECK(has(why, "argument 0 (layers=4, position=64, d=16): result 0 is first written by "));
  CHECK(has(why, "read later by"));
  CHECK(has(why, "donated_loops_test.cpp:" + std::to_string(line)));
  CHECK(has(why, "read it earlier, or read the new value"));
  auto moved = jit([](In a) { return flip(a, "d"); }, {.donate = {0}, .backend = "cpu"});
  moved(made());
  REQUIRE(moved.report().not_donated.size() == 1);
  CHECK(has(moved.report().not_donated[0], "reads it at other positions than it writes"));
  auto turned = jit(
      [](In a) {
        return rearrange(sort(a, "d"), {"d", "layers", "position"});
      },
      {.donate = {0}, .backend = "cpu"});
  turned(made());
  REQUIRE(turned.report().not_donated.size() == 1);
  CHECK(has(turned.report().not_donated[0], "it is last read by sort"));
  CHECK(has(turned.report().not_donated[0], "a scan that slices it update an array in place"));
  auto shrinks = jit([](In a) { return sum(a); }, {.donate = {0}, .backend = "cpu"});
  shrinks(made());
  CHECK(shrinks.report().not_donated[0] ==
        "argument 0 (layers=4, position=64, d=16): no result has its size of 16384 bytes");
}

TEST_CASE("donated loops: steps that carry a cache through a loop over layers update it in place") {
  const Axis Steps("steps", 3);
  // state of a step: h (batch, d), the cache (layers, batch, position, d)
  using State = std::pair<NamedArray, NamedArray>;
  struct Case {
    const char* name;
    Iteration iteration;
    bool late;  // the step reads the old cache after the new one is written
    bool in_place;
  } cases[] = {
      {"written, then read",
       [](In h, In c, In w, In pos) {
         auto next = written(c, h * w, pos);
         return std::pair(h + attended(h, next), next);
       },
       false, true},
      {"read, then written",
       [](In h, In c, In w, In pos) {
         auto o = attended(h, c);
         return std::pair(h + o, written(c, o * w, pos));
       },
       false, true},
      {"read too late in a turn",
       [](In h, In c, In w, In pos) {
         auto next = written(c, h * w, pos);
         return std::pair(h + attended(attended(h, next), c), next);
       },
       false, false},
      {"read too late in a step",
       [](In h, In c, In w, In pos) {
         auto next = written(c, h * w, pos);
         return std::pair(h + attended(h, next), next);
       },
       true, false},
  };
  for (auto& c : cases) {
    CAPTURE(c.name);
    auto generate = [&](In cache, In w, In x) {
      auto step = [&](const State& s, In pos) {
        auto layer = [&](In h, In cached, In l) { return c.iteration(h, cached, l, pos); };
        auto [h, next] = scan(layer, L)(s.first, s.second, w);
        return State(c.late ? h + mean(s.second * next, {"layers", "position"}) : h, next);
      };
      return fold(step, Steps)(State(x, cache), arange(Steps));
    };
    auto made = [] { return random::normal(random::key(1), {L, B, P, D}).eval(); };
    auto w = random::normal(random::key(2), {L, D}).eval(),
         x = random::normal(random::key(3), {B, D}).eval();
    auto f = jit(generate, {.donate = {0}, .backend = "cpu"});
    auto got = f(made(), w, x), expected = jit(generate, {.backend = "reference"})(made(), w, x);
    CHECK(difference(got.first, expected.first, 1e-4) == "");
    CHECK(difference(got.second, expected.second, 1e-4) == "");
    CAPTURE(f.report().program);
    CHECK((f.report().peak_bytes < cache_bytes) == c.in_place);
  }
}

TEST_CASE("loops: a carry with two successive residual branches is not copied") {
  const Axis H("hidden", 24);
  auto body = [&](In h, In v, In w) {  // (batch, position, d)
    auto middle = h + tanh(dot(h, v, "d")).rename({{"hidden", "d"}});
    return middle + dot(tanh(dot(middle / sum(middle * middle, "d"), w, "d")), w, "hidden");
  };
  auto layers = [&](In x, In v, In w) { return fold(body, L)(x, v, w); };
  auto x = random::normal(random::key(1), {B, P, D}),
       v = random::normal(random::key(2), {L, D, D.alias("hidden")}),
       w = random::normal(random::key(3), {L, D, H});
  auto f = jit(layers, {.backend = "cpu"});
  CHECK(difference(f(x, v, w), jit(layers, {.backend = "reference"})(x, v, w), 1e-4) == "");
  CAPTURE(f.report().program);
  CHECK(copies(f.report()) == 1);  // x, which is not donated
  auto g = jit([&](In x, In v,
                   In w) { return grad([&](In v, In w) { return sum(layers(x, v, w)); })(v, w); },
               {.backend = "cpu"});
  g.compile(x, v, w);
  CHECK(copies(g.report()) == 2);  // and the carry of each iteration, saved for the gradient
}

TEST_CASE("loops: a result with wider elements does not overwrite a scanned array of equal size") {
  const Axis n("n", 6);
  auto x = array({3., -1, 4, -1, 5, -9, 2, 6, -5, 3, -5, 8, 9, -7, 9, -3, 2, 3, -8, 4, 6, -2, 6, 4},
                 {Axis("rows", 4), n})
               .eval();
  auto f = [](In x) {  // flags (rows, n) and sums (n) have 24 bytes each
    auto iteration = [](In c, In v) {
      auto next = cumsum(c, "k");
      return std::pair{next, std::pair{!v, max(next, "k")}};
    };
    return scan(iteration, "n")(ones(Axis("k", 3)), square(x) > 10.).second;
  };
  auto got = jit(f, {.backend = "cpu"})(x);
  CHECK(difference(got.first, rearrange(square(x) <= 10., Names{"n", "rows"}), 0) == "");
  CHECK(got.second.floats() == std::vector<float>{3, 6, 10, 15, 21, 28});
}

TEST_CASE("donated: an array that is returned unchanged is returned without a copy") {
  using Results = std::vector<NamedArray>;
  using Function = Results (*)(In x, In w);
  const std::int64_t one = P.size * D.size * 4;
  auto made = [](int n) { return random::normal(random::key(n), {P, D}).eval(); };
  struct Case {
    const char* name;
    Function f;
    std::int64_t most;  // bytes in addition to the arguments
    int copied = 0;
  } cases[] = {
      {"alone", [](In x, In) { return Results{x}; }, 0},
      {"read later",
       [](In x, In w) {
         return Results{x, sum(cumsum(x * w, "d")), sum(cumsum(x, "position"))};
       },
       2 * one + 256},
      {"the other is made of it",
       [](In x, In w) {
         return Results{x, x + w};
       },
       one},
      {"twice",
       [](In x, In w) {
         return Results{x, x, x * w};
       },
       2 * one, 1},
      {"in a loop",
       [](In x, In w) {
         return Results{fold([&](In c, In row) { return c + sum(x * row); }, P)(NamedArray(0.), w),
                        x};
       },
       256},
      {"in chunks",
       [](In x, In w) {
         return Results{
             chunked_reduce(P, {.chunk = 16}, [](In a, In b) { return sum(exp(a) * b); })(x, w), x};
       },
       one},
  };
  for (auto& c : cases) {
    CAPTURE(c.name);
    auto f = jit(c.f, {.donate = {0}, .backend = "cpu"}),
         plain = jit(c.f, {.backend = "reference"});
    auto undonated = jit(c.f, {.backend = "cpu"});
    auto x = made(1), w = made(2);
    auto expected = plain(made(1), w), same = undonated(x, w);
    CHECK(difference(x, made(1), 0) == "");  // not donated: unchanged
    for (int iteration = 0; iteration < 3; ++iteration) {
      auto got = f(x, w);
      for (std::size_t k = 0; k < expected.size(); ++k)
        CHECK(difference(got[k], expected[k], 1e-3) == "");
      for (std::size_t k = 0; k < expected.size(); ++k) CHECK(difference(got[k], same[k], 0) == "");
      CHECK_THROWS_AS(x.floats(), Error);
      // the unchanged array
      x = *std::find_if(got.begin(), got.end(), [](In r) { return r.ndim() == 2; });
    }
    CHECK(f.report().not_donated.empty());
    CHECK(f.report().peak_bytes <= c.most);
    CAPTURE(f.report().program);
    CHECK(copies(f.report()) == c.copied);
  }
  // One array for two arguments, and swapped results: neither array is overwritten.
  auto swap =
      jit([](In a, In b) { return std::tuple(b, a, a + b); }, {.donate = {0, 1}, .backend = "cpu"});
  auto x = made(1);
  auto [b, a, total] = swap(x, x);
  CHECK(difference(a, made(1), 0) == "");
  CHECK(difference(b, made(1), 0) == "");
  CHECK(difference(total, made(1) * 2., 0) == "");
  // On a mesh each device returns its block.
  auto later = [](In v, In w) { return std::pair(v, sum(cumsum(v * w, "position"))); };
  auto on_mesh = named_jit(
      later,
      {.donate = {0}, .mesh = Mesh{{{"data", 4}}}, .axis_resources = Mapping{{"d", "data"}}});
  auto carried = made(1), w = made(2);
  for (int iteration = 0; iteration < 3; ++iteration) {
    NamedArray value;
    std::tie(carried, value) = on_mesh(carried, w);
    CHECK(value.item() ==
          doctest::Approx(sum(cumsum(made(1) * w, "position")).item()).epsilon(1e-4));
  }
  CHECK(difference(carried, made(1), 0) == "");
  CHECK(on_mesh.report().not_donated.empty());
  CHECK(copies(on_mesh.report()) == 0);
}
