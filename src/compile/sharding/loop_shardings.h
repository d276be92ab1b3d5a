// How the devices divide the iterations of a loop, and how its results are sharded.
#pragma once
#include "compile/sharding/op_shardings.h"

namespace haliax::partitioning {

class LoopShardings : PlanView {
 public:
  explicit LoopShardings(const PlanState& s) : PlanView(s), shardings_(s) {}
  // Returns true if the body only adds to this carry. Its addends may then stay partial until the
  // loop ends. For example, c + x accumulates, but c + c * x and tanh(c + x) do not.
  bool accumulates(int loop, std::size_t k, std::size_t body) const;
  // Returns the mesh axes whose devices share the iterations of the loop. A loop may tile an axis
  // that is sharded. If its iterations are independent, each device runs those of its own block.
  // Sums over iterations are then partial, and stacked results are sharded as the tiled arrays. For
  // example, given 8 tiles and 4 devices, each device runs 2 iterations.
  MeshAxes iterations_shared_by(int loop) const;
  // Returns the mesh axis around which the blocks of the loop rotate (ring_loops.cpp). Returns no
  // mesh axis if there is no ring.
  MeshAxes ring_axes_of(int loop) const;
  // Returns the sharding in which a loop accumulates or stacks the value of an iteration.
  //
  // - A reduction over iterations of values that are partial by the same monoid stays partial. It
  //   is reduced over devices once, after the loop. For example, given a sum over tiles of [a, b]
  //   that are partial over x, returns [a, b] partial over x.
  // - A stack uses a version without partial sums if there is one. Otherwise it stays partial,
  //   unless `regather` is set and a reduce-scatter makes the value smaller.
  Sharding iteration_sharding(int n, const LoopResult&) const;

 private:
  bool shares_work(int loop, Name tiled, const MeshAxes& devices) const;
  bool reads_beyond_slice(const std::vector<int>& order, int x, Name axis, const Node* index) const;
  const OpShardings shardings_;
};

}  // namespace haliax::partitioning
