// The region of a chunked_reduce along one axis: the nodes between the boundaries `enter` and
// `leave`, and the loops over tiles that replace them.
//
// - A node that has the tiled axis is computed tile by tile.
// - A reduction over the axis becomes a result of a loop.
// - A node that reads only final results of reductions is outside of the region.
//
// The loops run one after another, each a pass over the data. A node on a tile that reads a final
// value of one pass is computed in the next pass. For example, given the tiled axis `pos` and
// y = x / sum(x, pos), pass 0 computes the sum, and pass 1 reads x again and computes y.
//
// RegionMembers finds the nodes, RegionPasses their passes. RegionTiles builds the nodes on a tile,
// and RegionLoops the loops.
#pragma once
#include <memory>
#include <optional>

#include "compile/chunk/region_passes.h"

namespace haliax {

class Region {
 public:
  // `level`: the nodes that are searched for the region, inputs first, including the bodies of
  // their loops. Without `around`: all nodes below the roots. `around`: the index of the loop body
  // that contains the roots; `level` then has the nodes that vary with it. Finds the nodes of the
  // region, and the pass that computes each.
  Region(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around = nullptr);
  bool empty() const { return members_->empty(); }
  const Axis& axis() const { return members_->axis(); }
  // Returns true if the node is computed on tiles or is a reduction over the tiled axis.
  bool contains(const NodePtr& n) const { return members_->contains(n); }
  // Returns true if the node is in the region and has the tiled axis, or is an array that entered
  // the region.
  bool is_tiled(const NodePtr& n) const { return members_->is_tiled(n); }
  // Returns why the region cannot be tiled, as a message that names the op. Empty: it can be tiled.
  const std::string& refusal() const { return members_->refusal(); }
  // Returns the number of passes that the region needs, one loop each.
  int passes() const { return passes_ ? passes_->count() : 0; }
  // Returns the reductions of these passes, such as sums and maxima.
  Nodes reductions() const;
  // Returns true if x, which is outside of the region, is an elementwise function of fewer bytes
  // than its own. Examples are a one-hot of ids, and a mask, a random draw or a bias by position.
  // Such a value is computed on each tile and never materialized in full.
  bool is_expanded(const NodePtr& x) const { return members_->is_expanded(x, axis().name); }
  // Returns the bytes of the sums whose accumulation dtype is wider than their own dtype, in the
  // accumulation dtype: a sum of bf16 is carried between iterations in f32.
  std::int64_t wide_accumulator_bytes() const;
  // Returns the final values of earlier passes that nodes on tiles of later passes read.
  Nodes values_between_passes() const;
  // Returns the roots without the barriers by which a node outside of the region waits for a node
  // inside. Returns the roots unchanged for ChunkForm::recompute.
  Nodes without_barriers() const;
  // Returns the roots with loops over tiles of `size` positions in place of the region. The loops
  // report `form` and `why`. Requires a region without a refusal, and roots without such barriers.
  Nodes tile(std::int64_t size, const std::string& form, const std::string& why);
  // Returns the loop indices of the last tiling, one per body: [full tiles, remainder].
  const Nodes& index() const { return index_; }

 private:
  std::shared_ptr<const RegionMembers> members_;
  std::optional<RegionPasses> passes_;  // empty for a refused region
  Nodes index_;
};

// The regions of a call, one per tiled axis that has a boundary, in the order of the call's
// tiled_axes.
struct Regions {
  std::vector<ChunkKey> axes;
  std::vector<Region> list;  // one per axis
  Regions(const ChunkKey& call, const Nodes& roots, const Nodes& level);
  bool contain(const NodePtr&) const;
};

}  // namespace haliax
