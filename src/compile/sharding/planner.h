// Chooses the sharding of each value, and the collectives between them.
#pragma once
#include <optional>

#include "compile/sharding/choices.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/rules.h"

namespace haliax::partitioning {

// The plan so far, with queries that do not change it (planned.cpp).
class PlanQueries {
 protected:
  PlanQueries(GlobalGraph&, const PartitionOptions&);

  struct Draft {  // the state that a further attempt restores
    Plan plan;
    struct Planning {                  // planning state of a node
      std::vector<int> versions = {};  // the first version is the computed one
      char lazy = 0;         // > 0: each reader computes the node; depth of its chain of such ops
      bool planned = false;  // planned
      int replacement = -1;  // the node that replaces it; -1: none
    };
    std::vector<Planning> nodes;
    std::vector<std::pair<int, OpChoice>> alternatives;  // (node, alternative)
    Planning& at(int n) { return nodes[std::size_t(n)]; }
    const Planning& at(int n) const { return nodes[std::size_t(n)]; }
  };
  struct OpenBody {  // a body that is being planned
    int loop;
    std::size_t number;
    int body;
    MeshAxes shared_by = {}, ring_axes = {};
  };
  // The cheapest source of a value in a given sharding: a version to reshard in `steps`, or the
  // operands if `recompute`. `cost` in bytes.
  struct Candidate {
    double cost = 0;
    int version = -1;
    bool recompute = false;
    std::size_t steps = 0;
  };
  // Whether a sum may stay partial through an op. larger: yes, but the partial value would grow.
  enum class PartialThrough : std::uint8_t { no, yes, larger };

  const Node& node(int n) const { return graph_.node(n); }
  const NodePtr& ptr(int n) const { return graph_.ptr(n); }
  int operand(int n, std::size_t k) const { return graph_.at(n).in[k]; }
  bool generated(int n) const { return graph_.at(n).generated; }
  const Sharding& preferred(int n) const { return graph_.at(n).preferred; }
  const Version& version(int s) const { return draft_.plan.version(s); }
  const std::vector<int>& versions(int n) const { return draft_.at(n).versions; }
  bool is_lazy(int n) const { return draft_.at(n).lazy; }
  // Each reader obtains the value in the sharding that it needs, without communication.
  bool is_open(int n) const { return generated(n) || is_lazy(n); }
  bool is_planned(int n) const { return draft_.at(n).planned; }
  int replacement(int n) const { return draft_.at(n).replacement; }
  bool is_chosen(int n, OpChoice) const;  // instead of the default
  // Returns the entry of `Choices::ops`, or Choice::usual. Choice::move_axes also holds for a node
  // of the same op in the expansion of the op.
  OpChoice choice_of(int n) const;
  double bytes(int n, const Sharding& s) const { return graph_.bytes(n, s); }
  int body_of(int n) const;
  double iterations_of(int n) const { return draft_.plan.body(body_of(n)).iterations; }
  // Returns the mesh axes that must not shard the node. Their devices share the iterations of an
  // enclosing loop in which the node changes. Inside a guarded loop, the mesh axes that are blocked
  // for the loop are also blocked for values that do not change: devices in other iterations may
  // have another flag, and skip the loop.
  MeshAxes blocked_axes(const Node&) const;
  // Returns the mesh axes that share the iterations of the loop whose index the slice reads.
  MeshAxes local_iterations_over(int n) const;
  Sharding operand_sharding(int n, std::size_t k, const Sharding& work) const;
  const std::vector<int>& users(int n) const;
  const Sharding& sharding_of(int n) const;  // as it was computed, or as its constraint requires
  Candidate cheapest_source(int n, const Sharding& need, int depth = 0) const;
  bool is_gathered_before_loop(int n) const;

  // ---- how an op may be sharded (cuts.cpp) ----
  Sharding work_of(int n, OpChoice) const;
  std::optional<Sharding> alternative_work(int n, const Sharding& usual, OpChoice) const;
  void shard_axis(const Node&, Sharding& work, Name, const MeshAxes&) const;
  void move_mesh_axes(int n, Sharding& work, OpChoice) const;
  void shard_rows(int n, Sharding& work) const;
  PartialThrough partial_through(int n, std::size_t k, int x, Monoid, const Sharding& work) const;
  std::pair<Name, MeshAxes> scatter_target(int n, int x) const;
  // Returns the node whose sharding determines whether n is deferred to its readers. -1: n is not.
  int deferral_source(int n) const;
  bool is_deferred_slice(int x) const;  // a deferred slice
  // Returns true if the readers of n read its operand instead. `deferral_source(n)` must be
  // planned.
  bool is_deferred(int n) const;
  int blocks_along(const Node& op, Name axis, std::int64_t least = 0) const;
  bool runs_by_blocks(const Node& op, Name axis, std::int64_t least = 0) const;
  bool selects_by_blocks(const Node&) const;

  // ---- loops (planner_loops.cpp) ----
  bool accumulates(int loop, std::size_t k, std::size_t body) const;
  bool shares_work(int loop, Name tiled, const MeshAxes& devices) const;
  bool reads_beyond_slice(const std::vector<int>& order, int x, Name axis, const Node* index) const;
  MeshAxes iterations_shared_by(int loop) const;
  MeshAxes ring_axes_of(int loop) const;  // ring_attention.cpp
  Sharding iteration_sharding(int n, const LoopResult&) const;
  // Returns the sharding after partial sums are reduced, scattered along preferred axes if
  // possible.
  Sharding reduced_sharding(int n) const;

  GlobalGraph& graph_;  // grows with expansions, caches its levels
  const Mesh& mesh_;
  const PartitionOptions& options_;
  const Choices* choices_ = nullptr;
  std::map<int, Sharding> constraints_;  // shardings of the planned constraints
  Draft draft_;
  std::vector<OpenBody> open_bodies_;  // the bodies that are being planned, outermost first
};

// The plan of one run, and the alternatives that may communicate less: for a node, the sharding
// that it follows, and for a result of a loop, the sharding in which it is stacked.
struct PlannerResult {
  Plan plan;
  std::vector<std::pair<int, OpChoice>> alternatives;
  std::map<std::pair<int, std::size_t>, Sharding> stacks;
};

// Builds a plan, op by op, operands first (planner.cpp).
class Planner : PlanQueries {
 public:
  Planner(GlobalGraph&, const PartitionOptions&, const std::vector<PartitionInput>&,
          const std::vector<Sharding>& requested);
  // find_alternatives: also returns the alternatives of the plan.
  PlannerResult run(const Choices&, bool find_alternatives);

 private:
  Version& version(int s) { return draft_.plan.version(s); }
  std::vector<int>& versions(int n) { return draft_.at(n).versions; }
  using PlanQueries::version, PlanQueries::versions;
  void track_new_nodes();  // after the graph has grown
  int add(Version);        // to the innermost body that its node varies in
  void add_computed(int n, Version, double points);  // as the computed version
  void add_alternative(int n, OpChoice);
  // Returns a version with this sharding, and plans the cheapest steps to it if there is none.
  int obtain(int n, Sharding need);
  int obtain_lazy(int n, const Sharding& need);
  bool requires_sharding(int n, const Sharding& need) const;  // n is a constraint that requires it
  // Computes n in this sharding from its operands, for views and for ops of replicated operands.
  int compute_version(int n, const Sharding& need);
  int obtain_generated(int n, const Sharding& need);

  // ---- ops ----
  // is_requested: a reader requires it, so it is not deferred.
  void compute(int n, bool is_requested = false);
  void compute_op(int n);
  void plan_constraint(int n);
  bool leave_to_readers(int n);
  using Pending = std::vector<std::vector<std::pair<int, Monoid>>>;  // per operand
  Pending partial_operands(int n, Sharding& work);
  void compute_at(int n, const Sharding& work, const Pending&, const Sharding& partial,
                  const Sharding& created);
  void add_alternative_shardings(int n, const Sharding& usual);
  void plan_replacement(int n, const NodePtr& other);  // plans `other`, which replaces n
  NodePtr in_wider_sums(int n, const Sharding& pending);
  NodePtr separate_from_base(int n, const Sharding& created);

  // ---- along a sharded axis (planner_axes.cpp) ----
  // Returns the expansion of n if an axis that it requires in full is sharded. Null: no expansion.
  NodePtr expansion(int n);
  void shift(int n, const Sharding& work);
  bool regroup(int n, const Sharding& work, const Sharding& partial);
  void reshard_base(int x, const Sharding& need);
  void recompute_from(int n, int base, const Sharding& need);

  // ---- ring loops (ring_attention.cpp) ----
  struct LoopAttempt;
  bool plan_ring_receive(int n);
  int add_ring_return(const LoopAttempt&, int n, const Sharding& at);
  bool breaks_ring(const LoopAttempt&) const;

  // ---- loops (planner_loops.cpp) ----
  void loop(int n);
  std::vector<Sharding> carries_of(int n);
  void plan_body(LoopAttempt&, std::size_t b);
  void plan_value(LoopAttempt&, std::size_t k, std::size_t b);
  void forget_body(const Loop&, std::size_t b);
  void finish_loop(LoopAttempt&);

  const std::vector<PartitionInput>& inputs_;
  const std::vector<Sharding>& requested_;
  bool finds_alternatives_ = false;
  std::map<std::pair<int, std::size_t>, Sharding> stacks_;
  // final shardings of the carries of each loop, with which the next run starts
  std::map<int, std::vector<Sharding>> carried_;
  int cause_ = -1;  // Version::cause of new versions
};
// One attempt to plan a loop. The shardings of its carries follow from its bodies. If they differ
// from the shardings that the attempt assumed, another attempt starts with the new shardings.
struct Planner::LoopAttempt {
  int n;  // the loop node
  const Loop& l;
  int loop;          // index into Plan::loops
  MeshAxes blocked;  // mesh axes that share iterations: they shard nothing inside
  bool last;         // final attempt: the carries keep their shardings
  std::vector<Sharding> carried;
  LoopPlan plan;
  bool changed = false;
};

// Searches for the plan with the fewest bytes among the plans that compute at most 1 % more
// elements than the default plan (search.cpp). strict: without additional unrequested gathers.
Plan best_plan(GlobalGraph&, Planner&, bool strict);

}  // namespace haliax::partitioning
