// Meshes, mappings and scopes as users meet them: sizes, names, errors, placements, retraces.
#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <thread>

#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 8}, Embed{"embed", 12}, Mlp{"mlp", 6};
const Mesh grid{{{"data", 4}, {"model", 2}}};
const Mapping by_batch{{"batch", "data"}}, by_embed{{"embed", "data"}};

struct Layer {
  NamedArray in, out;
};
Layer layer() {
  return {random::normal(random::key(1), {Embed, Mlp}),
          random::normal(random::key(2), {Mlp, Embed})};
}
const int dot_line = __LINE__ + 2;
NamedArray ran(const Layer& l, const NamedArray& x) {
  return dot(tanh(dot(x, l.in, Embed)), l.out, Mlp);
}
NamedArray tokens() { return random::normal(random::key(3), {Batch, Embed}); }

}  // namespace

TEST_CASE("sharding: meshes have any number of axes, one of which may use all remaining devices") {
  Devices eight(8);
  CHECK(Mesh{{{"data", -1}}}.size("data") == 8);
  Mesh tall{{{"data", -1}, {"model", 2}}}, deep{{{"a", 2}, {"b", -1}, {"c", 2}, {"d", 1}}};
  CHECK(to_string(tall) == "data=4, model=2");
  CHECK(to_string(deep) == "a=2, b=2, c=2, d=1");
  CHECK(tall.devices() == 8);
  CHECK(tall == Mesh{{{"data", 4}, {"model", 2}}});
  CHECK(Mesh().devices() == 1);
  CHECK(Mesh{{{"data", 2048}}}.devices() == 2048);  // for plans; only a run needs the devices
  raises([&] { return Mesh{{{"data", 0}}}; }, {"data has size 0", "sharding_test.cpp"});
  raises([&] { return Mesh{{{"data", -2}}}; }, {"size -2"});
  raises([&] { return Mesh{{{"data", -1}, {"model", -1}}}; }, {"data", "model", "both"});
  raises(
      [&] {
        return Mesh{{{"data", -1}, {"model", 3}}};
      },
      {"8 devices", "data=-1, model=3", "set_devices"});
  raises([&] { return Mesh{{{"data", 2}, {"data", 4}}}; }, {"data occurs twice"});
  raises([&] { return Mesh{{{"", 2}}}; }, {"no name"});
  raises([&] { return Mesh{{{"a", 100000}, {"b", 100000}}}; }, {"more than"});
  raises([&] { return tall.size("modl"); }, {"data, model", "did you mean model"});
  raises(
      [&] {
        set_devices(0);
        return 0;
      },
      {"n is 0; expected 1 to"});
}

TEST_CASE("sharding: a mapping places the axes of an array") {
  const Mapping m{{"batch", {"data", "model"}}, {"embed", "model"}, {"mlp", std::nullopt}};
  CHECK(to_string(m) == "{batch: data+model, embed: model, mlp: None}");
  CHECK(to_string(pspec_for_axis({Batch, Embed, Mlp, "other"}, m)) ==
        "P(data+model, model, None, None)");
  CHECK(to_string(pspec_for_axis({"batch", "embed"})) == "P(None, None)");  // no mapping in scope
  CHECK(physical_axis_name("batch", m) == std::vector<std::string>{"data", "model"});
  CHECK(physical_axis_name("mlp", m).empty());
  raises([&] { return physical_axis_size("batch", m); }, {"no mesh in scope", "sharding_test.cpp"});
  raises([&] { return round_axis_for_partitioning(Axis("batch", 13), m); }, {"no mesh in scope"});

  use_mesh mesh(grid);
  CHECK(physical_axis_size("batch", m) == 8);
  CHECK(physical_axis_size("embed", m) == 2);
  CHECK(!physical_axis_size("mlp", m));
  CHECK(!physical_axis_size("other", m));
  CHECK(round_axis_for_partitioning(Axis("batch", 13), m) == Axis("batch", 16));
  CHECK(round_axis_for_partitioning(Axis("batch", 16), m) == Axis("batch", 16));
  CHECK(round_axis_for_partitioning(Axis("other", 13), m) == Axis("other", 13));
  raises(
      [&] {
        return physical_axis_size("embed", Mapping{{"embed", "dta"}});
      },
      {"{embed: dta}", "axis embed to mesh axis dta", "did you mean data"});
  axis_mapping scope(m);
  CHECK(to_string(pspec_for_axis({"batch", "mlp"})) == "P(data+model, None)");
  CHECK(physical_axis_size(Batch) == 8);
  CHECK(round_axis_for_partitioning(Axis("embed", 5)) == Axis("embed", 6));
}

TEST_CASE(
    "sharding: an inner mapping replaces the outer one, "
    "and threads have the scopes of their caller") {
  CHECK(current_mapping() == nullptr);
  use_mesh mesh(grid);
  axis_mapping outer(by_batch);
  {
    axis_mapping inner(by_embed);
    CHECK(*current_mapping() == by_embed);
    CHECK(physical_axis_name("batch").empty());
  }
  CHECK(*current_mapping() == by_batch);

  bool bare = false, captured = false;
  std::thread([&] { bare = !current_mesh() && !current_mapping(); }).join();
  std::thread(in_scopes([&] {
    captured = current_mesh() && *current_mesh() == grid && *current_mapping() == by_batch;
  })).join();
  CHECK(bare);
  CHECK(captured);

  // A function that another thread traces is sharded as on this thread.
  auto step = named_jit(ran);
  step(layer(), tokens());
  auto here = step.report().sent_bytes;
  double there = 0;
  std::thread(in_scopes([&] {
    auto second = named_jit(ran);
    second(layer(), tokens());
    there = second.report().sent_bytes;
    CHECK(*placement(second(layer(), tokens())) == Placement{grid, by_batch});
  })).join();
  CHECK(here == there);
}

TEST_CASE("sharding: an empty mapping replicates an array, and no mapping leaves it unchanged") {
  const Mesh four{{{"data", 4}}};
  auto f = [](const NamedArray& x) { return x + 1.; };
  auto sent = [&](auto constrain) {
    auto g = named_jit([&](const NamedArray& x) { return constrain(f(x)); },
                       {.mesh = four, .axis_resources = by_batch});
    g(tokens());
    return g.report().sent_bytes;
  };
  const double bytes = double(tokens().nbytes());
  CHECK(sent([](const NamedArray& y) { return y; }) == 0);
  CHECK(sent([](const NamedArray& y) { return auto_sharded(y); }) == 0);
  // A gathered array is summed where it is replicated. A sharded array is summed by blocks, and
  // only the sums are communicated.
  CHECK(sent([](const NamedArray& y) { return sum(shard(y, Mapping{}), Batch); }) == bytes * 3 / 4);
  CHECK(sent([](const NamedArray& y) {
          return sum(shard(y, Mapping{{"nobody", "data"}}), Batch);
        }) == bytes * 3 / 4);
  CHECK(sent([](const NamedArray& y) { return sum(y, Batch); }) == bytes / 8 * 2 * 3 / 4);

  CHECK(shard(tokens()).node() == tokens().node());  // nothing in scope: the array itself
  auto x = tokens();
  CHECK(shard(x).node() == x.node());
  CHECK(auto_sharded(x).node() == x.node());
  auto pair = auto_sharded(std::pair{x, layer()});
  CHECK(pair.first.node() == x.node());

  // named_jit without any mapping: all arrays are replicated, and nothing is communicated.
  auto unsharded = named_jit(ran, {.mesh = four});
  CHECK(unsharded(layer(), x).floats() == jit(ran)(layer(), x).floats());
  CHECK(unsharded.report().sent_bytes == 0);
  CHECK(unsharded.report().argument_bytes == x.nbytes() + 2 * layer().in.nbytes());
}

TEST_CASE(
    "sharding: outside of a trace, shard places arrays and trees, "
    "and named_jit keeps the placement") {
  use_mesh mesh(grid);
  auto x = tokens();
  CHECK(placement(x) == nullptr);
  auto y = shard(x + 1., by_batch);
  CHECK(*placement(y) == Placement{grid, by_batch});
  CHECK(y.floats() == (x + 1.).floats());
  CHECK(placement(y * 2.) == nullptr);

  auto l = shard(layer(), Mapping{{"mlp", "model"}});
  CHECK(placement(l.in)->mapping == Mapping{{"mlp", "model"}});
  CHECK(l.out.floats() == layer().out.floats());
  auto step = named_jit(ran);  // no mapping: the placement of the arguments
  auto out = step(l, y);
  const auto shared = layer().in.nbytes() / 2;
  CHECK(step.report().argument_bytes == 2 * shared + y.nbytes() / 4);
  CHECK(placement(out) == nullptr);
  auto expected = ran(l, y).floats(), got = out.floats();
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-5));

  // The mapping of the caller has priority.
  auto overridden = named_jit(ran, {.in = Mapping{}});
  overridden(l, y);
  CHECK(overridden.report().argument_bytes == 4 * shared + y.nbytes());
  // An array on another mesh is resharded by the mapping.
  auto other = named_jit(ran, {.mesh = Mesh{{{"data", 2}}}, .axis_resources = by_batch});
  other(l, y);
  CHECK(other.report().argument_bytes == 4 * shared + y.nbytes() / 2);
}

TEST_CASE(
    "sharding: an array that is sharded without a mesh moves to the first mesh that uses it") {
  const auto x = tokens();
  auto y = shard(x + 1., by_batch);
  CHECK(placement(y) == nullptr);
  auto step = named_jit([](const NamedArray& v) { return v * 2.; }, {.mesh = grid});
  for (int call = 0; call < 2; ++call) {  // lazy at first, then with a value
    CHECK(step(y).floats() == ((x + 1.) * 2.).floats());
    CHECK(step.report().argument_bytes == y.nbytes() / 4);
  }
  CHECK(step.report().traces == 1);
  {
    use_mesh mesh(grid);
    CHECK(*placement(y) == Placement{grid, by_batch});
    CHECK(visualize_sharding(y).find("{batch: data}") != std::string::npos);
  }
  CHECK(placement(y) == nullptr);
  CHECK(placement(y * 2.) == nullptr);
  // The mapping of the caller has priority. A mapping that fits no mesh raises in every call.
  auto overridden =
      named_jit([](const NamedArray& v) { return v * 2.; }, {.mesh = grid, .in = Mapping{}});
  overridden(y);
  CHECK(overridden.report().argument_bytes == y.nbytes());
  auto bad = shard(x, Mapping{{"batch", "nope"}});
  const std::string what = "[shard] the mapping {batch: nope} maps axis batch to mesh axis nope";
  for (int call = 0; call < 2; ++call)
    raises([&] { return step(bad); }, {what.c_str(), "sharding_test.cpp"});
  raises([&] { return named_jit([=](const NamedArray& v) { return v * bad; }, {.mesh = grid})(x); },
         {what.c_str(), "sharding_test.cpp"});
  use_mesh mesh(grid);
  raises([&] { return placement(bad); }, {what.c_str()});
  // The mapping in scope places trees as it does arrays.
  axis_mapping scope(by_batch);
  CHECK(*placement(shard(std::pair{x + 1., x}).first) == Placement{grid, by_batch});
}

TEST_CASE("sharding: another mesh, mapping or placement retraces, and nothing else does") {
  auto x = tokens();
  auto f = named_jit([](const NamedArray& v) { return sum(square(v), Embed); });
  auto traces = [&] {
    f(x);
    return f.report().traces;
  };
  auto why = [&] { return f.report().why; };
  CHECK(traces() == 1);
  CHECK(traces() == 1);
  {
    use_mesh mesh(grid);
    CHECK(traces() == 2);
    CHECK(why() == "a different mesh");
    {
      axis_mapping m(by_batch);
      CHECK(traces() == 3);
      CHECK(why() == "a different axis mapping");
      CHECK(f.report().sent_bytes == 0);
    }
    {
      axis_mapping m(by_embed);
      CHECK(traces() == 4);
      CHECK(f.report().sent_bytes > 0);  // not the trace of the previous mesh
      CHECK(traces() == 4);
    }
    {
      axis_mapping m(by_batch);
      CHECK(traces() == 4);
    }
    x = shard(x, by_embed);
    CHECK(traces() == 5);
    x = shard(x, by_batch);
    CHECK(traces() == 6);
    CHECK(why() == "argument 0 has a different sharding");
    // the same placement, written differently
    x = shard(x * 1., Mapping{{"batch", "data"}, {"nobody", "model"}});
    CHECK(traces() == 6);
    use_mesh same(Mesh{{{"data", 4}, {"model", 2}}});
    CHECK(traces() == 6);
    use_mesh smaller(Mesh{{{"data", 2}, {"model", 2}}});
    CHECK(traces() == 7);
  }
  // The results of a step are arguments of the next one without a retrace.
  auto step = named_jit(
      [](const Layer& l, const NamedArray& v) {
        return Layer{l.in * 0.5, l.out + mean(ran(l, v))};
      },
      {.mesh = grid, .axis_resources = Mapping{{"embed", "data"}, {"mlp", "model"}}});
  auto l = layer();
  for (int i = 0; i < 3; ++i) l = step(l, tokens());
  CHECK(step.report().traces == 1);
}

TEST_CASE("sharding: mistakes name the axes, the mapping and the array") {
  const Mapping both{{"batch", "data"}, {"embed", "data"}};
  auto l = layer();
  auto x = tokens();
  auto run = [&](JitOptions o) { return named_jit(ran, std::move(o))(l, x); };
  const auto dot_at = "sharding_test.cpp:" + std::to_string(dot_line);
  // In an argument, a result, and inside.
  raises([&] { return run({.mesh = grid, .axis_resources = both}); },
         {"axes batch and embed of argument 1 (batch=8, embed=12)", "mesh axis data",
          "{batch: data, embed: data}", "sharding_test.cpp"});
  raises([&] { return run({.mesh = grid, .in = Mapping{}, .out = both}); },
         {"axes batch and embed of result 0 (batch=8, embed=12)", "mesh axis data"});
  raises(
      [&] {
        return run({.mesh = grid, .axis_resources = both, .in = Mapping{}, .out = Mapping{}});
      },
      {"axes batch and embed of dot (batch=8, embed=12)",
       "by the mapping {batch: data, embed: data}", dot_at.c_str()});
  const Mapping square{{"embed", "data"}, {"mlp", "data"}};
  raises([&] { return run({.mesh = grid, .in = square}); },
         {"argument 0: in (embed=12, mlp=6)", "embed and mlp"});
  raises(
      [&] {
        return named_jit(
            [](const NamedArray& v) {
              return shard(v, Mapping{{"batch", {"data", "data"}}});
            },
            {.mesh = grid})(x);
      },
      {"axis batch", "mesh axis data twice"});
  {
    use_mesh mesh(grid);
    raises([&] { return shard(x, both); }, {"axes batch and embed", "sharding_test.cpp"});
  }
  // A mesh axis that does not exist.
  raises(
      [&] {
        return run({.mesh = grid, .axis_resources = Mapping{{"batch", "dta"}}});
      },
      {"{batch: dta}", "axis batch", "mesh axis dta", "data=4, model=2", "did you mean data"});
  // More devices than available; plans accept any number.
  Devices four(4);
  raises([&] { return run({.mesh = grid}); }, {"data=4, model=2", "has 8 devices, but there are 4",
                                               "set_devices(8)", "HALIAX_DEVICES=8"});
  auto many = named_jit(ran, {.mesh = Mesh{{{"data", 512}}}, .axis_resources = by_batch});
  CHECK(many.plan(l, x).argument_bytes == 2 * l.in.nbytes() + x.nbytes() / 8);
  set_devices(8);
  CHECK(run({.mesh = grid}).axes() == Axes{Batch, Embed});
  // A mistake leaves the scopes unchanged.
  CHECK(current_mesh() == nullptr);
  CHECK(current_mapping() == nullptr);
}

TEST_CASE("sharding: one mapping shards parameters, another one the computation") {
  auto step = [](const Layer& l, const NamedArray& x) {
    auto g = grad([&](const Layer& m) { return mean(square(ran(m, x))); })(l);
    return Layer{l.in - g.in, l.out - g.out};
  };
  const Mesh four{{{"data", 4}}};
  auto sharded = fsdp(step, by_embed, by_batch, {.mesh = four});
  auto longer =
      named_jit(step, {.mesh = four, .axis_resources = by_batch, .in = by_embed, .out = by_embed});
  auto got = sharded(layer(), tokens());
  longer(layer(), tokens());
  auto r = sharded.report();
  CHECK(r.sent_bytes == longer.report().sent_bytes);
  CHECK(r.sent_bytes > 0);
  CHECK(*placement(got.in) == Placement{four, by_embed});
  auto expected = step(layer(), tokens());
  auto a = got.in.floats(), b = expected.in.floats();
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(1e-5));
}

TEST_CASE("sharding: a named_jit in the trace of another one applies its own mapping") {
  auto inner = named_jit(
      [](const Layer&, const NamedArray&) {
        return NamedArray(current_mapping()->find("embed") ? 1. : 0.);
      },
      {.axis_resources = by_embed});
  auto outer = named_jit(
      [&](const Layer& l, const NamedArray& x) {
        return inner(l, x) + (current_mapping()->find("batch") ? 10. : 0.);
      },
      {.mesh = grid, .axis_resources = by_batch});
  CHECK(outer(layer(), tokens()).item() == 11);
}

TEST_CASE("sharding: each argument and each result may have its own mapping") {
  const Mesh two{{{"data", 2}}};
  auto f = named_jit(
      [](const NamedArray& a, const NamedArray& b) {
        return std::pair{a * 2., b + 1.};
      },
      {.mesh = two,
       .in = Mappings::of_each({by_batch, {}}),
       .out = Mappings::of_each({by_batch, by_embed})});
  auto [a, b] = f(tokens(), tokens());
  CHECK(f.report().argument_bytes == tokens().nbytes() * 3 / 2);
  CHECK(f.report().sent_bytes == 0);
  CHECK(placement(a)->mapping == by_batch);
  CHECK(placement(b)->mapping == by_embed);
}

TEST_CASE(
    "sharding: visualize_sharding shows the device of each block, as a table and as a picture") {
  const Mapping m{{"embed", "data"}, {"mlp", "model"}};
  CHECK(visualize_sharding({Embed, Mlp}, m, grid) ==
        "(embed=12, mlp=6) by {embed: data, mlp: model} on the mesh data=4, model=2\n"
        "             mlp 0..2  mlp 3..5\n"
        "embed 0..2   0         1\n"
        "embed 3..5   2         3\n"
        "embed 6..8   4         5\n"
        "embed 9..11  6         7\n"
        "each device holds (embed=3, mlp=3)\n");
  CHECK(visualize_sharding(Axis("x", 3), Mapping{{"x", "model"}}, grid) ==
        "(x=3) by {x: model} on the mesh data=4, model=2\n"
        "x 0..1  0 2 4 6\n"
        "x 2     1 3 5 7\n"
        "each device holds (x=2)\n");
  CHECK(visualize_sharding({Embed}, {}, grid) ==
        "(embed=12) by {} on the mesh data=4, model=2\n"
        "  0-7\n"
        "each device holds (embed=12), replicated\n");
  // The order of mesh axes, a third axis, and a size that leaves devices without elements.
  CHECK(has(visualize_sharding(Axis("x", 8), Mapping{{"x", {"model", "data"}}}, grid), "x 1  2\n"));
  CHECK(has(visualize_sharding({Axis("a", 2), Axis("b", 2), Axis("c", 2)},
                               Mapping{{"a", "x"}, {"b", "y"}, {"c", "z"}},
                               Mesh{{{"x", 2}, {"y", 2}, {"z", 2}}}),
            "a 0  0         1         2         3\n"));
  CHECK(has(visualize_sharding(Axis("x", 3), Mapping{{"x", "data"}}, grid), "x none  6 7\n"));
  CHECK(visualize_sharding(Axis("x", 4096), Mapping{{"x", "data"}}, Mesh{{{"data", 2048}}}).size() <
        2000);

  auto x = named_jit([](const NamedArray& v) { return v * 2.; },
                     {.mesh = grid, .axis_resources = by_batch})(tokens());
  CHECK(visualize_sharding(x) == visualize_sharding({Batch, Embed}, by_batch, grid));
  CHECK(has(visualize_sharding(tokens()), "one device"));
  raises(
      [&] {
        return visualize_sharding({Batch, Embed}, Mapping{{"batch", "data"}, {"embed", "data"}},
                                  grid);
      },
      {"axes batch and embed"});
  raises([&] { return visualize_sharding(NamedArray()); }, {"empty"});
  raises([&] { return visualize_sharding({Embed}, {}, grid, "/nowhere/at/all.svg"); },
         {"cannot write /nowhere/at/all.svg"});

  const std::string file = "sharding_test.svg";
  visualize_sharding({Embed, Mlp}, m, grid, file);
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  std::remove(file.c_str());
  auto count = [&](const std::string& what) {
    int n = 0;
    for (auto at = text.str().find(what); at != std::string::npos;
         at = text.str().find(what, at + 1))
      ++n;
    return n;
  };
  CHECK(count("<rect") == 10);  // eight blocks, the background, the frame
  CHECK(has(text.str(), "embed 9..11"));
  CHECK(has(text.str(), "</svg>"));

  auto table = visualize_shardings(layer(), m, grid);
  CHECK(table ==
        "in   (embed=12, mlp=6)  embed by data, mlp by model       288 B        36 B a device\n"
        "out  (mlp=6, embed=12)  mlp by model, embed by data       288 B        36 B a device\n"
        "all                                                       576 B        72 B a device\n");
}

TEST_CASE(
    "sharding: the mapping constrains lookups and contractions, not the ops that follow them") {
  const Mesh two{{{"model", 2}}};
  const Axis Vocab{"vocab", 10};
  auto table = random::normal(random::key(4), {Vocab, Embed});
  auto ids = random::randint(random::key(5), Batch, 0, 10);
  auto sent = [&](auto f) {
    auto g = named_jit(f, {.mesh = two, .axis_resources = Mapping{{"vocab", "model"}}});
    g(table, ids);
    return g.report().sent_bytes;
  };
  // Each device picks from its rows. The mapping replicates the picked rows, so they are summed
  // over the mesh before the batch is summed.
  CHECK(sent([](const NamedArray& t, const NamedArray& i) {
          return sum(take(t, "vocab", i), Batch);
        }) == double(Batch.size * Embed.size * 4));
  CHECK(sent([](const NamedArray& t, const NamedArray& i) {
          return sum(dot(t, one_hot(i, Axis("vocab", 10), DType::f32), "vocab"), Batch);
        }) == double(Batch.size * Embed.size * 4));
  CHECK(sent([](const NamedArray& t, const NamedArray&) {
          return sum(sum(t * 2., "vocab"), Embed);
        }) == 4);
}

TEST_CASE("sharding: the mapping constrains a rearrangement, however it is written") {
  const Mesh four{{{"data", 4}}};
  auto sent = [&](auto f) {
    auto g = named_jit([&](const NamedArray& x) { return sum(f(x), Batch); },
                       {.mesh = four, .axis_resources = Mapping{}, .in = by_batch});
    g(tokens());
    return g.report().sent_bytes;
  };
  const double bytes = double(tokens().nbytes());
  // unconstrained: only the sums are communicated
  CHECK(sent([](const NamedArray& x) { return tanh(x); }) == bytes / 8 * 2 * 3 / 4);
  CHECK(sent([](const NamedArray& x) { return rearrange(x, "{batch embed} -> embed batch"); }) ==
        bytes * 3 / 4);
  CHECK(sent([](const NamedArray& x) {
          return rearrange(x, Names{"embed", "batch"});
        }) == bytes * 3 / 4);
}
