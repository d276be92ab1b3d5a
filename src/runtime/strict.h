// What strict refuses.
#pragma once
#include "compile/sharding/planned_collectives.h"

namespace haliax {

// Raises for a gather that nobody asked for.
void refuse_gathers(const std::vector<PlannedCollective>&, const Mesh&);
// Looks at the mappings given, those in scope where a node was made, and constraints. Raises for an
// axis that no array has, and for one that cuts where there is no mesh.
void refuse_mappings(const Nodes& roots, const Nodes& inputs,
                     const std::vector<const Mapping*>& given, bool mesh);
void refuse_without_mesh(const Mapping&);

}  // namespace haliax
