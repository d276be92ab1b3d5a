// Faulty graphs and sharding plans, and the verifier's messages about them.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "compile/sharding/passes.h"
#include "compile/sharding/planner.h"
#include "compile/verify.h"
#include "ops/prim.h"
#include "support/raises.h"

namespace haliax {

inline NodePtr array(const Axes& axes, DType d = DType::f32) { return prim::input(axes, d); }
inline std::string in_graph(const NodePtr& n) {
  return message_of([&] { verify(Nodes{n}, "a pass"); });
}
inline Sharding sharded(Name a, const MeshAxes& c) {
  Sharding s;
  s.set(a, c);
  return s;
}
// Plans n with the required result sharding, checks that the plan is valid, and damages the first
// live version of that kind. Returns the verifier's message.
inline std::string damaged(
    const NodePtr& n, const std::vector<PartitionInput>& inputs, const Sharding& wanted,
    const Mesh& mesh, const partitioning::Version::Kind& kind,
    const std::function<void(partitioning::Version&, partitioning::Plan&)>& damage) {
  using namespace partitioning;
  const std::vector<Sharding> out{wanted};
  const PartitionOptions options;
  GlobalGraph global({n}, out, mesh);
  Planner planner(global, options, inputs, out);
  auto p = best_plan(global, planner, false);
  CHECK(message_of([&] { verify(p, global, "a pass"); }) == "");
  auto v = std::find_if(p.versions.begin(), p.versions.end(),
                        [&](auto& v) { return v.live && v.kind.index() == kind.index(); });
  REQUIRE(v != p.versions.end());
  damage(*v, p);
  return message_of([&] { verify(p, global, "a pass"); });
}

}  // namespace haliax
