// Mistakes with meshes, mappings and shardings raise at the line of the mistake, and change
// nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <type_traits>

#include "haliax/haliax.h"
#include "support/allocations.h"
#include "support/devices.h"
#include "support/near.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 8}, Embed{"embed", 12};
const Mesh grid{{{"data", 4}, {"model", 2}}};
const Mapping by_batch{{"batch", "data"}}, by_embed{{"embed", "data"}},
    both{{"batch", "data"}, {"embed", "data"}},
    // an axis that no array has, and a mesh axis that does not exist
    misspelt{{"nobody", "modle"}};

NamedArray tokens() { return random::normal(random::key(3), {Batch, Embed}); }
NamedArray plus_one(const NamedArray& x) { return x + 1.; }
const int auto_sharded_line = __LINE__ + 3;
NamedArray auto_sharded_under(const Mapping& m, const NamedArray& x) {
  axis_mapping scope(m);
  return auto_sharded(tanh(x));
}
std::string line(int n) { return "sharding_mistakes_test.cpp:" + std::to_string(n); }

}  // namespace

TEST_CASE("mistakes: an unknown mesh axis raises wherever mapping and mesh meet") {
  const auto x = tokens();
  auto names_it = [](auto f, const char* op) {
    raises(f, {op, "{nobody: modle}", "axis nobody to mesh axis modle", "data=4, model=2",
               "did you mean model", "_mistakes_test.cpp"});
  };
  // In options, strict or not, and in scope.
  for (bool strict : {false, true}) {
    names_it(
        [&] {
          return named_jit(plus_one,
                           {.mesh = grid, .axis_resources = misspelt, .strict = strict})(x);
        },
        "[named_jit]");
    names_it(
        [&] { return named_jit(plus_one, {.mesh = grid, .in = misspelt, .strict = strict})(x); },
        "[named_jit]");
    names_it(
        [&] {
          return named_jit(plus_one, {.mesh = grid, .out = misspelt, .strict = strict}).plan(x);
        },
        "[named_jit]");
    names_it(
        [&] {
          axis_mapping before_the_mesh(misspelt);
          return named_jit(plus_one, {.mesh = grid, .strict = strict})(x);
        },
        "[named_jit]");
  }
  names_it([&] { return shard_map(plus_one, {.mesh = grid, .in = misspelt, .out = Mapping{}})(x); },
           "[named_jit]");
  names_it([&] { return visualize_sharding({Embed}, misspelt, grid); }, "[shard]");
  {
    use_mesh scope(grid);
    names_it([&] { axis_mapping here(misspelt); }, "[axis_mapping]");
    CHECK(current_mapping() == nullptr);
    names_it([&] { return shard(x, misspelt); }, "[shard]");
    names_it([&] { return physical_axis_size("embed", misspelt); }, "[physical_axis_size]");
    names_it([&] { return round_axis_for_partitioning(Embed, misspelt); }, "[physical_axis_size]");
    names_it([&] { return physical_axis_name("embed", misspelt); }, "[physical_axis_name]");
    names_it([&] { return pspec_for_axis({"embed"}, misspelt); }, "[pspec_for_axis]");
  }
  // In a scope inside, around ops that it does not constrain: the error has the line of the scope,
  // and the mesh of the function around it.
  int inside = 0;
  auto enters = [&](const NamedArray& x) {
    inside = __LINE__ + 1;
    axis_mapping here(misspelt);
    return x + 1.;
  };
  const auto text = error_of([&] { named_jit(enters, {.mesh = grid})(x); });
  CAPTURE(text);
  CHECK(has(text, "[axis_mapping]"));
  CHECK(has(text, "mesh axis modle"));
  CHECK(has(text, line(inside)));
  CHECK(current_mapping() == nullptr);
  CHECK(current_mesh() == nullptr);
}

TEST_CASE("mistakes: without a mesh a mapping shards nothing, and strict raises") {
  const auto x = tokens();
  const auto expected = plus_one(x).floats();
  CHECK(named_jit(plus_one, {.axis_resources = misspelt})(x).floats() == expected);
  CHECK(named_jit(plus_one, {.axis_resources = Mapping{{"batch", std::nullopt}}, .strict = true})(x)
            .floats() == expected);
  raises([&] { return named_jit(plus_one, {.axis_resources = misspelt, .strict = true})(x); },
         {"[strict]", "no mesh", "{nobody: modle}", "use_mesh", "_mistakes_test.cpp"});
  raises(
      [&] { return named_jit(plus_one, {.in = Mappings::of_each({by_batch}), .strict = true})(x); },
      {"no mesh", "{batch: data}"});
  axis_mapping scope(by_batch);
  CHECK(named_jit(plus_one)(x).floats() == expected);
  raises([&] { return named_jit(plus_one, {.strict = true})(x); }, {"no mesh", "{batch: data}"});
  // Constraints and scopes inside raise as well.
  axis_mapping none{Mapping()};
  raises(
      [&] {
        return named_jit([](const NamedArray& x) { return shard(x + 1., misspelt); },
                         {.strict = true})(x);
      },
      {"no mesh", "{nobody: modle}"});
  auto scoped = [](const NamedArray& x) {
    axis_mapping inside(by_embed);
    return x + 1.;
  };
  raises([&] { return named_jit(scoped, {.strict = true})(x); }, {"no mesh", "{embed: data}"});
}

TEST_CASE("mistakes: two axes on one mesh axis raise with a source location, wherever they meet") {
  const auto x = tokens();
  auto check = [](auto f, const char* what, int at) {
    const auto text = error_of(f);
    CAPTURE(text);
    CHECK(has(text, what));
    CHECK(has(text, "; " + line(at)));
  };
  check([&] { return auto_sharded_under(both, x); }, "of tanh (batch=8, embed=12)",
        auto_sharded_line);
  auto pair = [](const NamedArray& x) { return std::pair{sum(x), std::vector{x, x + 1., sum(x)}}; };
  const auto out = Mappings::of_each({std::nullopt, both});
  check([&] { return named_jit(pair, {.mesh = grid, .out = out})(x); },
        "of result 1, array 0 (batch=8, embed=12)", __LINE__ - 1);
  auto inner = named_jit(plus_one, {.mesh = grid, .out = both});
  const int made = __LINE__ - 1;
  check([&] { return named_jit([=](const NamedArray& x) { return inner(x); }, {.mesh = grid})(x); },
        "of add (batch=8, embed=12)", made);
}

TEST_CASE(
    "mistakes: two axes of one array on one mesh axis "
    "name the array and its line, with a mesh or without") {
  const auto x = tokens();
  const int made = __LINE__ + 1;
  const auto y = tanh(x);
  auto check = [&] {
    const auto text = error_of([&] { return shard(y, both); });
    CAPTURE(text);
    CHECK(has(text, "[shard] axes batch and embed of tanh (batch=8, embed=12), created at " +
                        line(made)));
    CHECK(
        has(text, ", are both mapped to mesh axis data by the mapping {batch: data, embed: data}"));
    raises(
        [&] {
          return shard(std::pair{Embed.size * 1., y}, both);
        },
        {"axes batch and embed of tanh"});
    axis_mapping scope(both);
    raises([&] { return auto_sharded(y); }, {"axes batch and embed of tanh"});
    raises([&] { return auto_sharded(cumsum(x, "batch")); }, {"axes batch and embed of cumsum"});
    raises([&] { return jit([](const NamedArray& v) { return auto_sharded(v * 2.); })(x); },
           {"axes batch and embed of mul"});
  };
  check();
  use_mesh mesh(grid);
  check();

  struct Model {
    nn::Linear up;
  };
  auto model = Model{nn::Linear::init(Embed, Axis("mlp", 6), random::key(1))};
  auto run = [](const Model& m, const NamedArray& x) { return m.up(x); };
  const JitOptions conflicting{.axis_resources = Mapping{{"batch", "data"}, {"mlp", "data"}},
                               .in = Mapping{},
                               .out = Mapping{}};
  raises([&] { return named_jit(run, conflicting)(model, x); },
         {"axes batch and mlp of dot (batch=8, mlp=6)", "in up"});
}

TEST_CASE("mistakes: mappings that contradict themselves raise") {
  raises(
      [] {
        return Mapping{{"batch", "data"}, {"embed", "model"}, {"batch", "model"}};
      },
      {"[mapping] axis batch occurs twice", "_mistakes_test.cpp"});
  raises(
      [] {
        return Mapping{{"batch", {"data", "model", "data"}}};
      },
      {"[mapping] axis batch", "mesh axis data twice"});
  raises([] { return Mapping{{"", "data"}}; }, {"[mapping]", "an axis has no name"});
  raises([] { return Mapping{{"batch", ""}}; }, {"[mapping] axis batch", "without a name"});
  raises(
      [] {
        return Mapping{{"batch", {"data", ""}}};
      },
      {"[mapping] axis batch", "without a name"});
  auto entries = by_batch.entries();
  entries.push_back({"batch", std::nullopt});
  raises([&] { return Mapping::of(entries); }, {"axis batch occurs twice"});
  // Meshes and mappings cannot be modified after their checks.
  static_assert(
      std::is_same_v<decltype(grid.axes()), const std::vector<std::pair<std::string, int>>&>);
  static_assert(std::is_same_v<decltype(by_batch.entries()), const std::vector<Mapping::Entry>&>);
}

TEST_CASE("mistakes: there must be as many mappings as arguments and results") {
  const auto x = tokens();
  auto two = [](const NamedArray& a, const NamedArray& b) {
    return std::tuple{a + b, a, std::optional<NamedArray>()};
  };
  auto call = [&](JitOptions o) { return named_jit(two, std::move(o))(x, x); };
  const Mappings one = Mappings::of_each({by_batch}),
                 pair = Mappings::of_each({by_batch, by_embed}),
                 three = Mappings::of_each({by_batch, by_embed, {}});
  for (auto mesh : {std::optional<Mesh>(grid), std::optional<Mesh>()}) {
    raises([&] { return call({.mesh = mesh, .in = one}); },
           {"[named_jit] `in` has 1 mappings", "2 arguments", "_mistakes_test.cpp"});
    raises([&] { return call({.mesh = mesh, .in = three}); },
           {"`in` has 3 mappings", "2 arguments"});
    raises([&] { return call({.mesh = mesh, .in = Mappings::of_each({})}); },
           {"`in` has 0 mappings", "2 arguments"});
    // the last result is empty
    raises([&] { return call({.mesh = mesh, .out = pair}); },
           {"`out` has 2 mappings", "3 results"});
    raises([&] { return named_jit(two, {.mesh = mesh, .out = one}).plan(x, x); },
           {"`out` has 1 mappings", "3 results"});
    CHECK(std::get<0>(call({.mesh = mesh, .in = pair, .out = three})).floats() == (x + x).floats());
  }
  const JitOptions local{.mesh = grid, .in = one, .out = pair};
  raises([&] { return shard_map(plus_one, local)(x); }, {"`out` has 2 mappings", "1 results"});
  raises(
      [&] {
        return grad([&](const NamedArray& v) { return sum(shard_map(plus_one, local)(v)); })(x);
      },
      {"[shard_map] `out` has 2 mappings", "1 results"});
}

TEST_CASE(
    "mistakes: too few devices raise, where arrays are placed and after a step was compiled") {
  const auto x = tokens();
  const auto before = x.floats();
  auto step = named_jit(plus_one, {.donate = {0}, .mesh = grid, .axis_resources = by_batch});
  Devices eight(8);
  auto made = step(x + 0.);
  {
    Devices four(4);
    use_mesh mesh(grid);
    raises([&] { return shard(x, by_batch); },
           {"[shard] the mesh (data=4, model=2) has 8 devices, but there are 4", "set_devices(8)",
            "_mistakes_test.cpp"});
    CHECK(x.floats() == before);
    raises([&] { return step(made); }, {"8 devices, but there are 4"});
    CHECK(made.floats() == plus_one(x).floats());  // it was not donated
  }
  CHECK(step(made).floats() == plus_one(plus_one(x)).floats());
}

TEST_CASE("mistakes: arrays without a value raise") {
  const NamedArray none;
  for (bool on_mesh : {false, true}) {
    std::optional<use_mesh> mesh;
    if (on_mesh) mesh.emplace(grid);
    raises([&] { return shard(none, by_batch); },
           {"[shard]", "assign a value", "_mistakes_test.cpp"});
    axis_mapping scope(by_batch);
    raises([&] { return auto_sharded(none); }, {"[auto_sharded]", "assign a value"});
  }
  const JitOptions local{.mesh = grid, .axis_resources = by_batch};
  raises(
      [&] {
        return shard_map([&](const NamedArray&) { return psum(none, "data"); }, local)(tokens());
      },
      {"assign a value"});
  raises(
      [&] {
        return shard_map([&](const NamedArray&) { return all_gather(none, "batch", "data"); },
                         local)(tokens());
      },
      {"assign a value"});
}

TEST_CASE("mistakes: a link speed for an unknown mesh axis raises") {
  auto f = named_jit(plus_one,
                     {.mesh = grid, .speed = {.links = {{.axis = "dta", .bytes_per_s = 1e9}}}});
  raises([&] { return f.plan(tokens()); },
         {"no mesh axis dta", "data, model", "did you mean data"});
}

TEST_CASE("mistakes: a donated sharded array cannot be used again, in any way") {
  use_mesh mesh(grid);
  const auto x = tokens();
  auto step = named_jit(plus_one, {.donate = {0}, .axis_resources = by_batch});
  auto placed = shard(x + 0., by_batch), lent = placed;
  auto got = step(placed);
  CHECK(got.floats() == plus_one(x).floats());
  for (auto& donated : {placed, lent}) {
    raises([&] { return donated.floats(); },
           {"was donated to the call of jit at", "_mistakes_test.cpp"});
    raises([&] { return step(donated); }, {"was donated"});
    raises([&] { return shard(donated, by_embed).floats(); }, {"was donated"});
    raises([&] { return (donated + 1.).floats(); }, {"was donated"});
    raises([&] { return visualize_sharding(donated).empty() ? donated : donated.eval(); },
           {"was donated"});
  }
  CHECK(got.floats() == plus_one(x).floats());
}

TEST_CASE("mistakes: a captured array is not donated, and raises if another function donated it") {
  for (JitOptions options :
       {JitOptions(), JitOptions{.mesh = grid, .axis_resources = by_batch, .partition = true}}) {
    options.donate = {0};
    const auto x = tokens();
    const auto w = (x * 3.).eval();
    const auto adds_w = jit([w](const NamedArray& v) { return v * 2. + w; }, options);
    const auto expected = (x * 9.).eval(), three = (x * 3.).eval();
    for (int repeat = 0; repeat < 2; ++repeat) CHECK(difference(adds_w(w), expected, 1e-6) == "");
    CHECK(difference(w, three, 0) == "");
    jit(plus_one, options)(w);
    raises([&] { return adds_w(x + 0.); }, {"[jit] this array was donated to the call of jit at"});
  }
}

TEST_CASE("mistakes: arguments with another sharding or mesh are resharded as `in` specifies") {
  const auto x = tokens();
  const auto expected = plus_one(x).eval();
  const Mesh three{{{"data", 3}}};
  std::vector<NamedArray> given{x};
  for (auto& [mesh, mapping] :
       {std::pair{grid, by_embed}, {grid, by_batch}, {three, by_embed}, {three, Mapping{}}})
    given.push_back(named_jit([](const NamedArray& v) { return v + 0.; },
                              {.mesh = mesh, .axis_resources = mapping})(x));
  for (bool donate : {false, true})
    for (auto& v : given) {
      auto f = named_jit(
          plus_one,
          {.donate = donate ? std::vector{0} : std::vector<int>{}, .mesh = grid, .in = by_batch});
      CAPTURE(donate);
      CAPTURE(&v - given.data());
      CHECK(difference(f(v), expected, 0) == "");
      CHECK(f.report().argument_bytes == x.nbytes() / 4);
    }
}

TEST_CASE("mistakes: a call that fails midway leaves donated arrays intact, or gone for good") {
  if (!owns_operator_new) return;
  const auto x = tokens();
  auto f = [](const NamedArray& w, const NamedArray& x) { return w * 0.5 + sum(x * w, Embed); };
  const std::vector<JitOptions> ways{
      {.backend = "reference"}, {.backend = "cpu"}, {.mesh = grid, .axis_resources = by_batch}};
  for (auto options : ways) {
    CAPTURE(options.backend);
    options.donate = {0};
    const auto step = options.mesh ? named_jit(f, options) : jit(f, options);
    const auto before = x.floats(),
               expected = step((x + 0.).eval(), x).floats();  // compiles the step
    int lost = 0;
    for (long n = 0;; ++n) {
      REQUIRE(n < 10000);
      auto w = (x + 0.).eval();
      bool failed = false;
      {
        FailingAllocation one(n);
        error_of([&] { return step(w, x); });
        failed = one.happened();
      }
      if (!failed) break;
      std::vector<float> now;
      const auto text = error_of([&] { now = w.floats(); });
      CHECK((text == "" ? now == before : has(text, "was donated")));
      lost += text != "";
    }
    if (options.backend == "reference")
      CHECK(lost > 0);  // the reference backend allocates while it runs
    CHECK(step((x + 0.).eval(), x).floats() == expected);
  }
}

TEST_CASE("sharding: a named_jit inside another one keeps its own options") {
  const Mesh mesh{{{"data", 4}}};
  auto x = tokens();
  auto outer = [&](JitOptions inner) {
    return named_jit(
               [=](const NamedArray& a) {
                 return named_jit([](const NamedArray& b) { return b * 2.f; }, inner)(a);
               },
               {.mesh = mesh, .in = Mappings(by_batch), .out = Mappings(by_batch)})
        .plan(x);
  };
  CHECK(outer({}).sent_bytes == 0);
  CHECK(outer({.out = Mappings(by_batch)}).sent_bytes == 0);
  raises([&] { return outer({.in = Mappings(Mapping{{"embed", "dat"}})}); }, {"dat"});
  raises([&] { return outer({.out = Mappings(both)}); }, {"batch"});
  raises([&] { return outer({.in = Mappings::of_each({by_batch, by_batch})}); }, {"2"});
  raises(
      [&] {
        return outer({.mesh = Mesh{{{"data", 2}}}});
      },
      {"mesh (data=2) differs from that of the enclosing function (data=4)"});
}

TEST_CASE("mistakes: reports name the op in the user's code, not its parts by blocks") {
  const Axis Vocab{"vocab", 64};
  const Mapping by_vocab{{"vocab", "data"}};
  const JitOptions strict{.mesh = grid, .axis_resources = by_vocab, .strict = true};
  const auto x = random::normal(random::key(3), {Vocab});
  // Blocks communicate few bytes, and there is no unrequested gather.
  auto gathers = [&](auto f, const std::string& op, const std::string& array,
                     const std::string& axes) {
    auto all = named_jit(f, strict).plan(x).collectives;
    auto gather =
        std::find_if(all.begin(), all.end(), [](auto& c) { return c.kind == "all-gather"; });
    REQUIRE(gather != all.end());
    CHECK(gather->cause == op);
    CHECK(gather->array == array);
    CHECK(gather->axes == axes);
    CHECK(gather->asked == "blocks");
    CHECK(has(gather->where, "_mistakes_test.cpp"));
  };
  gathers([](const NamedArray& x) { return cumsum(x, "vocab"); }, "cumsum", "part of cumsum",
          "((blocks of vocab)=4)");
  gathers([](const NamedArray& x) { return cumprod(x, "vocab"); }, "cumprod", "part of cumprod",
          "((blocks of vocab)=4)");
  gathers([](const NamedArray& x) { return top_k(x, "vocab", 2).first; }, "top_k", "part of top_k",
          "(vocab=8)");
  gathers([](const NamedArray& x) { return top_k(x, "vocab", 2); }, "top_k",
          "part of top_k, part of top_k", "(vocab=8), (vocab=8)");
  // A parameter that is replicated in the computation may be gathered, and so may results of its
  // blocks.
  auto ordered = [](const NamedArray& w, const NamedArray& x) {
    axis_mapping scope(by_batch);
    return grad([&](const NamedArray& w) { return sum(square(cumsum(w, "vocab")) * x); })(w);
  };
  auto options = strict;
  options.in = Mappings::of_each({by_vocab, by_batch});
  options.strict = false;
  auto r = named_jit(ordered, options).plan(x, random::normal(random::key(4), {Batch, Vocab}));
  CAPTURE(r.explain);
  auto gather = std::find_if(r.collectives.begin(), r.collectives.end(),
                             [](auto& c) { return c.kind == "all-gather"; });
  REQUIRE(gather != r.collectives.end());
  CHECK(gather->array == "part of cumsum");
  CHECK(gather->asked == "parameter");
}

TEST_CASE(
    "mistakes: strict gathers a differentiated parameter, "
    "even if stop_gradient hides it from the loss") {
  struct Adapted {
    NamedArray base, a, b;
  };
  const Axis Wide{"embed", 64}, Hidden{"mlp", 128}, Rank{"rank", 4}, Rows{"batch", 256};
  const auto model = eval_shape([&] {
    return Adapted{zeros({Wide, Hidden}), zeros({Wide, Rank}), zeros({Rank, Hidden})};
  });
  const auto x = eval_shape([&] { return zeros({Rows, Wide}); });
  const Mapping stored{{"embed", "data"}}, inside{{"batch", "data"}};
  auto step = [&](const Adapted& m, const NamedArray& x) {
    axis_mapping scope(inside);
    return grad([&](const Adapted& m) {
      return mean(square(dot(x, stop_gradient(m.base) + dot(m.a, m.b, "rank"), "embed"))).scalar();
    })(m);
  };
  const auto r = named_jit(step, {.mesh = grid,
                                  .axis_resources = stored,
                                  .in = Mappings::of_each({stored, inside}),
                                  .strict = true})
                     .plan(model, x);
  CAPTURE(r.explain);
  CHECK(has(r.explain, "gradient of a and b"));
  CHECK(!has(r.explain, "gradient of base"));
}

TEST_CASE("mistakes: strict gathers a frozen parameter as any parameter") {
  struct Adapter {
    NamedArray a, b;
  };
  struct Tuned {
    Frozen<NamedArray> base;
    Adapter lora;
  };
  struct Named {
    NamedArray base;
    Adapter lora;
  };
  const Axis Wide{"embed", 64}, Hidden{"mlp", 128}, Rank{"rank", 4}, Rows{"batch", 256};
  const Adapter adapter = eval_shape([&] {
    return Adapter{zeros({Wide, Rank}), zeros({Rank, Hidden})};
  });
  const auto base = eval_shape([&] { return zeros({Wide, Hidden}); });
  const auto x = eval_shape([&] { return zeros({Rows, Wide}); });
  const Mapping stored{{"embed", "data"}}, inside{{"batch", "data"}};
  const JitOptions options{.mesh = grid,
                           .axis_resources = stored,
                           .in = Mappings::of_each({stored, inside}),
                           .strict = true};
  auto loss = [&](const NamedArray& base, const Adapter& lora, const NamedArray& x) {
    axis_mapping scope(inside);
    auto hidden = tanh(dot(x, base, "embed"));
    return mean(square(hidden + dot(dot(x, lora.a, "embed"), lora.b, "rank"))).scalar();
  };
  // A field of type Frozen, and a leaf that the filter of `grad` does not select.
  auto frozen = [&](const Tuned& m, const NamedArray& x) {
    return grad([&](const Tuned& m) { return loss(*m.base, m.lora, x); })(m);
  };
  auto filtered = [&](const Named& m, const NamedArray& x) {
    return grad([&](const Named& m) { return loss(m.base, m.lora, x); }, "lora")(m);
  };
  auto gathers_base = [](const JitReport& r) {
    CAPTURE(r.explain);
    auto gather = std::find_if(r.collectives.begin(), r.collectives.end(), [](auto& c) {
      return c.kind == "all-gather" && has(c.array, "base");
    });
    REQUIRE(gather != r.collectives.end());
    CHECK(gather->asked == "parameter");
  };
  gathers_base(named_jit(frozen, options).plan(Tuned{{base}, adapter}, x));
  gathers_base(named_jit(filtered, options).plan(Named{base, adapter}, x));
}
