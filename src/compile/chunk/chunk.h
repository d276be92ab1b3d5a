// chunked_reduce: regions of a graph, computed tile by tile. A tile is a block of the tiled axis,
// which the public interface calls a chunk.
//
// The files, from the call to the loops:
//
// - chunk: levels, order of calls.
// - search: tile sizes. region_axes finds further axes; isolated_subgraph and cost weigh a
//   candidate.
// - tile_plan: one plan as loops. defer_normalization runs first if keys are tiled.
// - region: one axis. region_members finds its nodes, region_check refuses nodes that cannot be
//   tiled, region_passes finds the passes, region_tiles builds the nodes on a tile, and
//   region_loops and running_max build the loops.
//
// In      a graph after differentiation, in which boundaries (prim::enter, prim::leave) mark the
//         regions of chunked_reduce calls, forward and backward.
// Out     loops over tiles in place of the regions, and no boundaries.
// Always  the values are those of the untiled graph:
//         - Nodes that have the tiled axis are computed tile by tile.
//         - A reduction over the tiled axis becomes a result of a loop, and nodes that depend on it
//           read its final value.
//         - An op that needs the full axis raises an error that names the op.
//         Memory, in addition to results and gradients, stays within the budget of the call.
//
// For example, `y = exp(x); s = sum(y, "n"); z = y / s` with `n` tiled becomes a loop that adds up
// s, and a second loop that recomputes y and stacks z.
#pragma once
#include "compile/chunk/defer_normalization.h"
#include "compile/chunk/search.h"

namespace haliax {

// Computes 16-bit matmuls of a region in f32 if they are summed over tiles or leave the region,
// and are only read as f32.
Nodes f32_matmuls(const Nodes& roots);
// Replaces the regions of calls that are inside of at least `depth` loops by loops over tiles.
//
// - ring: iterates over the keys of scores in as many blocks as devices share the queries, for
//   ring attention.
// - `untiled_notes`: receives a report line for each call that stays untiled. May be null.
Nodes tile_regions(const Nodes& roots, const CompileTrial&, int depth, bool ring,
                   std::vector<std::string>* untiled_notes);
// Returns true if there is a region of scores whose queries are sharded over several devices.
bool shares_queries(const Nodes& roots);
// Raises, while the call is traced, if the regions between these boundaries cannot be tiled, or if
// the smallest tiles exceed the budget of the call.
void check_chunks(const Nodes& outs, const ChunkKey& call, const std::vector<Attr>& boundaries,
                  const CompileTrial&);

}  // namespace haliax
