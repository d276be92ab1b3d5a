// The graph passes between tracing and lowering.
#pragma once
#include "program/program.h"
#include "transforms/rewrite.h"

namespace haliax {

// `optional` off: only what meaning needs. The device says what scratch a chunk costs; none: none. `uncut`: lines for people, of regions of
// chunked_reduce that stay whole.
Nodes optimise(const Nodes& roots, bool optional, program::Device* = nullptr, std::vector<std::string>* uncut = nullptr);
Nodes settled(const Nodes& roots, bool keep_regions);   // without what only the tracing needed
// Regions of chunked_reduce, in so many loops, become loops.
Nodes cut_regions(const Nodes& roots, program::Device*, int depth = 0, std::vector<std::string>* uncut = nullptr);

// Loops: drop dead results, merge, drop dead results, join carries.
Nodes optimise_loops(Nodes roots);
Nodes drop_dead_results(Nodes roots);
Nodes merge_loops(Nodes roots);
Nodes join_carries(Nodes roots);
Nodes join_updates(Nodes roots);   // array + scatter: scattered into the array
Nodes take_out_factors(const Nodes& roots);   // products of a softmax, made of what it divides

}  // namespace haliax
