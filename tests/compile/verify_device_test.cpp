// Checks the collectives of a device, and its part of a partial sum, against the plan.
#include "support/planned.h"

#include "ops/collective.h"

using namespace haliax;
using namespace haliax::partitioning;

namespace {

const Axis A{"a", 4};
const Mesh mesh{{{"data", 2}, {"model", 2}}};

// Verifies device 1, which computes `made` from its own `mine`. The plan reshards x from `has` to
// `is` by the step `reshard`.
std::string on_device(const NodePtr& x, const Sharding& has, const Sharding& is,
                      const ReshardStep& reshard, const NodePtr& mine, const NodePtr& made) {
  GlobalGraph global({x}, {{}}, mesh);
  Plan p;
  p.bodies.emplace_back();
  const Version v{.kind = Reshard{reshard},
                  .node = global.find(x.get()),
                  .sharding = is,
                  .in = {0},
                  .live = true};
  p.versions = {{.kind = Given{}, .node = v.node, .sharding = has, .live = true}, v};
  p.roots = {1};
  return message_of([&] { verify_device(p, global, 1, {mine, made}, "a pass"); });
}
bool found(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("verify finds collectives that differ from the plan") {
  using program::CollectiveKind;
  auto x = array({A}), mine = array({A});
  Sharding pending;
  pending.add_partial(1, Monoid::max);
  const ReshardStep reshard{ReshardStep::Kind::all_reduce, {}, {1}, {}, 8};
  auto with = [&](auto change) {
    CollectiveSpec w;
    // an all_reduce
    w.number = 1;
    w.collective.over = {1};
    w.collective.ranks = 2;
    w.collective.monoid = Monoid::max;
    w.collective.size = {0};
    w.out = {{A}};
    w.along = {{}};
    Nodes sent{mine};
    change(w, sent);
    return on_device(x, pending, {}, reshard, mine, collective_result(make_collective(sent, w), 0));
  };
  CHECK(with([](CollectiveSpec&, Nodes&) {}) == "");
  CHECK(with([](CollectiveSpec&, Nodes& sent) {
          sent[0] = prim::barrier(sent[0], prim::number(0, DType::f32));
        }) == "");
  CHECK(found(with([](CollectiveSpec& w, Nodes&) { w.collective.monoid = Monoid::sum; }),
              "on device 1: its collective reduces by another monoid"));
  CHECK(found(with([](CollectiveSpec& w, Nodes&) { w.collective.over = {0}; }),
              "its collective has other devices"));
  CHECK(found(with([](CollectiveSpec& w, Nodes&) {
                w.collective.over = {0, 1};
                w.collective.ranks = 4;
              }),
              "its collective has other devices"));
  CHECK(found(with([](CollectiveSpec& w, Nodes&) { w.collective.ranks = 4; }),
              "its collective has other devices"));
  CHECK(
      found(with([](CollectiveSpec& w, Nodes&) { w.collective.kind = CollectiveKind::all_gather; }),
            "its collective has another kind"));
  CHECK(found(with([](CollectiveSpec& w, Nodes&) { w.along = {Name("a")}; }),
              "its collective has another axis"));
  CHECK(found(with([](CollectiveSpec&, Nodes& sent) { sent[0] = array({A}); }),
              "its collective has another array"));
  CHECK(found(on_device(x, pending, {}, reshard, mine, mine), "it is in no collective"));
}

TEST_CASE("verify finds a partial value on another device than the first") {
  auto x = array({A}), mine = array({A});
  auto nothing = prim::barrier(prim::filled(0, DType::f32, {A}), mine);
  // device 1 is the first along axis 0, and the second along axis 1
  auto pended = [&](int over, const NodePtr& made) {
    Sharding at;
    at.add_partial(over, Monoid::sum);
    return on_device(x, {}, at, {ReshardStep::Kind::make_partial, at, {over}, {}, 0}, mine, made);
  };
  CHECK(pended(0, mine) == "");
  CHECK(pended(1, nothing) == "");
  CHECK(found(pended(0, nothing), "it is on the first device, but has no value"));
  CHECK(found(pended(1, mine), "it is not on the first device, but has a value"));
}

TEST_CASE("verify finds an op that differs from the plan") {
  auto x = array({A}), y = array({A}), n = prim::sub(x, y);
  GlobalGraph global({n}, {{}}, mesh);
  Plan p;
  p.bodies.emplace_back();
  auto version = [&](const NodePtr& of, Version::Kind kind, std::vector<int> in) {
    p.versions.push_back({.kind = kind,
                          .node = global.find(of.get()),
                          .sharding = {},
                          .in = std::move(in),
                          .live = true});
  };
  version(x, Given{}, {});
  version(y, Given{}, {});
  version(n, Compute{}, {0, 1});
  p.roots = {2};
  auto made = [&](const NodePtr& is) {
    return message_of([&] { verify_device(p, global, 1, {x, y, is}, "a pass"); });
  };
  CHECK(made(n) == "");
  for (auto& is : {prim::add(x, y), prim::sub(y, x), prim::sub(x, x)})
    CHECK(found(made(is), "on device 1: it is not sub of its operands"));
}

TEST_CASE("verify finds a merged collective of values that depend on each other") {
  auto x = array({A});
  Sharding pending;
  pending.add_partial(0, Monoid::sum);
  pending.add_partial(1, Monoid::sum);
  auto once = pending;
  once.resolve(0);
  const ReshardStep first{ReshardStep::Kind::all_reduce, once, {0}, {}, 8},
      second{ReshardStep::Kind::all_reduce, {}, {1}, {}, 8};
  auto plan = [&](std::vector<int> order, int bucket, int other) {
    GlobalGraph global({x}, {{}}, mesh);
    Plan p;
    p.bodies.emplace_back();
    auto n = global.find(x.get());
    p.versions = {
        {.kind = Given{}, .node = n, .sharding = pending, .live = true},
        {.kind = Reshard{first},
         .node = n,
         .sharding = once,
         .in = {0},
         .live = true,
         .bucket = bucket},
        {.kind = Reshard{second}, .node = n, .sharding = {}, .in = {1}, .live = true, .bucket = 1},
        {.kind = Reshard{first},
         .node = n,
         .sharding = once,
         .in = {0},
         .live = true,
         .bucket = other}};
    p.bodies[0].versions = std::move(order);
    p.roots = {2, 3};
    return message_of([&] { verify(p, global, "a pass"); });
  };
  CHECK(plan({0, 1, 3, 2}, 2, 2) == "");
  CHECK(found(plan({0, 1, 2, 3}, 1, 3), "it is merged into one collective with its operand"));
  CHECK(found(plan({0, 1, 2, 3}, 2, 2),
              "the collectives that are merged with it are not next to it"));
  CHECK(found(plan({0, 2, 1, 3}, 2, 3), "an operand is computed later"));
  CHECK(found(plan({0, 1, 1, 2, 3}, 2, 3), "it is computed twice"));
  CHECK(found(plan({0, 1, 2}, 2, 3), "it is not computed in any body"));
}
