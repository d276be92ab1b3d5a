// Plans loops, whose bodies are planned like the top level.
#pragma once
#include "compile/sharding/loop_shardings.h"
#include "compile/sharding/version_planner.h"

namespace haliax::partitioning {

class LoopPlanner : PlanBuilder {
 public:
  LoopPlanner(PlanState& s, OpPlanner& ops, VersionPlanner& v)
      : PlanBuilder(s), shardings_(s), loop_shardings_(s), cost_(s), ops_(ops), versions_(v) {}
  // Plans a loop and its bodies.
  void compute(int n);
  // If the node is the block that an iteration of a ring loop reads from a sharded array, adds a
  // version that receives it from another device and returns true.
  bool plan_ring_receive(int n);

 private:
  // One attempt to plan a loop. The shardings of its carries follow from its bodies. If they differ
  // from the shardings that the attempt assumed, another attempt starts with the new shardings.
  struct LoopAttempt {
    int n;  // the loop node
    const Loop& l;
    int loop;          // index into Plan::loops
    MeshAxes blocked;  // mesh axes that share iterations: they shard nothing inside
    bool last;         // final attempt: the carries keep their shardings
    std::vector<Sharding> carried;
    LoopPlan plan;
    bool changed = false;
  };
  std::vector<Sharding> carries_of(int n);
  void plan_body(LoopAttempt&, std::size_t b);
  void plan_value(LoopAttempt&, std::size_t k, std::size_t b);
  void finish_loop(LoopAttempt&);
  // ---- ring loops (ring_loops.cpp) ----
  int add_ring_return(const LoopAttempt&, int n, const Sharding& at);
  bool breaks_ring(const LoopAttempt&) const;

  const OpShardings shardings_;
  const LoopShardings loop_shardings_;
  const Cost cost_;
  OpPlanner& ops_;
  VersionPlanner& versions_;
  // final shardings of the carries of each loop, with which the next run starts
  std::map<int, std::vector<Sharding>> carried_;
};

}  // namespace haliax::partitioning
