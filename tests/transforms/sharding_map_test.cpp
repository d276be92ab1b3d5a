// shard_map: functions of the shard of one device, and the collectives inside them.
#include <doctest/doctest.h>

#include <cmath>

#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 8}, Embed{"embed", 12};
const Mesh four{{{"data", 4}}}, grid{{{"data", 4}, {"model", 2}}};
const Mapping by_batch{{"batch", "data"}}, both{{"batch", "data"}, {"embed", "model"}};

NamedArray normal(int seed, const AxisSpec& axes) {
  return random::normal(random::key(seed), axes);
}
void close(const NamedArray& got, const NamedArray& expected) {
  REQUIRE(got.axes() == expected.axes());
  auto a = got.doubles(), b = expected.doubles();
  for (std::size_t i = 0; i < a.size(); ++i)
    CHECK(std::abs(a[i] - b[i]) <= 1e-5 * std::max(1., std::abs(b[i])));
}

}  // namespace

TEST_CASE("shard_map: f sees local sizes, and unreduced results differ by device") {
  auto x = normal(1, {Batch, Embed});
  Axes seen;
  auto f = [&](const NamedArray& v) {
    seen = v.axes();
    return v / psum(sum(v * v), {"data", "model"});
  };
  auto local = shard_map(f, {.mesh = grid, .axis_resources = both});
  close(local(x), x / sum(x * x));
  CHECK(seen == Axes{Batch.resize(2), Embed.resize(6)});
  CHECK(local.report().argument_bytes == x.nbytes() / 8);
  // one scalar, over all devices at once
  CHECK(local.report().sent_bytes == 2 * (8 - 1) / 8. * 4);
  CHECK(placement(local(x))->mapping == both);

  // The mean of each device, and the mean over all.
  auto means = shard_map([](const NamedArray& v) { return v - mean(v, "batch"); },
                         {.mesh = four, .axis_resources = by_batch});
  auto parts = unflatten_axis(x, "batch", {Axis("part", 4), Axis("batch", 2)});
  close(means(x), flatten_axes(parts - mean(parts, "batch"), {"part", "batch"}, "batch"));
  CHECK(means.report().sent_bytes == 0);
}

TEST_CASE(
    "shard_map: sums, means, extremes, gathers and scatters over mesh axes match one device") {
  auto x = normal(2, {Batch, Embed});
  for (const char* backend : {"cpu", "reference"}) {
    JitOptions on{.backend = backend, .mesh = four, .in = by_batch, .out = Mapping{}};
    close(shard_map([](const NamedArray& v) { return psum(sum(v, "batch"), "data"); }, on)(x),
          sum(x, "batch"));
    close(shard_map([](const NamedArray& v) { return pmean(mean(v, "batch"), "data"); }, on)(x),
          mean(x, "batch"));
    close(shard_map([](const NamedArray& v) { return pmax(max(v, "batch"), "data"); }, on)(x),
          max(x, "batch"));
    close(shard_map([](const NamedArray& v) { return pmin(min(v, "batch"), "data"); }, on)(x),
          min(x, "batch"));
    close(shard_map([](const NamedArray& v) { return all_gather(v, "batch", "data"); }, on)(x), x);

    // A replicated scalar is added once per device.
    close(shard_map(
              [](const NamedArray& v) {
                return psum(1., "data") * psum(sum(v), "data") + pmean(2., "data");
              },
              on)(x),
          sum(x) * 4. + 2.);
    // Booleans are counted.
    CHECK(
        shard_map([](const NamedArray& v) { return psum(sum(v) > -1e9, "data"); }, on)(x).item() ==
        4);
  }

  auto scatter =
      shard_map([](const NamedArray& v) { return psum_scatter(sum(v, "batch"), "embed", "data"); },
                {.mesh = four, .in = by_batch, .out = Mapping{{"embed", "data"}}});
  close(scatter(x), sum(x, "batch"));
  // half of an all-reduce
  CHECK(scatter.report().sent_bytes == 3 / 4. * double(sum(x, "batch").nbytes()));

  auto places = shard_map(
      [](const NamedArray& v) {
        return zeros(v.axes(), DType::i32) + axis_index("data") * 10 + axis_index("model");
      },
      {.mesh = grid, .in = both, .out = both});
  auto at = places(x);
  CHECK(index(at, {{"batch", 0}, {"embed", 0}}).item() == 0);
  CHECK(index(at, {{"batch", 5}, {"embed", 7}}).item() == 21);
}

TEST_CASE("shard_map: each device runs only the side of cond that its flag selects") {
  auto x = normal(1, {Batch, Embed}), w = normal(2, {Embed, Axis("out", 6)});
  auto f = [&](const NamedArray& v, const NamedArray& w) {
    auto wide = [&](const NamedArray& v) { return dot(v, w, "embed"); };
    auto sums = [&](const NamedArray& v) {
      return broadcast_axis(cumsum(v, "embed")[{"embed", 0}], Axis("out", 6));
    };
    return cond(axis_index("data") == 0, wide, sums)(v);
  };
  const Mapping rows{{"batch", "data"}};
  auto mapped =
      shard_map(f, {.mesh = four, .in = Mappings::of_each({rows, Mapping{}}), .out = rows});
  auto expected = where(arange(Batch) < 2, dot(x, w, "embed"), x[{"embed", 0}]);
  close(rearrange(mapped(x, w), expected.axes()), expected);
  const auto program = mapped.report().program;
  CAPTURE(program);
  CHECK(program.find("\nif ") != std::string::npos);
}

TEST_CASE("shard_map: tuples of mesh axes apply in their order") {
  Axis Tokens{"tokens", 16};
  auto x = arange(Tokens);
  for (auto order : {std::vector<std::string>{"data", "model"}, {"model", "data"}}) {
    const Mapping m{{"tokens", order}};
    auto first = shard_map([](const NamedArray& v) { return v - min(v); },
                           {.mesh = grid, .axis_resources = m});
    CHECK(first(x).integers() == (x % 2).integers());
    auto gathered = shard_map(
        [&](const NamedArray& v) {
          return all_gather(v, "tokens", {order[0], order[1]});
        },
        {.mesh = grid, .in = m, .out = Mapping{}});
    CHECK(gathered(x).integers() == x.integers());
  }
}

TEST_CASE(
    "shard_map: gradients inside, outside, and as a part of a larger function, match one device") {
  Axis Out{"out", 6};
  auto x = normal(3, {Batch, Embed}), w = normal(4, {Embed, Out});
  auto global = [](const NamedArray& v, const NamedArray& a) {
    return mean(square(tanh(dot(a, v, "embed"))));
  };

  // Inside: the gradient of each device's loss, then averaged, as in handwritten data parallelism.
  auto by_hand = shard_map(
      [&](const NamedArray& v, const NamedArray& a) { return pmean(grad(global)(v, a), "data"); },
      {.mesh = four, .in = by_batch, .out = Mapping{}});
  close(by_hand(w, x), grad(global)(w, x));
  CHECK(by_hand.report().sent_bytes == 2 * 3 / 4. * double(w.nbytes()));

  // Outside: through the sum over the devices.
  auto local = [](const NamedArray& v, const NamedArray& a) {
    return pmean(mean(square(tanh(dot(a, v, "embed")))), "data");
  };
  auto loss = shard_map(local, {.mesh = four, .in = by_batch, .out = Mapping{}});
  auto step = [&](const NamedArray& v, const NamedArray& a) { return v - grad(loss)(v, a); };
  close(step(w, x), w - grad(global)(w, x));  // without a mesh: the same values
  auto on_mesh = named_jit(step, {.mesh = four, .in = by_batch, .out = Mapping{}});
  close(on_mesh(w, x), w - grad(global)(w, x));
  CHECK(on_mesh.report().sent_bytes == 2 * 3 / 4. * double(w.nbytes()));

  // Under vmap, and around a loop.
  Axis Many{"many", 3};
  auto xs = normal(5, {Many, Batch, Embed});
  auto norm = shard_map([](const NamedArray& v) { return v / sqrt(psum(sum(v * v), "data")); },
                        {.mesh = four, .axis_resources = by_batch});
  auto plain = [](const NamedArray& v) { return v / sqrt(sum(v * v)); };
  close(vmap(norm, Many)(xs), vmap(plain, Many)(xs));
  auto running = shard_map(
      [&](const NamedArray& v) {
        return fold(
            [](const NamedArray& c, const NamedArray& e) { return c + psum(sum(e), "data"); },
            "embed")(NamedArray(0.), v);
      },
      {.mesh = four, .in = by_batch, .out = Mapping{}});
  close(running(x), sum(x));
}

TEST_CASE("shard_map: draws differ by device, and arguments and results may be trees") {
  // Keys of each example: the same values as without a mesh.
  auto keys = random::split(random::key(7), Batch);
  auto noise = [](const Key& k) {
    return vmap([](const Key& one) { return random::normal(one, Embed); }, "batch")(k);
  };
  auto local = shard_map(noise, {.mesh = four, .axis_resources = by_batch});
  CHECK(local(keys).floats() == noise(keys).floats());

  struct Pair {
    NamedArray a, b;
  };
  auto swap = shard_map(
      [](const Pair& p) {
        return std::pair{Pair{p.b, p.a}, psum(sum(p.a), "data")};
      },
      {.mesh = four, .in = by_batch, .out = Mappings::of_each({by_batch, Mapping{}})});
  auto x = normal(1, {Batch, Embed}), y = normal(2, Batch);
  auto [p, total] = swap(Pair{x, y});
  close(p.a, y);
  close(p.b, x);
  close(total, sum(x));
}

TEST_CASE("shard_map: invalid calls raise") {
  auto x = normal(1, {Batch, Embed});
  auto f = [](const NamedArray& v) { return sum(v, "batch"); };
  raises([&] { return shard_map(f, {.axis_resources = by_batch})(x); },
         {"no mesh", "use_mesh", "sharding_map_test.cpp"});
  raises([&] { return shard_map(f, {.mesh = four, .axis_resources = by_batch})(x); },
         {"a result (embed=12)", "differs between devices along mesh axis data", "psum or pmean",
          "{batch: data}"});
  raises(
      [&] {
        return shard_map(f, {.mesh = Mesh{{{"data", 3}}}, .axis_resources = by_batch})(x);
      },
      {"batch=8 of argument 0 (batch=8, embed=12)", "3 devices", "round_axis_for_partitioning"});
  raises(
      [&] {
        return shard_map([](const NamedArray& v) { return psum(v, "dta"); },
                         {.mesh = four, .in = by_batch})(x);
      },
      {"[psum] mesh axis dta is not in the mesh (data=4); did you mean data?"});
  raises([&] { return psum(x, "data"); }, {"[psum]", "must be called inside shard_map"});
  raises([&] { return axis_index("data"); }, {"[axis_index]", "must be called inside shard_map"});
  raises(
      [&] {
        return shard_map([](const NamedArray& v) { return psum_scatter(v, "embed", "data"); },
                         {.mesh = Mesh{{{"data", 8}}}, .axis_resources = by_batch})(x);
      },
      {"[psum_scatter]", "embed=12", "8 devices"});
  auto inner = shard_map(f, {.mesh = four, .in = by_batch, .out = Mapping{}});
  raises(
      [&] { return named_jit([&](const NamedArray& v) { return inner(v); }, {.mesh = grid})(x); },
      {"mesh (data=4) differs from that of the enclosing function (data=4, model=2)"});
  CHECK(current_mesh() == nullptr);
}
