// Plans further versions of a value, in the sharding that a reader needs.
#pragma once
#include "compile/sharding/cost.h"
#include "compile/sharding/plan_builder.h"

namespace haliax::partitioning {

class OpPlanner;

class VersionPlanner : PlanBuilder {
 public:
  VersionPlanner(PlanState& s, OpPlanner& ops) : PlanBuilder(s), cost_(s), ops_(ops) {}
  // Returns a version with this sharding, and plans the cheapest steps to it if there is none.
  int obtain(int n, Sharding need);
  // x is computed elementwise from a base value. Reshards the base instead of x, and recomputes x,
  // if other ops read the base too and its resharding is no more expensive. The other readers then
  // need no communication of their own.
  void reshard_base(int x, const Sharding& need);

 private:
  int obtain_generated(int n, const Sharding& need);
  int obtain_lazy(int n, const Sharding& need);
  // Computes n in this sharding from its operands, for views and for ops of replicated operands.
  int compute_version(int n, const Sharding& need);
  bool requires_sharding(int n, const Sharding& need) const;
  void recompute_from(int n, int base, const Sharding& need);

  const Cost cost_;
  OpPlanner& ops_;
};

}  // namespace haliax::partitioning
