// The cost of a value in a sharding that the plan lacks.
#pragma once
#include "compile/sharding/plan_view.h"

namespace haliax::partitioning {

class Cost : PlanView {
 public:
  explicit Cost(const PlanState& s) : PlanView(s) {}
  // The cheapest source of a value in a given sharding: a version to reshard in `steps`, or the
  // operands if `recompute`. `cost` in bytes.
  struct Candidate {
    double cost = 0;
    int version = -1;
    bool recompute = false;
    std::size_t steps = 0;
  };
  Candidate cheapest_source(int n, const Sharding& need, int depth = 0) const;

 private:
  bool is_gathered_before_loop(int n) const;
};

}  // namespace haliax::partitioning
