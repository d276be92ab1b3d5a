// The loops over tiles that replace a region.
#pragma once
#include "compile/chunk/region_passes.h"
#include "compile/chunk/region_tiles.h"

namespace haliax {

class RegionLoops {
 public:
  // `size`: positions of a tile.
  RegionLoops(const RegionMembers& members, const RegionPasses& passes, std::int64_t size)
      : members_(members), passes_(passes), stacked_(passes.stacked()), tiles_(members, size) {}
  const Nodes& index() const { return tiles_.index(); }  // one per body
  // See Region::tile.
  Nodes build(const std::string& form, const std::string& why);

 private:
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

  void add_loop_state(Loop&, Nodes& nodes, const NodePtr& loop);
  // Adds the results of a block scan, which runs in the direction of the loop.
  void add_scan_results(Loop&, Nodes& nodes, const NodePtr&);

  const RegionMembers& members_;
  const RegionPasses& passes_;
  RegionPasses::NodesByPass stacked_;
  RegionTiles tiles_;
  std::vector<BlockScan> reduced_scans_;  // the reductions of the loops so far, with their gathers
};

}  // namespace haliax
