// Checks of the option `strict`.
#include "runtime/strict.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/name.h"
#include "base/where.h"
#include "ops/prim.h"
#include "compile/sharding/report/collective_names.h"
#include "transforms/rewrite.h"

namespace haliax {

void refuse_gathers(const std::vector<PlannedCollective>& collectives, const Mesh& mesh) {
  for (auto& m : collectives) {
    if (!m.gathers() || is_requested(m.reason)) continue;
    const auto each = m.iterations > 1 ? fmt::format(" in each of {:.0f} iterations over {}",
                                                     m.iterations, loops_of(m, mesh))
                                       : "";
    const auto cure = m.unmapped
                          ? fmt::format("axis {0} is not in the mapping in scope; add {0} to it",
                                        m.unmapped.text())
                          : "shard it so that each device has the part that it reads";
    fail_at(m.origin, "strict",
            fmt::format("{} gathers {} over {}, {:.0f} bytes communicated per device{}, without a "
                        "request for it; {}, or request the gather with shard",
                        cause_of(m), array_of(m), to_string(mesh, m.over), m.bytes, each, cure));
  }
}

void refuse_without_mesh(const Mapping& m) {
  if (std::all_of(m.entries().begin(), m.entries().end(),
                  [](auto& e) { return e.mesh_axes.empty(); }))
    return;
  fail("strict", "there is no mesh for the mapping " + to_string(m) +
                     "; pass one as an option, or set one with use_mesh");
}

void refuse_mappings(const Nodes& roots, const Nodes& inputs,
                     const std::vector<const Mapping*>& given, bool mesh) {
  std::vector<std::string> known;
  std::vector<const Mapping*> mappings = given;
  auto see = [&](const Node& n) {
    for (auto& a : n.axes) known.push_back(std::string(a.name.text()));
    mappings.push_back(n.origin.mapping.get());
    if (n.op == &prim::kShardingConstraint)
      mappings.push_back(prim::sharding_constraint_of(n).mapping.get());
  };
  for (auto& n : inputs) see(*n);
  for (auto& n : all_nodes(roots)) see(*n);
  auto unique = [](auto& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  unique(known);
  unique(mappings);
  for (auto* m : mappings) {
    if (!m) continue;
    if (!mesh) refuse_without_mesh(*m);
    for (auto& e : m->entries()) {
      auto name = std::string(e.axis.text());
      if (!std::binary_search(known.begin(), known.end(), name))
        fail("strict", "the mapping " + to_string(*m) + " names axis " + name +
                           ", which is not in any array" + did_you_mean(name, known));
    }
  }
}

}  // namespace haliax
