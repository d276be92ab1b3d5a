// The loops over tiles that replace a region.
#pragma once
#include <map>

#include "compile/chunk/region_passes.h"
#include "ops/block.h"

namespace haliax {

class RegionLoops {
 public:
  // `size`: positions of a tile.
  RegionLoops(const RegionMembers&, const RegionPasses&, std::int64_t size);
  const Nodes& index() const { return index_; }  // one per body
  // See Region::tile.
  Nodes build(const std::string& form, const std::string& why);

 private:
  Block block(Name a, std::size_t body) const {
    return {a, index_[body], prim::index_chunk(*index_[body])};
  }
  // The values that replace a node of the region.
  struct NodeTiles {
    Nodes values = {};                   // the value on a tile, one per body
    Nodes carried = {};                  // for a loop along the axis: the carried state
    std::vector<LoopResult> state = {};  // for an op with a running block scan: the state
  };
  const NodeTiles& tiles_of(const Node& n) const {
    static const NodeTiles nothing;
    auto i = tiles_.find(&n);
    return i == tiles_.end() ? nothing : i->second;
  }
  // `a`: the name of the tiled axis in the node (RegionMembers::name_in).
  Axes axes_on_tile(Axes, Name a, std::size_t body) const;
  NodePtr tile_of(const NodePtr&, Name a, std::size_t body);
  NodePtr node_on_tile(const NodePtr&, Name a, std::size_t body);
  NodePtr loop_on_tile(const NodePtr&, std::size_t body);
  NodePtr with_swapped_names(const NodePtr&, Name a) const;
  LoopResult reduction_result(const NodePtr&);
  // The final values after the loops so far: their reductions and stacked results, and the nodes
  // outside of the region that depend on these.
  struct Finals {
    const Node* around;
    // `values` maps a node to its final value. `tiles` maps the tile of a stacked node to a slice
    // of the stacked value, which later loops read rather than rematerialize.
    Rewrite values = {}, tiles = {};
    std::unordered_set<const Node*> unchanged =
        {};  // nodes that read none of these, and are unchanged
    Nodes operator()(const Nodes& xs) { return substitute(xs, values, around, &unchanged); }
  };
  NodePtr final_value(const NodePtr& reduction, const NodePtr& result, Finals&);
  // Returns the loop of a pass. Appends the node of each result to `nodes`: null for a state that
  // no node reads after the loop.
  Loop loop_of_pass(int pass, Nodes& nodes);
  void add_final_values(const NodePtr& loop, const Nodes& nodes, Finals&);
  // Replaces values from outside of the loop, which its bodies read, by their final values.
  void read_final_values(Loop&, Finals&) const;

  // ---- carried_results.cpp: results that are carried between iterations ----
  using Memo = std::unordered_map<const Node*, NodePtr>;
  NodePtr loop_along_axis_on_tile(const NodePtr& loop, std::size_t body);
  void add_loop_state(Loop&, Nodes& nodes, const NodePtr& loop);
  void add_running_max(Loop&, Nodes& nodes, const NodePtr& top);
  struct RunningMax;  // one iteration of the running max
  NodePtr with_running_shift(const NodePtr&, const Node* top, const RunningMax&, bool drops_nan,
                             Memo& memo);
  // Adds the results of a block scan, which runs in the direction of the loop.
  void add_scan_results(Loop&, Nodes& nodes, const NodePtr&);
  NodePtr running_scan_on_tile(const NodePtr&, std::size_t body);
  std::vector<LoopResult> initial_state(const BlockScan&) const;
  NodePtr scan_iteration(const BlockScan&, std::vector<LoopResult>& state, std::size_t body,
                         bool reverse);

  const RegionMembers& members_;
  const RegionPasses& passes_;
  RegionPasses::NodesByPass stacked_;
  Nodes index_;  // [full tiles, remainder]
  std::unordered_map<const Node*, NodeTiles> tiles_;
  std::vector<BlockScan> reduced_scans_;  // the reductions of the loops so far, with their gathers
  // From a node outside of the region and its name of the axis to its tiles, one per body.
  std::map<std::pair<const Node*, const NameData*>, Nodes> outside_tiles_;
};

}  // namespace haliax
