// Plans the unsharded graph: chooses the sharding of each value, and the collectives between them.
// The parts of the planner share one state. PlanView reads it, and PlanBuilder adds to it:
//
//   OpPlanner       plans ops, operands first
//   MovePlanner     ops that move positions along a sharded axis
//   LoopPlanner     loops, whose bodies it plans by the OpPlanner
//   VersionPlanner  further versions of a value, in the sharding that a reader needs
//   OpShardings, LoopShardings, Cost   answer questions of these parts, and change nothing
#pragma once
#include "compile/sharding/loop_planner.h"
#include "compile/sharding/op_planner.h"

namespace haliax::partitioning {

// The plan of one run, and the alternatives that may communicate less: for a node, the sharding
// that it follows, and for a result of a loop, the sharding in which it is stacked.
struct PlannerResult {
  Plan plan;
  std::vector<std::pair<int, OpChoice>> op_alternatives;
  std::map<std::pair<int, std::size_t>, Sharding> stack_alternatives;
};

class Planner {
 public:
  Planner(GlobalGraph&, const PartitionOptions&, const std::vector<PartitionInput>&,
          const std::vector<Sharding>& requested);
  Planner(const Planner&) = delete;  // its parts refer to its state
  // find_alternatives: also returns the alternatives of the plan.
  PlannerResult run(const Choices&, bool find_alternatives);

 private:
  const std::vector<PartitionInput>& inputs_;
  const std::vector<Sharding>& requested_;
  PlanState state_;
  // The parts refer to each other, also before they are constructed.
  VersionPlanner versions_{state_, ops_};
  LoopPlanner loops_{state_, ops_, versions_};
  OpPlanner ops_{state_, versions_, loops_};
};

// Returns true if the plan communicates fewer bytes than another one, and, with `strict`, has no
// more unrequested gathers.
bool is_cheaper(const Plan&, const GlobalGraph&, const Plan& other, const GlobalGraph& of_other,
                bool strict);
// Searches for the plan with the fewest bytes among the plans that compute at most 1 % more
// elements than the default plan (search.cpp). strict: without additional unrequested gathers.
Plan best_plan(GlobalGraph&, Planner&, bool strict);

}  // namespace haliax::partitioning
