// Names of Haliax for shardings, compiled and run for docs/get-started/from-haliax.md: mesh axes,
// merged mappings, and the shardings of axes and trees.
#include <doctest/doctest.h>

#include "haliax/haliax.h"
#include "support/devices.h"
#include "support/raises.h"

using namespace haliax;

namespace {

const Axis Batch{"batch", 8}, Embed{"embed", 12}, Mlp{"mlp", 6};
const Mesh grid{{{"data", 4}, {"model", 2}}};

struct Layer {
  NamedArray up, down;
  std::optional<NamedArray> bias;
};
Layer layer() {
  return {random::normal(random::key(1), {Embed, Mlp}).eval(),
          random::normal(random::key(2), {Mlp, Embed}).eval(),
          {}};
}

}  // namespace

TEST_CASE("sharding names: mesh axes, scopes and trees of Haliax") {
  Devices eight(8);
  const Mesh mesh{{{ResourceAxis::DATA, -1}, {ResourceAxis::MODEL, 2}}};
  CHECK(mesh == grid);
  CHECK(std::string(ResourceAxis::REPLICA) == "replica");
  CHECK(std::string(ResourceAxis::CONTEXT) == "context");
  auto model = layer();
  auto x = model.up;
  const Mapping m{{"embed", ResourceAxis::DATA}};
  {
    set_mesh on(mesh);
    CHECK(*current_mesh() == grid);
    axis_mapping scope(m);
    CHECK(*current_thread_local_mapping() == m);
    axis_mapping inner(Mapping{{"mlp", "model"}}, {.merge = true});
    CHECK(*current_mapping() == Mapping{{"embed", "data"}, {"mlp", "model"}});
    CHECK(sharding_for_axis({Embed, Mlp}).spec == pspec_for_axis({Embed, Mlp}));
    CHECK(to_string(sharding_for_axis({Embed, Mlp}, m)) ==
          "P(data, None) on Mesh(data=4, model=2)");
  }
  CHECK(*placement(shard(model, m, mesh).down) == Placement{mesh, m});
  CHECK(*placement(shard(x, m, mesh)) == Placement{mesh, m});
  CHECK(*placement(shard_with_axis_mapping(model, m, mesh).up) == Placement{mesh, m});
  CHECK(sharding_for_axis({Embed, Mlp}, m, mesh) == NamedSharding{mesh, {{{"data"}, {}}}});
  CHECK(pspec_for(model, m)[1] == LeafPspec{"down", {{{}, {"data"}}}});
  CHECK(infer_resource_partitions(model, m, mesh)[1].sharding.mesh == mesh);
  auto table = visualize_shardings(shard(model, m, mesh));
  CHECK(table == visualize_shardings(model, m, mesh));
}

TEST_CASE("sharding names: a merged mapping keeps the entries of the outer one") {
  const Mapping outer{{"batch", "data"}, {"embed", std::nullopt}};
  const Mapping inner{{"batch", "model"}, {"embed", "model"}, {"mlp", "model"}};
  {
    axis_mapping alone(inner, {.merge = true});
    CHECK(*current_mapping() == inner);
  }
  axis_mapping by(outer);
  {
    axis_mapping merged(inner, {.merge = true});
    CHECK(to_string(*current_mapping()) == "{batch: data, embed: None, mlp: model}");
    axis_mapping replaced(inner, {.merge = false});
    CHECK(*current_mapping() == inner);
  }
  CHECK(*current_mapping() == outer);
  use_mesh on(Mesh{{{"data", 4}}});
  raises(
      [&] {
        axis_mapping merged(inner, {.merge = true});
        return 0;
      },
      {"[axis_mapping]", "mesh axis model", "sharding_names_test.cpp"});
}

TEST_CASE("sharding names: pspec_for lists the arrays of a tree, and placed arrays keep theirs") {
  Devices eight(8);
  const Mapping by_embed{{"embed", "data"}}, by_mlp{{"mlp", {"data", "model"}}};
  auto model = layer();
  CHECK(pspec_for(model, by_mlp) == std::vector<LeafPspec>{{"up", {{{}, {"data", "model"}}}},
                                                           {"down", {{{"data", "model"}, {}}}}});
  CHECK(to_string(pspec_for(model)[0].spec) == "P(None, None)");  // no mapping in scope
  {
    axis_mapping scope(by_embed);
    CHECK(to_string(pspec_for(model)[0].spec) == "P(data, None)");
  }
  model.up = shard(model.up, by_embed, grid);
  CHECK(to_string(pspec_for(model, by_mlp)[0].spec) == "P(data, None)");
  CHECK(to_string(pspec_for(model, by_mlp, {.preserve_existing_shardings = false})[0].spec) ==
        "P(None, data+model)");

  const Mesh other{{{"data", 2}, {"model", 2}}};
  auto found = infer_resource_partitions(model, by_mlp, other);
  REQUIRE(found.size() == 2);
  CHECK(found[0].path == "up");
  CHECK(to_string(found[0].sharding) == "P(data, None) on Mesh(data=4, model=2)");
  CHECK(to_string(found[1].sharding) == "P(data+model, None) on Mesh(data=2, model=2)");
  found = infer_resource_partitions(model, by_mlp, other, {.preserve_existing_shardings = false});
  CHECK(to_string(found[0].sharding) == "P(None, data+model) on Mesh(data=2, model=2)");
  use_mesh on(grid);
  CHECK(infer_resource_partitions(model, by_mlp)[1].sharding.mesh == grid);
  axis_mapping scope(by_embed);
  CHECK(to_string(infer_resource_partitions(model)[1].sharding.spec) == "P(None, data)");
}

TEST_CASE("sharding names: shardings of axes and trees raise for conflicts and missing meshes") {
  const Mapping both{{"embed", "data"}, {"mlp", "data"}}, wrong{{"embed", "dta"}};
  auto model = layer();
  raises(
      [&] {
        return sharding_for_axis({Embed, Mlp}, both, grid);
      },
      {"axes embed and mlp", "mesh axis data", "sharding_names_test.cpp"});
  raises([&] { return sharding_for_axis(Embed, wrong, grid); }, {"dta", "did you mean data"});
  raises([&] { return sharding_for_axis({}, both, grid); }, {"[sharding_for_axis] name the axes"});
  raises([&] { return sharding_for_axis(Embed, both); }, {"[sharding_for_axis] there is no mesh"});
  raises([&] { return infer_resource_partitions(model, both, grid); },
         {"axes embed and mlp of up", "mesh axis data"});
  raises([&] { return infer_resource_partitions(model, wrong); }, {"there is no mesh in scope"});
  raises([&] { return infer_resource_partitions(model, wrong, grid); }, {"did you mean data"});
  use_mesh on(grid);
  raises([&] { return pspec_for(model, wrong); }, {"[pspec_for]", "did you mean data"});
}

TEST_CASE("sharding names: a traced function shards on its own mesh only") {
  Devices eight(8);
  const Mapping m{{"embed", "data"}};
  auto on = [&](const Mesh& mesh) {
    return named_jit([m, mesh](const NamedArray& x) { return shard(x * 2., m, mesh); },
                     {.mesh = grid, .axis_resources = Mapping{}})(layer().up);
  };
  CHECK(on(grid).floats() == (layer().up * 2.).floats());
  raises(
      [&] {
        return on(Mesh{{{"data", 2}}});
      },
      {"[shard] the mesh (data=2) is not the mesh of the traced function (data=4, model=2)"});
}

TEST_CASE("sharding names: visualize_shardings shows the placement of each array") {
  Devices eight(8);
  auto model = layer();
  model.up = shard(model.up, {{"embed", "data"}}, grid);
  CHECK(visualize_shardings(model) ==
        "up    (embed=12, mlp=6)  embed by data       288 B        72 B a device\n"
        "down  (mlp=6, embed=12)  replicated          288 B       288 B a device\n"
        "all                                          576 B       360 B a device\n");
  use_mesh on(grid);
  axis_mapping by(Mapping{{"mlp", "model"}});
  CHECK(has(visualize_shardings(model), "down  (mlp=6, embed=12)  mlp by model"));
  std::string inside;
  jit([&](const Layer& l) {
    inside = visualize_shardings(l);
    return l.up;
  })(model);
  CHECK(has(inside, "down  (mlp=6, embed=12)  mlp by model"));
}
