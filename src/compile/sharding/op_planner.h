// Plans ops, operands first.
#pragma once
#include "compile/sharding/move_planner.h"
#include "compile/sharding/op_shardings.h"
#include "compile/sharding/version_planner.h"

namespace haliax::partitioning {

class LoopPlanner;

class OpPlanner : PlanBuilder {
 public:
  OpPlanner(PlanState& s, VersionPlanner& v, LoopPlanner& l)
      : PlanBuilder(s), shardings_(s), versions_(v), moves_(s, v), loops_(l) {}
  // Plans n and its operands. is_requested: a reader requires it, so it is not deferred.
  void compute(int n, bool is_requested = false);

 private:
  void compute_op(int n);
  void plan_constraint(int n);
  bool leave_to_readers(int n);
  using PartialOperands = std::vector<std::vector<std::pair<int, Monoid>>>;  // per operand
  PartialOperands partial_operands(int n, Sharding& work);
  void compute_at(int n, const Sharding& work, const PartialOperands&, const Sharding& partial,
                  const Sharding& result);
  void add_alternative_shardings(int n, const Sharding& usual);
  void plan_replacement(int n, const NodePtr& other);  // plans `other`, which replaces n
  NodePtr in_wider_sums(int n, const Sharding& result) const;
  NodePtr separate_from_base(int n, const Sharding& result) const;
  NodePtr expansion(int n);

  const OpShardings shardings_;
  VersionPlanner& versions_;
  MovePlanner moves_;
  LoopPlanner& loops_;
};

}  // namespace haliax::partitioning
