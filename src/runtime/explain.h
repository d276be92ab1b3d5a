// What a report says about a compiled function, and what strict refuses.
#pragma once
#include "haliax/jit.h"
#include "runtime/mesh_run.h"

namespace haliax {

void describe(JitReport&, const program::Program&, const MachineSpeed&);  // for one device
void describe(JitReport&, const MeshProgram&, const MachineSpeed&);
// Tables of the collectives and of the memory, below what is said already.
void add_tables(JitReport&, const MeshProgram&);
void add_tables(JitReport&, const program::Program&, const Nodes& inputs);  // on one device

// Raises for a gather that nobody asked for.
void refuse_gathers(const std::vector<Move>&, const Mesh&);
// Looks at the mappings given, those in scope where a node was made, and constraints. Raises for an axis that no array has, and
// for one that cuts where there is no mesh.
void refuse_mappings(const Nodes& roots, const Nodes& inputs, const std::vector<const Mapping*>& given, bool mesh);
void refuse_without_mesh(const Mapping&);

}  // namespace haliax
