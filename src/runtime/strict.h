// Checks of the option `strict`.
#pragma once
#include "compile/sharding/report/planned_collectives.h"

namespace haliax {

// Raises for an unrequested gather.
void refuse_gathers(const std::vector<PlannedCollective>&, const Mesh&);
// Checks the given mappings, the mappings in scope where nodes were created, and sharding
// constraints. Raises for an axis that no array has, and for a mapping that shards without a mesh.
void refuse_mappings(const Nodes& roots, const Nodes& inputs,
                     const std::vector<const Mapping*>& given, bool mesh);
void refuse_without_mesh(const Mapping&);

}  // namespace haliax
