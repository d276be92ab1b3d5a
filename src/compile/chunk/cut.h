// A call of chunked_reduce, cut as a plan says: loops in place of its regions.
//
// In: the roots of one level, with borders. Out: the same values, without the borders of this call;
// those of others stay. Always: of the axes that are cut, the first is the outermost loop.
#pragma once
#include "compile/chunk/region.h"
#include "compile/loops/loops.h"
#include "transforms/chunked.h"

namespace haliax {

struct CutPlan {
  ChunkKey call;
  std::vector<std::pair<ChunkKey, std::int64_t>> cuts;  // outermost first; positions a turn
  std::vector<ChunkKey> tiles;                          // axes that are cut although nobody asked
  RegionCut how;
  // which cut is that of scores' keys, if they are walked around queries
  std::optional<std::size_t> keys = {};
  bool go_round = false;     // from device to device
  bool late = false;         // they are walked within: defer_normalization comes first
  bool is_whole() const;     // nothing is cut
  std::string line() const;  // for people, of what is whole
};

// The roots with borders along one more axis around the same regions; without those of a call.
Nodes tiled(const Nodes& roots, const Nodes& level, const Node* index, const Regions&,
            const ChunkKey& tile);
Nodes without_boundaries(const Nodes& roots, const ChunkKey& call, const Node* index);
// The roots, of one level, with loops in place of the regions, and without borders.
Nodes apply(const CutPlan&, const Nodes& roots, const Node* index);

}  // namespace haliax
