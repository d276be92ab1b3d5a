// Sharded initialization: an init on a mesh computes only the part of each device, with the same
// values on every mesh.
#include <doctest/doctest.h>

#include <algorithm>

#include "examples/models/gpt2.h"

using namespace haliax;
using Model = models::GPT2LMHeadModel;

namespace {

const models::GPT2Config config{
    .vocab_size = 13, .n_positions = 6, .n_embd = 20, .n_layer = 3, .n_head = 5};
Model make() { return Model::init(config, random::key(5)); }

// Returns the bytes of a tree on the first device, which has the largest blocks.
template <class T> std::int64_t local_bytes(const T& tree, const Mapping& m, const Mesh& mesh) {
  std::int64_t n = 0;
  use_mesh here(mesh);
  for (auto& leaf : flatten(tree)) {
    if (leaf.empty()) continue;
    std::int64_t mine = bytes_of(leaf.dtype());
    for (auto& a : leaf.axes())
      mine *= round_axis_for_partitioning(a, m).size / physical_axis_size(a, m).value_or(1);
    n += mine;
  }
  return n;
}

}  // namespace

TEST_CASE(
    "sharded init: bitwise identical on every mesh, "
    "even and uneven, with only its part on each device") {
  const auto expected = flatten(make());
  const Mapping ways[] = {{{"embed", "data"}},
                          {{"vocab", "data"}, {"mlp", {"data", "model"}}},
                          {{"mlp", "model"}, {"heads", "model"}, {"embed", "data"}},
                          {{"layers", "data"}, {"head_size", "model"}},
                          {}};
  for (auto& mesh : {Mesh{{{"data", 2}, {"model", 1}}}, Mesh{{{"data", 3}, {"model", 2}}},
                     Mesh{{{"data", 2}, {"model", 4}}}})
    for (auto& m : ways) {
      CAPTURE(to_string(mesh));
      CAPTURE(to_string(m));
      auto init = named_jit(make, {.mesh = mesh, .axis_resources = m});
      auto model = init();
      const auto got = flatten(model);
      REQUIRE(got.size() == expected.size());
      for (std::size_t k = 0; k < got.size(); ++k) {
        CHECK(got[k].bytes() == expected[k].bytes());
        CHECK(placement(got[k])->mapping == m);
      }
      CHECK(init.report().sent_bytes == 0);

      // The optimizer state too, which depends on shapes only.
      auto optimizer = optim::adamw();
      auto init_state = named_jit([=](const Model& x) { return optimizer.init(x); },
                                  {.mesh = mesh, .axis_resources = m});
      auto state = init_state(model);
      CHECK(init_state.report().sent_bytes == 0);
      CHECK(init_state.report().argument_bytes == local_bytes(model, m, mesh));
    }
}

TEST_CASE(
    "sharded init: planned bytes are the shard of one device, "
    "on meshes far larger than this machine") {
  // 1.5 billion parameters: 6.2 GB in f32.
  const models::GPT2Config xl{.n_positions = 1024, .n_embd = 1600, .n_layer = 48, .n_head = 25};
  const Mapping params{{"embed", "data"}, {"mlp", "model"}};
  auto init = [=] { return Model::init(xl, random::key(0)); };
  const auto shapes = eval_shape(init);
  for (auto& mesh : {Mesh{{{"data", 8}, {"model", 1}}}, Mesh{{{"data", 32}, {"model", 2}}}}) {
    auto planned = named_jit(init, {.mesh = mesh, .axis_resources = params}).plan();
    const auto mine = local_bytes(shapes, params, mesh);
    CHECK(planned.sent_bytes == 0);
    CHECK(planned.peak_bytes >= mine);
    CHECK(planned.peak_bytes < 1.02 * double(mine));
    auto optimizer = optim::adamw();
    auto state = named_jit([=](const Model& m) { return optimizer.init(m); },
                           {.mesh = mesh, .axis_resources = params})
                     .plan(shapes);
    CHECK(state.argument_bytes == mine);
    CHECK(state.peak_bytes >= 2 * mine);
    CHECK(state.peak_bytes < 2.02 * double(mine));
  }
}

TEST_CASE("sharded init: every kind of draw, and draws position by position") {
  const Axis A{"a", 10}, B{"b", 7};
  auto key = random::key(11);
  auto draws = [=] {
    return std::vector{
        random::normal(key, {A, B}),
        random::uniform(key, {A, B}, -2., 7.25),
        random::truncated_normal(key, {B, A}, -2., 2.),
        random::bernoulli(key, {A, B}, 0.3),
        random::randint(key, {A, B}, -5, 1000),
        random::gumbel(key, {A, B}),
        random::bits(key, {A, B}, DType::u64),
        random::generate_sharded(
            [](const Key& k, const AxisSpec& axes) { return random::normal(k, axes); }, A)(key,
                                                                                           {A, B}),
        random::generate_sharded(
            [](const Key& k, const AxisSpec& axes) { return random::uniform(k, axes); }, B)(
            key, {A, B})};
  };
  const auto expected = draws();
  for (auto& m : {Mapping{{"a", "data"}}, Mapping{{"b", "model"}},
                  Mapping{{"a", {"model", "data"}}}, Mapping{{"a", "model"}, {"b", "data"}}}) {
    CAPTURE(to_string(m));
    auto sharded =
        named_jit(draws, {.mesh = Mesh{{{"data", 2}, {"model", 3}}}, .axis_resources = m});
    const auto got = sharded();
    for (std::size_t k = 0; k < got.size(); ++k) {
      CAPTURE(k);
      CHECK(got[k].bytes() == expected[k].bytes());
    }
    CHECK(sharded.report().sent_bytes == 0);
  }
  // The values of generate_sharded: each position has a key of its own.
  auto keys = random::split(key, A);
  CHECK(expected[7].floats() ==
        vmap([&](const Key& k) { return random::normal(k, B); }, A)(keys).floats());
}
