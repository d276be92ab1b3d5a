// What a report says about a compiled function, and what strict refuses.
#pragma once
#include "haliax/jit.h"
#include "runtime/mesh_run.h"

namespace haliax {

void describe(JitReport&, const program::Program&, const MachineSpeed&);  // for one device
void describe(JitReport&, const MeshProgram&, const MachineSpeed&);
// Tables of the collectives and of the memory, below what is said already.
void add_tables(JitReport&, const MeshProgram&);

// Raises for a gather that nobody asked for.
void refuse_gathers(const std::vector<Move>&, const Mesh&);
// Raises for an axis that a mapping names and no array has: in one of those given, or in a scope in which a node was made.
void refuse_unknown_axes(const Nodes& roots, const Nodes& inputs, const std::vector<const Mapping*>& given);

}  // namespace haliax
