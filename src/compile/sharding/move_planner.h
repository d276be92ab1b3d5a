// Plans ops that move positions along a sharded axis.
#pragma once
#include "compile/sharding/op_shardings.h"
#include "compile/sharding/version_planner.h"

namespace haliax::partitioning {

class MovePlanner : PlanBuilder {
 public:
  MovePlanner(PlanState& s, VersionPlanner& v) : PlanBuilder(s), shardings_(s), versions_(v) {}
  // Plans an op that moves positions along a sharded axis: each device receives the positions that
  // its block lacks. For example, given a roll by 1 of 8 positions on 2 devices, device 0 receives
  // position 7 and device 1 receives position 3. A slice that only this op reads is not
  // materialized: the op reads the operand of the slice.
  void shift(int n, const Sharding& work);
  // Plans an op that splits an axis into parts, or flattens parts into one axis, if the blocks
  // before and after do not match. Each device receives the elements that its block lacks. Returns
  // false if the blocks match or the op is of another kind. For example, given parts [a=3, b=4]
  // with b sharded over 2 devices, device 0 holds the flat positions 0, 1, 4, 5, 8, 9 but needs 0
  // to 5.
  bool regroup(int n, const Sharding& work, const Sharding& partial);

 private:
  const OpShardings shardings_;
  VersionPlanner& versions_;
};

}  // namespace haliax::partitioning
