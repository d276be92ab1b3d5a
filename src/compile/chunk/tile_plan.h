// Tiles one call of chunked_reduce as a plan specifies: replaces its regions by loops over chunks.
//
// In      the roots of one level, with region boundaries.
// Out     the same values, without the boundaries of this call. Boundaries of other calls remain.
// Always  the first tiled axis of the plan is the outermost loop.
#pragma once
#include "compile/chunk/region.h"
#include "compile/loops/loops.h"
#include "transforms/chunked.h"

namespace haliax {

// The chunk sizes of one call. For example, attention with scores (batch 8, heads 12, q 1024,
// k 1024) may have the chunk sizes batch 1, heads 1, q 64. Then the loop over q is innermost, and
// an iteration computes scores (q 64, k 1024).
struct CutPlan {
  ChunkKey call;
  std::vector<std::pair<ChunkKey, std::int64_t>> cuts;  // outermost first; positions per iteration
  std::vector<ChunkKey> tiles;                          // tiled axes that the call did not request
  TileOptions how;
  // position in `cuts` of the keys of scores, if the loop over keys encloses the loop over queries
  std::optional<std::size_t> keys = {};
  bool go_round = false;  // blocks of keys rotate around the ring of devices
  // The loop over keys is inside of the loop over queries, and the last two entries of `cuts` are
  // queries and keys. Requires defer_normalization first.
  bool late = false;
  bool is_whole() const;     // no axis is tiled
  std::string line() const;  // report line of a call that stays untiled
};

// Returns the roots with boundaries along one more axis around the same regions.
Nodes tiled(const Nodes& roots, const Nodes& level, const Node* index, const Regions&,
            const ChunkKey& tile);
// Returns the roots without the boundaries of a call.
Nodes without_boundaries(const Nodes& roots, const ChunkKey& call, const Node* index);
// Returns the roots, which are of one level, with loops in place of the regions of the call, and
// without its boundaries.
Nodes apply(const CutPlan&, const Nodes& roots, const Node* index);

}  // namespace haliax
