// Plans ops that move positions along a sharded axis.
#pragma once
#include "compile/sharding/op_shardings.h"
#include "compile/sharding/version_planner.h"

namespace haliax::partitioning {

class MovePlanner : PlanBuilder {
 public:
  MovePlanner(PlanState& s, VersionPlanner& v) : PlanBuilder(s), shardings_(s), versions_(v) {}
  void shift(int n, const Sharding& work);
  bool regroup(int n, const Sharding& work, const Sharding& partial);

 private:
  const OpShardings shardings_;
  VersionPlanner& versions_;
};

}  // namespace haliax::partitioning
