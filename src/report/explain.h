// Reports about a compiled function.
#pragma once
#include "compile/pipeline.h"
#include "haliax/jit.h"

namespace haliax {

struct MeshProgram;

// Fills in the numbers of a report, and appends tables of the collectives and of the memory to
// `explain`. MeshProgram: null on one device.
void describe(JitReport&, const Compilation&, const MeshProgram*, const MachineSpeed&);
// Formats a table whose columns have the width of their widest entry. Trims spaces at the end of
// lines and skips empty rows.
std::string table(const std::vector<std::vector<std::string>>& rows);
std::string bytes_text(double);  // "12 B", "1.5 KiB", "2.0 MiB"

}  // namespace haliax
