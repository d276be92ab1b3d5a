// The plan so far, and queries that do not change it.
//
// Names of indices in this folder, unless a comment states otherwise: n: a node
// (GlobalGraph::values); x: an operand of n, or a mesh axis; v: a version (Plan::versions); k: the
// number of an operand or of a loop result; b: a body of a loop.
#pragma once
#include "compile/sharding/choices.h"
#include "compile/sharding/global_graph.h"
#include "compile/sharding/partition_options.h"
#include "compile/sharding/plan.h"
#include "compile/sharding/rules.h"

namespace haliax::partitioning {

struct Draft {  // the state that a further attempt to plan a loop restores
  Plan plan;
  struct Planning {                  // planning state of a node
    std::vector<int> versions = {};  // the first version is the computed one
    // > 0: each reader computes the node in its own sharding; length of the chain of such ops. In
    // contrast, readers of a deferred node read its operand (OpShardings::is_deferred).
    int lazy_depth = 0;
    bool planned = false;
    int replacement = -1;  // the node that replaces it; -1: none
  };
  std::vector<Planning> nodes;
  std::vector<std::pair<int, OpChoice>> op_alternatives;  // (node, alternative)
  Planning& at(int n) { return nodes[std::size_t(n)]; }
  const Planning& at(int n) const { return nodes[std::size_t(n)]; }
};
struct OpenBody {  // a body that is being planned
  int loop;        // the loop node
  std::size_t number;
  int body;
  MeshAxes shared_by = {}, ring_axes = {};
};
// The state that the parts of the planner share.
struct PlanState {
  GlobalGraph& graph;  // grows with expansions, caches its levels
  const PartitionOptions& options;
  const Choices* choices = nullptr;
  bool finds_alternatives = false;
  Draft draft = {};
  std::map<int, Sharding> constraints = {};  // shardings of the planned constraints
  std::vector<OpenBody> open_bodies = {};    // the bodies that are being planned, outermost first
  // alternatives to the sharding in which a loop stacks a result, see Choices::stacks
  std::map<std::pair<int, std::size_t>, Sharding> stack_alternatives = {};
  int cause = -1;  // Version::cause of new versions
};

class PlanView {
 protected:
  explicit PlanView(const PlanState& s)
      : graph_(s.graph), mesh_(s.graph.mesh), options_(s.options), state_(s) {}

  const Node& node(int n) const { return graph_.node(n); }
  const NodePtr& ptr(int n) const { return graph_.ptr(n); }
  int operand(int n, std::size_t k) const { return graph_.at(n).in[k]; }
  bool generated(int n) const { return graph_.at(n).generated; }
  const Sharding& preferred(int n) const { return graph_.at(n).preferred; }
  double bytes(int n, const Sharding& s) const { return graph_.bytes(n, s); }

  const Plan& plan() const { return state_.draft.plan; }
  const Version& version(int v) const { return plan().version(v); }
  const std::vector<int>& versions(int n) const { return state_.draft.at(n).versions; }
  bool is_planned(int n) const { return state_.draft.at(n).planned; }
  int replacement(int n) const { return state_.draft.at(n).replacement; }
  bool is_lazy(int n) const { return state_.draft.at(n).lazy_depth > 0; }
  // Returns true if each reader obtains the value in the sharding that it needs, without
  // communication.
  bool fits_any_sharding(int n) const { return generated(n) || is_lazy(n); }
  // Returns the sharding in which the value was computed, or that its constraint requires.
  const Sharding& sharding_of(int n) const;
  // Returns the sharding that the node needs of operand k. A slice at the index of a loop with
  // shared iterations needs the sliced axis sharded along the mesh axes that share them.
  Sharding operand_sharding(int n, std::size_t k, const Sharding& work) const;
  // Returns the steps from one sharding of n to another. If the rows of n are counted
  // (prim::counted_rows), an all-to-all sends as many bytes as if all counts were equal and no row
  // remained.
  std::vector<ReshardStep> steps_of(int n, const Sharding& from, const Sharding& to) const;
  // Returns true if a step from this sharding sends only the counted rows of n.
  bool sends_counted_rows(int n, const Sharding& from, const ReshardStep&) const;
  // Returns the nodes of its body that read n. -1: it is a result of the body.
  const std::vector<int>& users(int n) const;

  int body_of(int n) const;
  double iterations_of(int n) const { return plan().body(body_of(n)).iterations; }
  // Returns the mesh axes that must not shard the node. Their devices share the iterations of an
  // enclosing loop in which the node changes. Inside a conditional, the mesh axes that are blocked
  // for the loop are also blocked for values that do not change: devices in other iterations may
  // have another flag, and skip the loop.
  MeshAxes blocked_axes(const Node&) const;
  // Returns the mesh axes that share the iterations of the loop whose index the slice reads.
  MeshAxes local_iterations_over(int n) const;

  bool is_chosen(int n, OpChoice) const;  // instead of the default
  // Returns the entry of `Choices::ops`, or Choice::usual. Choice::move_axes also holds for a node
  // of the same op in the expansion of the op.
  OpChoice choice_of(int n) const;

  GlobalGraph& graph_;
  const Mesh& mesh_;
  const PartitionOptions& options_;
  const PlanState& state_;
};

}  // namespace haliax::partitioning
