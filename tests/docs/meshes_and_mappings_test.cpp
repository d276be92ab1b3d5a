// The code of docs/concepts/meshes-and-mappings.md, compiled and run.
#include <doctest/doctest.h>

#include <cmath>
#include <iostream>
#include <regex>
#include <thread>

#include "docs/printed.h"
#include "haliax/haliax.h"
#include "support/raises.h"

using namespace haliax;

namespace {

Axis Batch{"batch", 32}, Embed{"embed", 6}, Mlp{"mlp", 8};

struct Model {
  nn::Linear up, down;
  static Model init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::Linear::init(Embed, Mlp, k_up, {.use_bias = false}),
            nn::Linear::init(Mlp, Embed, k_down, {.use_bias = false})};
  }
  NamedArray operator()(const NamedArray& x) const {
    auto hidden = nn::gelu(up(x));  // (batch, mlp)
    return down(hidden);            // (batch, embed)
  }
};

Mesh mesh{{{"data", 2}, {"model", 2}}};                // 4 devices
Mapping params{{"embed", "data"}, {"mlp", "model"}};   // shards the parameters
Mapping compute{{"batch", "data"}, {"mlp", "model"}};  // shards the computation

NamedArray example_loss(const Model& m, const NamedArray& x) {  // x (embed)
  axis_mapping inside(compute);                                 // replaces params in this function
  return mean(square(m(x) - x));
}
NamedArray batch_loss(const Model& m, const NamedArray& x) {  // x (batch, embed)
  return mean(vmap(example_loss, "batch")(m, x), "batch");
}

// The text with runs of spaces collapsed and source locations replaced, as tables depend on both.
std::string words(const std::string& text) {
  auto out = std::regex_replace(text, std::regex("[a-z_]+\\.cpp:\\d+"), "FILE");
  return std::regex_replace(out, std::regex(" +"), " ");
}

}  // namespace

TEST_CASE("meshes: a model without sharding code runs on a 2 x 2 mesh") {
  Printed out;
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto init = named_jit(Model::init, {.mesh = mesh, .axis_resources = params});
  auto model = init(random::key(0));  // each device initializes only its own shards

  auto apply = named_jit([](const Model& m, const NamedArray& x) { return m(x); },
                         {.mesh = mesh, .axis_resources = compute});
  auto y = apply(model, x);

  out.start();
  std::cout << *placement(model.up.weight) << "\n";
  std::cout << *placement(y) << "\n";
  CHECK(out.text() ==
        "{embed: data, mlp: model} on Mesh(data=2, model=2)\n"
        "{batch: data, mlp: model} on Mesh(data=2, model=2)");
  auto one = Model::init(random::key(0))(x).floats(), four = y.floats();
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(one[i] == doctest::Approx(four[i]));

  out.start();
  std::cout << explain(apply);
  auto printed = words(out.text());
  CHECK(printed.starts_with(words(
      R"(on a mesh of data=2, model=2 (4 devices), for each device:

collective  over   bytes  times  array                                  for                      requested by
all-gather  data   96 B   1      up.weight (mlp=8, embed=6) and 1 more  dot; model.cpp:9, in up  parameter
all-reduce  model  384 B  1      dot (batch=32, embed=6)                dot; model.cpp:10, in down
all-gather: 1 call, 96 B
all-reduce: 1 call, 384 B
total: 2 calls, 480 B communicated)")));
}

TEST_CASE("meshes: sharded and replicated axes, as tables") {
  Printed out;
  out.start();
  std::cout << visualize_sharding({Mlp, Embed}, params, mesh);
  CHECK(out.text() ==
        "(mlp=8, embed=6) by {mlp: model, embed: data} on the mesh data=2, model=2\n"
        "          embed 0..2  embed 3..5\n"
        "mlp 0..3  0           2\n"
        "mlp 4..7  1           3\n"
        "each device holds (mlp=4, embed=3)");

  out.start();
  std::cout << visualize_sharding({Mlp, Embed}, compute, mesh);
  CHECK(out.text() ==
        "(mlp=8, embed=6) by {mlp: model} on the mesh data=2, model=2\n"
        "mlp 0..3  0 2\n"
        "mlp 4..7  1 3\n"
        "each device holds (mlp=4, embed=6)");

  auto model = Model::init(random::key(0));
  out.start();
  std::cout << visualize_shardings(model, params, mesh);
  CHECK(
      words(out.text()) ==
      words(
          R"(up.weight    (mlp=8, embed=6)  mlp by model, embed by data       192 B        48 B a device
down.weight  (embed=6, mlp=8)  embed by data, mlp by model       192 B        48 B a device
all                                                              384 B        96 B a device)"));
}

TEST_CASE("meshes: partial sums commute with linear ops, and a constraint completes them") {
  Printed out;
  auto x = random::normal(random::key(1), {Batch, Embed});
  auto total = [](const NamedArray& x) { return sum(x, "batch") * 0.5; };  // (embed)

  auto replicated = named_jit(total, {.mesh = mesh, .axis_resources = compute});
  auto sharded = named_jit(total, {.mesh = mesh, .axis_resources = compute, .out = params});
  replicated(x);
  sharded(x);

  out.start();
  for (auto& f : {replicated, sharded})
    for (auto& c : f.report().collectives)
      std::cout << c.kind << " over " << c.over << ", of " << c.array << " " << c.axes << ": "
                << c.bytes << " bytes\n";
  CHECK(out.text() ==
        "all-reduce over data, of mul (embed=6): 24 bytes\n"
        "reduce-scatter over data, of mul (embed=6): 12 bytes");

  // A contraction is constrained where it is written, so its sum is completed there.
  auto early =
      named_jit([](const NamedArray& v, const NamedArray& w) { return dot(v, w, "batch") * 0.5; },
                {.mesh = mesh, .axis_resources = compute});
  early(x, random::normal(random::key(2), Batch));
  REQUIRE(early.report().collectives.size() == 1);
  CHECK(early.report().collectives[0].array == "dot");
}

TEST_CASE("meshes: constraints by hand, scopes and threads") {
  auto hidden = random::normal(random::key(1), {Batch, Mlp});
  auto f = [](const NamedArray& hidden) {
    auto replicated = shard(hidden, Mapping{});          // a full copy on every device
    auto by_batch = shard(hidden, {{"batch", "data"}});  // another mapping for this value
    auto by_scope = auto_sharded(hidden);                // the mapping in scope
    return replicated + by_batch + by_scope;
  };
  auto g = named_jit(f, {.mesh = mesh, .axis_resources = compute});
  CHECK(sum(g(hidden) - hidden * 3.).item() == doctest::Approx(0));

  Printed out;
  use_mesh on(mesh);
  axis_mapping by(compute);
  out.start();
  std::cout << *current_mesh() << " " << *current_mapping() << "\n";
  CHECK(out.text() == "Mesh(data=2, model=2) {batch: data, mlp: model}");
  std::string in_scope;
  bool bare = false;
  std::thread worker(in_scopes([&] { in_scope = to_string(*current_mapping()); }));
  worker.join();
  std::thread([&] { bare = current_mapping() == nullptr; }).join();
  CHECK(in_scope == "{batch: data, mlp: model}");
  CHECK(bare);

  auto placed = shard(hidden);  // outside of a traced function: places the array on the mesh
  CHECK(placement(placed)->mapping == compute);
  CHECK(placement(auto_sharded(hidden)) == nullptr);
  CHECK(pspec_for_axis({"batch", "embed", "mlp"}) ==
        pspec_for_axis({"batch", "embed", "mlp"}, compute));
  CHECK(*physical_axis_size("mlp") == 2);
  CHECK(round_axis_for_partitioning(Mlp.resize(7)).size == 8);
}

TEST_CASE("meshes: parameters and computation have a mapping each") {
  auto optimizer = optim::sgd({.learning_rate = 0.1});
  using State = optim::State<optim::Sgd, Model>;
  auto train_step = [=](const Model& m, const State& s, const NamedArray& x) {
    auto [loss, grads] = value_and_grad(batch_loss)(m, x);
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::tuple(optim::apply_updates(m, updates), next, loss);
  };
  auto step = named_jit(train_step, {.mesh = mesh, .axis_resources = params});

  auto x = random::normal(random::key(1), {Batch, Embed});
  auto model = Model::init(random::key(0));
  auto [next, state, loss] = step(model, optimizer.init(model), x);
  CHECK(placement(next.up.weight)->mapping == params);
  CHECK(loss.item() == doctest::Approx(batch_loss(model, x).item()));

  auto shapes = eval_shape(Model::init, random::key(0));
  auto far = named_jit(train_step,
                       {.mesh = Mesh{{{"data", 256}, {"model", 8}}}, .axis_resources = params});
  auto report = far.plan(shapes, optimizer.init(shapes), x);       // runs nothing
  std::int64_t bytes = report.argument_bytes + report.peak_bytes;  // on each device
  CHECK(bytes > 0);
  CHECK(report.sent_bytes > 0);
}

TEST_CASE("meshes: blocks may be uneven") {
  Printed out;
  out.start();
  std::cout << visualize_sharding(Embed.resize(7), {{"embed", "data"}}, mesh);
  CHECK(out.text() ==
        "(embed=7) by {embed: data} on the mesh data=2, model=2\n"
        "embed 0..3  0 1\n"
        "embed 4..6  2 3\n"
        "each device holds (embed=4)");
}

TEST_CASE("meshes: mistakes raise where they are written") {
  auto x = zeros({Batch, Embed});
  raises(
      [&] {
        return shard(x, {{"batch", "data"}, {"embed", "data"}});
      },
      {"[shard]", "batch and embed", "mesh axis data"});
  use_mesh on(mesh);
  raises(
      [] {
        axis_mapping by({{"batch", "dta"}});
        return 0;
      },
      {"[axis_mapping]", "did you mean data?"});
  raises(
      [&] {
        return named_jit([](const NamedArray& v) { return v; },
                         {.mesh = Mesh{{{"data", 64}}}, .axis_resources = Mapping{}})(x);
      },
      {"[named_jit]", "64 devices"});
}
