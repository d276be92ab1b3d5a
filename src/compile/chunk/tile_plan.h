// Tiles one call of chunked_reduce as a plan specifies: replaces its regions by loops over tiles.
//
// In      the roots of one level, with region boundaries.
// Out     the same values, without the boundaries of this call. Boundaries of other calls remain.
// Always  the first tiled axis of the plan is the outermost loop.
#pragma once
#include "compile/chunk/region.h"
#include "compile/loops/loops.h"
#include "transforms/chunked.h"

namespace haliax {

// Tiled axes, outermost loop first, with their positions per iteration.
using TileSizes = std::vector<std::pair<ChunkKey, std::int64_t>>;

// The tile sizes of one call. For example, attention with scores (batch 8, heads 12, q 1024,
// k 1024) may have the tile sizes batch 1, heads 1, q 64. Then the loop over q is innermost, and
// an iteration computes scores (q 64, k 1024).
struct TilePlan {
  ChunkKey call;
  TileSizes sizes = {};
  std::string form = {};  // for reports
  // The loop over keys of scores:
  // - inside_queries: the last two entries of `sizes` are queries and keys. Requires
  //   defer_normalization first.
  // - around_queries: entry number `keys_at` of `sizes`, outside of the loop over queries.
  // - ring: the same, and blocks of keys rotate around the ring of devices.
  enum class KeyLoop : std::uint8_t { none, inside_queries, around_queries, ring };
  KeyLoop key_loop = KeyLoop::none;
  std::size_t keys_at = 0;  // index of the keys in `sizes`
  bool loops_over_keys(std::size_t k) const {
    return key_loop >= KeyLoop::around_queries && keys_at == k;
  }
  std::string why = {};      // for reports
  std::string refusal = {};  // why the call cannot be tiled, or cannot be tiled this way
  bool is_untiled() const;   // no axis is tiled
  // Returns a report line if the call stays untiled, and an empty string otherwise.
  std::string untiled_note() const;
};

// Returns the roots with boundaries along one more axis around the same regions.
Nodes with_axis_boundaries(const Nodes& roots, const Nodes& level, const Node* index,
                           const Regions&, const ChunkKey& axis);
// Returns the roots without the boundaries of a call.
Nodes without_boundaries(const Nodes& roots, const ChunkKey& call, const Node* index);
// Returns the roots, which are of one level, with loops in place of the regions of the call, and
// without its boundaries. If the call cannot be tiled this way, sets the refusal of the plan, and
// returns the roots without loops.
Nodes apply(TilePlan&, const Nodes& roots, const Node* index);

}  // namespace haliax
