// The nodes of a region on one tile of the axis.
#pragma once
#include <map>

#include "compile/chunk/region_members.h"
#include "ops/block.h"

namespace haliax {

// Returns a loop result that is carried between iterations, with this initial value and no values.
inline LoopResult carried_result(Monoid m, const NodePtr& start, const NodePtr& index) {
  return {ResultKind::carry, m, {}, start, prim::carry(index, start->axes, start->dtype)};
}

class RegionTiles {
 public:
  // `size`: positions of a tile.
  RegionTiles(const RegionMembers&, std::int64_t size);
  const Nodes& index() const { return index_; }  // one per body: [full tiles, remainder]
  // Builds the tiles of all members.
  void build();

  // The values that replace a node of the region.
  struct NodeTiles {
    Nodes values = {};                   // the value on a tile, one per body
    Nodes carried = {};                  // for a loop along the axis: the carried state
    std::vector<LoopResult> state = {};  // for an op with a running block scan: the state
  };
  const NodeTiles& of(const Node& n) const {
    static const NodeTiles nothing;
    auto i = tiles_.find(&n);
    return i == tiles_.end() ? nothing : i->second;
  }
  // `a`: the name of the tiled axis in the node (RegionMembers::name_in).
  Axes axes_on_tile(Axes, Name a, std::size_t body) const;
  NodePtr tile_of(const NodePtr&, Name a, std::size_t body);
  NodePtr node_on_tile(const NodePtr&, Name a, std::size_t body);

  std::vector<LoopResult> initial_state(const BlockScan&) const;
  NodePtr scan_iteration(const BlockScan&, std::vector<LoopResult>& state, std::size_t body,
                         bool reverse);

 private:
  Block block(Name a, std::size_t body) const {
    return {a, index_[body], prim::index_chunk(*index_[body])};
  }
  NodePtr loop_on_tile(const NodePtr&, std::size_t body);
  NodePtr loop_along_axis_on_tile(const NodePtr& loop, std::size_t body);
  NodePtr running_scan_on_tile(const NodePtr&, std::size_t body);

  const RegionMembers& members_;
  Nodes index_;
  std::unordered_map<const Node*, NodeTiles> tiles_;
  // From a node outside of the region and its name of the axis to its tiles, one per body.
  std::map<std::pair<const Node*, const NameData*>, Nodes> outside_tiles_;
};

}  // namespace haliax
