// The graph passes between tracing and lowering.
#pragma once
#include "transforms/rewrite.h"

namespace haliax {

Nodes optimise(const Nodes& roots, bool optional);   // `optional` off: only what meaning needs
Nodes settled(const Nodes& roots, bool keep_regions);   // without what only the tracing needed
Nodes cut_regions(const Nodes& roots);                  // regions of chunked_reduce become loops

// Loops: drop dead results, merge, drop dead results, join carries.
Nodes optimise_loops(Nodes roots);
Nodes drop_dead_results(Nodes roots);
Nodes merge_loops(Nodes roots);
Nodes join_carries(Nodes roots);

}  // namespace haliax
