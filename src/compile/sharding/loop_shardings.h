// How the devices divide the iterations of a loop, and how its results are sharded.
#pragma once
#include "compile/sharding/op_shardings.h"

namespace haliax::partitioning {

class LoopShardings : PlanView {
 public:
  explicit LoopShardings(const PlanState& s) : PlanView(s), shardings_(s) {}
  bool accumulates(int loop, std::size_t k, std::size_t body) const;
  MeshAxes iterations_shared_by(int loop) const;
  MeshAxes ring_axes_of(int loop) const;  // ring_loops.cpp
  Sharding iteration_sharding(int n, const LoopResult&) const;

 private:
  bool shares_work(int loop, Name tiled, const MeshAxes& devices) const;
  bool reads_beyond_slice(const std::vector<int>& order, int x, Name axis, const Node* index) const;
  const OpShardings shardings_;
};

}  // namespace haliax::partitioning
