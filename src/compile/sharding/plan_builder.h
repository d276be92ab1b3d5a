// The only class that changes the plan. It adds versions and bodies, and `restore` undoes a failed
// attempt to plan a loop.
#pragma once
#include "compile/sharding/plan_view.h"

namespace haliax::partitioning {

class PlanBuilder : public PlanView {
 public:
  explicit PlanBuilder(PlanState& s) : PlanView(s), draft_(s.draft), mutable_state_(s) {}

  // Adds a version to the innermost body that its node varies in. Returns its index.
  int add(Version);
  // Adds a version that is one of the versions of its node.
  int add_version(Version);
  // Adds the version that is computed first, and marks its node as planned. points: elements of the
  // iteration space that one iteration computes.
  int add_computed(Version, double points = 0);
  void add_points(int n, double points) { draft_.plan.points += points * iterations_of(n); }
  void add_alternative(int n, OpChoice);  // if the run finds alternatives
  void add_stack_alternative(int loop, std::size_t result, const Sharding&);
  void add_constraint(int n, Sharding);
  void set_planned(int n) { draft_.at(n).planned = true; }
  void set_lazy(int n, int depth) { draft_.at(n).lazy_depth = depth; }
  void set_replacement(int n, int k) { draft_.at(n).replacement = k; }
  // Makes a version of another node a version of n as well.
  void reuse_version(int n, int k) { draft_.at(n).versions.push_back(k); }
  // Must follow each growth of the graph.
  void track_new_nodes() { draft_.nodes.resize(graph_.values.size()); }

  int add_loop(int n);  // returns its index in Plan::loops
  // Starts to plan a body of a loop. Versions whose nodes vary in it are added to it.
  int open_body(int loop, const OpenBody&, double iterations);
  // Ends it, and resets the planning state of values that vary in it.
  void close_body();
  void set_loop(int loop, LoopPlan p) { draft_.plan.loop(loop) = std::move(p); }
  void restore(Draft before);  // as it was before an attempt to plan a loop

  // Sets the cause of new versions during a scope.
  struct CauseScope {
    int &cause, outer;
    CauseScope(PlanBuilder& b, int n) : cause(b.mutable_state_.cause), outer(cause) { cause = n; }
    ~CauseScope() { cause = outer; }
  };

 private:
  Draft& draft_;
  PlanState& mutable_state_;
};

}  // namespace haliax::partitioning
