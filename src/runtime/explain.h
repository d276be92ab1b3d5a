// What a report says about a compiled function, and what strict refuses.
#pragma once
#include "haliax/jit.h"
#include "runtime/mesh_run.h"

namespace haliax {

// What was compiled, in numbers and, below what `explain` says already, in tables of the collectives and of the memory. The
// programs of a mesh: null on one device.
void describe(JitReport&, const Compilation&, const MeshProgram*, const MachineSpeed&);
std::int64_t argument_bytes(const program::Program&);
// Columns as wide as their widest entry; nothing stands behind the last, nor in place of an empty row.
std::string table(const std::vector<std::vector<std::string>>& rows);
std::string bytes_text(double);                          // 12 B, 1.5 KiB, 2.0 MiB

// Raises for a gather that nobody asked for.
void refuse_gathers(const std::vector<Move>&, const Mesh&);
// Looks at the mappings given, those in scope where a node was made, and constraints. Raises for an axis that no array has, and
// for one that cuts where there is no mesh.
void refuse_mappings(const Nodes& roots, const Nodes& inputs, const std::vector<const Mapping*>& given, bool mesh);
void refuse_without_mesh(const Mapping&);

}  // namespace haliax
