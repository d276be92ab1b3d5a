// What a report says about a compiled function.
#pragma once
#include "compile/pipeline.h"
#include "haliax/jit.h"

namespace haliax {

struct MeshProgram;

// What was compiled, in numbers and, below what `explain` says already, in tables of the
// collectives and of the memory. The programs of a mesh: null on one device.
void describe(JitReport&, const Compilation&, const MeshProgram*, const MachineSpeed&);
// Columns as wide as their widest entry; nothing stands behind the last, nor in place of an empty
// row.
std::string table(const std::vector<std::vector<std::string>>& rows);
std::string bytes_text(double);  // 12 B, 1.5 KiB, 2.0 MiB

}  // namespace haliax
