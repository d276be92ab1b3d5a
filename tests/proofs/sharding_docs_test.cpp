// The code of docs/how-to/parallelism.md about layouts, compiled and run.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <regex>

#include <haliax/haliax.h>

#include "examples/sharding/script.h"
#include "support/golden_dir.h"
using namespace haliax;

namespace {

const Axis Batch("batch", 8), Embed("embed", 16), Mlp("mlp", 32);
struct Model {
  nn::Linear up, down;
  static Model init(const Key& key) {
    auto [k_up, k_down] = random::split<2>(key);
    return {nn::Linear::init(Embed, Mlp, k_up), nn::Linear::init(Mlp, Embed, k_down)};
  }
  NamedArray operator()(const NamedArray& x) const { return down(nn::gelu(up(x))); }
};

Mesh mesh{{{"data", -1}, {"model", 2}}};  // -1: as many as there are devices for
Mapping params{{"embed", "data"}, {"mlp", "model"}};
Mapping compute{{"batch", "data"}, {"mlp", "model"}};

// x, y (embed)
NamedArray compute_loss(const Model& model, const NamedArray& x, const NamedArray& y) {
  axis_mapping inside(compute);
  return mean(square(model(x) - y));
}
NamedArray train_batch_loss(const Model& model, const NamedArray& x, const NamedArray& y) {
  // batch stays sharded: vmap does not hide the axis from mappings
  auto per_example = vmap(compute_loss, "batch")(model, x, y);
  return mean(per_example, "batch");
}

}  // namespace

TEST_CASE("docs/how-to/parallelism.md: the programs about meshes and layouts run") {
  auto optimizer = optim::adamw({.learning_rate = 1e-2});
  using State = decltype(optimizer.init(std::declval<const Model&>()));
  const auto input = random::normal(random::key(1), {Batch, Embed}), target = roll(input, 1, Embed);

  auto init = named_jit([=](const Key& key) { return Model::init(key); },
                        {.mesh = mesh, .axis_resources = params});
  auto model = init(random::key(0));
  auto init_state = named_jit([=](const Model& m) { return optimizer.init(m); },
                              {.mesh = mesh, .axis_resources = params});
  auto state = init_state(model);
  CHECK(placement(model.up.weight)->mapping == params);

  auto train_step = [=](const Model& m, const State& s, const NamedArray& x, const NamedArray& y) {
    auto [loss, grads] = value_and_grad(train_batch_loss)(m, x, y);
    auto [updates, next] = optimizer.update(grads, s, m);
    return std::tuple(optim::apply_updates(m, updates), next, loss);
  };
  auto step = named_jit(train_step, {.donate = {0, 1}, .mesh = mesh, .axis_resources = params});
  std::vector<double> losses;
  for (int i = 0; i < 3; ++i) {
    NamedArray loss;
    std::tie(model, state, loss) = step(model, state, input, target);
    losses.push_back(loss.item());
  }
  CHECK(losses[2] < losses[0]);
  CHECK(step.report().traces == 1);

  // a table, and a picture of it
  std::string held = visualize_sharding({Embed, Mlp}, params, mesh, "held.svg");
  // a line for each array of a tree
  std::string table = visualize_shardings(model, params, mesh);
  CHECK(std::remove("held.svg") == 0);
  CHECK(held.find("embed 12..15  6          7") != held.npos);
  CHECK(table.find("up.weight") != table.npos);

  auto shapes = eval_shape([&] { return Model::init(random::key(0)); });
  auto far =
      named_jit([=](const Model& m) { return optimizer.init(m); },
                {.mesh = Mesh{{{"data", 2048}}}, .axis_resources = Mapping{{"embed", "data"}}});
  std::int64_t bytes = far.plan(shapes).peak_bytes;  // on each device
  CHECK(bytes < 2 * model.up.weight.nbytes());

  auto hidden = input;
  use_mesh here(mesh);
  axis_mapping scope(compute);
  auto replicated = shard(hidden, Mapping{});  // a constraint; it does not constrain the gradient
  auto sharded = auto_sharded(hidden);         // by the mapping in scope
  CHECK(placement(replicated)->mapping == Mapping{});
  CHECK(sharded.floats() == input.floats());

  auto normalized = shard_map(
      [](const NamedArray& part) {  // (batch / 4, embed)
        return part / sqrt(psum(sum(part * part), "data"));
      },
      {.mesh = Mesh{{{"data", 4}}}, .axis_resources = Mapping{{"batch", "data"}}});
  CHECK(sum(square(normalized(input))).item() == doctest::Approx(1));
}

namespace {

// Returns the table of collectives in a text without the line numbers of the code.
std::string table_in(std::istream& in) {
  std::string out;
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("collective  ") || (!out.empty() && line.find("  ") != line.npos))
      out += line + "\n";
    else if (!out.empty())
      break;
  return std::regex_replace(std::regex_replace(out, std::regex(":\\d+"), ":N"), std::regex(" +"),
                            " ");
}

}  // namespace

TEST_CASE("docs/how-to/parallelism.md: the table of collectives is the output of explain") {
  // The sizes of examples/sharding.
  const sharding::Sizes sizes{
      {.vocab_size = 256, .n_positions = 32, .n_embd = 64, .n_layer = 2, .n_head = 4},
      Axis("batch", 16)};
  std::istringstream printed(sharding::plan(sharding::fully_sharded(), sizes).explain);
  std::ifstream page(golden_dir() + "/../../docs/how-to/parallelism.md");
  const auto expected = table_in(printed);
  CHECK(expected.find(" requested by\n") != expected.npos);
  CHECK(table_in(page) == expected);
}

// Fully sharded on 8 devices, with f32 parameters and bf16 computation: bytes communicated, and the
// difference from one device.
TEST_CASE("docs/how-to/parallelism.md: reduce_dtype doubles bytes and removes the error of sums") {
  const Axis Rows("batch", 64), Narrow("embed", 64), Wide("mlp", 256);
  auto [k_up, k_down] = random::split<2>(random::key(0));
  const Model net{nn::Linear::init(Narrow, Wide, k_up), nn::Linear::init(Wide, Narrow, k_down)};
  auto x = random::normal(random::key(3), {Rows, Narrow}).eval(),
       y = random::normal(random::key(4), {Rows, Narrow}).eval();
  const auto optimizer = optim::adamw({.learning_rate = 1e-3});
  const Mapping weights{{"embed", "data"}}, batch{{"batch", "data"}};
  struct Ran {
    double sent;
    NamedArray gradient, weight;
  };
  auto run = [&](int devices, const char* spec) {
    const Policy policy(spec);
    auto slope = grad([=](const Model& m, const NamedArray& u, const NamedArray& v) {
      return mean(
          square(policy.cast_to_compute(m)(policy.cast_to_compute(u)).astype(DType::f32) - v));
    });
    JitOptions o{.mesh = Mesh{{{"data", devices}}},
                 .axis_resources = batch,
                 .in = Mappings({weights, batch, batch}),
                 .out = Mappings(weights),
                 .reduce_dtype = policy.reduce};
    auto once = named_jit(slope, o);
    auto g = once(net, x, y);
    o.in = Mappings({weights, weights, batch, batch});
    auto step = named_jit(
        [=](const Model& m, const auto& s, const NamedArray& u, const NamedArray& v) {
          auto [updates, next] = optimizer.update(slope(m, u, v), s, m);
          return std::pair(optim::apply_updates(m, updates), next);
        },
        o);
    auto m = net;
    auto s = optimizer.init(net);
    for (int i = 0; i < 50; ++i) std::tie(m, s) = step(m, s, x, y);
    return Ran{once.report().sent_bytes, g.up.weight, m.up.weight};
  };
  auto error = [](const NamedArray& a, const NamedArray& b) {
    return std::sqrt(sum(square(a - b)).item() / sum(square(b)).item());
  };
  auto one = run(1, "p=f32,c=bf16"), narrow = run(8, "p=f32,c=bf16"),
       wide = run(8, "p=f32,c=bf16,r=f32");
  CHECK(narrow.sent == 115808);
  CHECK(wide.sent == 146160);
  CHECK(error(narrow.gradient, one.gradient) == doctest::Approx(2.6e-3).epsilon(0.1));
  CHECK(error(wide.gradient, one.gradient) < 1e-5);
  CHECK(error(narrow.weight, one.weight) == doctest::Approx(7.1e-4).epsilon(0.2));
  CHECK(error(wide.weight, one.weight) < 1e-4);

  const auto input = random::normal(random::key(1), {Batch, Embed}), target = roll(input, 1, Embed);
  const Model model = Model::init(random::key(0));
  use_mesh on(mesh);
  Policy policy("p=f32,c=bf16,r=f32");
  auto narrow_loss = [=](const Model& m, const NamedArray& x, const NamedArray& y) {
    return train_batch_loss(policy.cast_to_compute(m), policy.cast_to_compute(x), y);
  };
  auto gradients = named_jit([=](const Model& m, const NamedArray& x,
                                 const NamedArray& y) { return grad(narrow_loss)(m, x, y); },
                             {.axis_resources = compute, .reduce_dtype = policy.reduce});
  CHECK(gradients(model, input, target).up.weight.dtype() == DType::f32);
}

TEST_CASE("docs/how-to/parallelism.md: zigzag orders positions for context parallelism") {
  const Axis Pos("pos", 16), KeyPos = Pos.alias("key_pos");
  auto ids = arange(Pos) * 10;
  auto order = nn::zigzag(Pos, 4);  // (pos): 0, 1, 14, 15, 2, 3, ... of 16
  auto text = take(ids, "pos", order);
  auto mask = broadcast_axis(order, KeyPos) >= rename(order, Pos, KeyPos);  // (pos, key_pos)
  CHECK(text.doubles()[2] == 140);
  CHECK(sum(mask).item() == 16 * 17 / 2);
}
