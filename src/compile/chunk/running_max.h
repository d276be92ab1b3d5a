// The results of a loop over tiles for a running max, and for the sums that it rescales.
#pragma once
#include "compile/chunk/region_passes.h"
#include "compile/chunk/region_tiles.h"

namespace haliax {

class RunningMax {
 public:
  RunningMax(const RegionMembers& members, const RegionPasses& passes, RegionTiles& tiles,
             const NodePtr& top)
      : members_(members), passes_(passes), tiles_(tiles), top_(top) {}
  // Adds the results to a loop, and the node of each result to `nodes`.
  void add_to(Loop&, Nodes& nodes);

 private:
  struct Iteration {
    std::size_t body;
    NodePtr shift, hidden;  // the shift by the running max; a flag: the running max is -inf
  };
  using Memo = std::unordered_map<const Node*, NodePtr>;
  NodePtr with_running_shift(const NodePtr&, const Iteration&, bool drops_nan, Memo&);

  const RegionMembers& members_;
  const RegionPasses& passes_;
  RegionTiles& tiles_;
  const NodePtr top_;  // the max
};

}  // namespace haliax
