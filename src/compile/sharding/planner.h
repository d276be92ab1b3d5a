// The data structures of the passes plan, residuals, regather, ring and bucket. A plan is the same
// for all devices. It lists the versions of each value (replicated, sharded or partial), the
// versions that each version reads, and the collectives. `emit` builds the graph of one device from
// the plan.
//
// Always  the versions that a version reads precede it, in the list of its own body or of an
//         enclosing body. A plan shards a value, or leaves it partial, only if the rules allow it
//         (verify.cpp).
#pragma once
#include <functional>
#include <map>
#include <unordered_map>

#include "graph/loop.h"
#include "ops/blockwise.h"
#include "compile/sharding/choices.h"
#include "compile/sharding/report/planned_collectives.h"
#include "compile/sharding/partition_options.h"
#include "compile/sharding/rules.h"
#include "compile/sharding/reshard.h"

namespace haliax::partitioning {

// One version of the value of one node. For example, a sharded weight and the gathered weight are
// two versions of one node.
struct Version {
  enum class Kind : std::uint8_t {
    given,     // an input, or an array that the graph captured
    carry,     // the value that an iteration receives from the iteration before
    generate,  // computed from scalars and positions alone, locally and in any sharding
    compute,
    // positions move along an axis, by send and receive, or by local slices (bytes 0)
    shift,
    // an axis is split or flattened, and the blocks before and after do not match: an all-to-all
    regroup,
    reshard,
    ring_receive,  // in a ring loop: the block of this iteration, from another device
    ring_return,   // in a ring loop: partial sums for a block, sent to its device
    loop,
    result,  // a result of a loop
  } kind = Kind::given;
  int node = -1, body = 0;
  Sharding at = {};
  std::vector<int> in = {};  // versions, one for each operand (-1: none)
  ReshardStep reshard_step = {};
  std::vector<CopyBox> copy_boxes = {};  // shift, regroup: `array` is an index into `in`
  bool local_iterations = false;         // compute: a slice at the device's own iteration
  int loop = -1;                         // loop, result, carry: index into Plan::loops
  std::size_t result = 0;                // result, carry: index into Loop::results
  bool live = false;
  int bucket = -1;  // versions with the same bucket share one collective
  // a gather: the contraction that reads its blocks one by one, so it is never materialized
  int ring = -1;
  int cause = -1;  // the node that requires the version; -1: a result
  bool moves() const { return kind == Kind::shift || kind == Kind::regroup; }
  bool in_ring_loop() const { return kind == Kind::ring_receive || kind == Kind::ring_return; }
  bool sums() const {
    return kind == Kind::reshard && (reshard_step.kind == ReshardStep::Kind::all_reduce ||
                                     reshard_step.kind == ReshardStep::Kind::reduce_scatter);
  }
  bool gathers() const {
    return live && kind == Kind::reshard && reshard_step.kind == ReshardStep::Kind::all_gather;
  }
  bool communicates() const {
    return (kind == Kind::reshard && reshard_step.kind >= ReshardStep::Kind::reduce_scatter) ||
           ((moves() || in_ring_loop()) && reshard_step.bytes > 0);
  }
};
struct Body {  // the top level, or a body of a loop
  int parent = -1, loop = -1;
  std::size_t number = 0;          // index of the body in its loop
  double iterations = 1;           // number of executions per device, over all enclosing loops
  std::vector<int> versions = {};  // in execution order
};
struct LoopPlan {
  int node = -1;
  std::vector<int> bodies = {};  // index into Plan::bodies, per body of the loop
  // Mesh axes whose devices share the iterations: each device runs its own block of them.
  MeshAxes shared_by = {};
  // The mesh axis around which the blocks rotate: each device runs all iterations and starts with
  // its own block. Either this or `shared_by` is empty.
  MeshAxes ring_axes = {};
  // sharding of each result, in an iteration and after the loop
  std::vector<Sharding> inside = {}, at = {};
  std::vector<std::vector<int>> value = {};  // [result][body]: versions
  std::vector<std::vector<int>> carry = {};  // [result][body]: placeholders of the carried values
  std::vector<int> start = {};
};
struct Plan {
  std::vector<Version> versions;
  std::vector<Body> bodies;
  std::vector<LoopPlan> loops;
  std::vector<int> roots;
  // Per device: bytes communicated, and elements of iteration spaces computed.
  double bytes = 0, points = 0;

  Version& version(int k) { return versions[std::size_t(k)]; }
  const Version& version(int k) const { return versions[std::size_t(k)]; }
  const Body& body(int k) const { return bodies[std::size_t(k)]; }
  Body& body(int k) { return bodies[std::size_t(k)]; }
  const LoopPlan& loop(int k) const { return loops[std::size_t(k)]; }
  LoopPlan& loop(int k) { return loops[std::size_t(k)]; }
  // bodies of a loop; empty for other kinds of versions
  const std::vector<int>& bodies_of(const Version& v) const {
    static const std::vector<int> none;
    return v.kind == Version::Kind::loop ? loop(v.loop).bodies : none;
  }
};

// Returns the versions that read each version. An entry -1 stands for a use as a result, or as the
// value of a loop.
std::vector<std::vector<int>> readers_of(const Plan&);

struct GlobalGraph;
// Returns true if iterations of this ring loop body may be skipped: it reads masks, and contains no
// collective outside of its own ring steps (ring_attention.cpp).
bool may_skip(const Plan&, const GlobalGraph&, int body);

// The unsharded graph, with the facts about it that do not depend on a plan. It grows when an op is
// expanded into other ops (global_graph.cpp).
struct GlobalGraph {
  // The top level or a body: its nodes, operands first, and their readers there. Reader -1: the
  // value is a result of the level.
  struct Level {
    std::vector<int> order;
    std::unordered_map<int, std::vector<int>> users;
  };
  struct GlobalValue {
    NodePtr node;
    std::vector<int> in = {};  // operands; -1: none
    bool generated = false;    // computed from scalars and positions, locally in any sharding
    // an input of any kind, or computed from inputs alone by views and elementwise ops
    bool of_inputs = false;
    // the loops on whose carries the value depends; a loop is identified by its first index
    std::vector<const Node*> carried = {};
    int expansion_of = -1;    // the op that it helps to expand; -1: an op of the user
    Sharding preferred = {};  // sharding that later readers prefer
  };
  std::vector<GlobalValue> values;
  std::vector<int> roots;
  const Mesh& mesh;

  GlobalGraph(const Nodes& roots, const std::vector<Sharding>& requested, const Mesh&);
  int id(const NodePtr&);
  GlobalValue& at(int n) { return values[std::size_t(n)]; }
  const GlobalValue& at(int n) const { return values[std::size_t(n)]; }
  const NodePtr& ptr(int n) const { return at(n).node; }
  const Node& node(int n) const { return *ptr(n); }
  int find(const Node* n) const;      // -1: not in this graph
  const Node& user_op(int n) const {  // the user's op that it is, or helps to expand
    while (at(n).expansion_of >= 0) n = at(n).expansion_of;
    return node(n);
  }
  bool is_weight(int n) const { return at(n).of_inputs && is_float(node(n).dtype); }
  // Returns the input that it is, or one that it is computed from (of_inputs). Null: there is none.
  const Node* input(int n) const;
  double bytes(int n, const Sharding& at) const {  // bytes on one device
    return local_size(node(n).axes, at, mesh) * bytes_of(node(n).dtype);
  }
  const Level& level(int loop, std::size_t body);  // loop -1: the top level
  // Returns true if the node changes between iterations of this body. A value that an inner loop
  // carries changes if the inner loop does.
  bool changes_in(const Node&, const Loop&, std::size_t body) const;
  // Returns true if the loop has a flag, and runs no iteration if the flag is false.
  bool is_guarded(int loop) const;
  // Propagates the preferred sharding of n to its operands with ids of at least `least`.
  void propagate_preferred(int n, int least = 0);

 private:
  std::unordered_map<const Node*, int> ids_;
  std::unordered_map<const Node*, const Node*> loops_;  // by their first indices
  std::map<std::pair<int, std::size_t>, Level> levels_;
  void prefer(int n, const Sharding&);
  void init_preferred(const std::vector<Sharding>& requested);
};

using prim::kNegligibleBytes;
// Bytes per device in one bucket. Larger buckets would keep too many arrays live while they wait.
constexpr double kBucket = 32 << 20;

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

// ---- passes and reports, each in the file of its name if no other is given ----
// Returns the sharding that a sharding constraint requires (global_graph.cpp). Errors refer to the
// line of the constraint.
Sharding constraint(const Node&, const Mesh&);
// Returns the public name of the op; for a constraint, the op that requires it
// (report/planned_collectives.cpp).
const char* user_op_name(const Node&);
// Searches for the plan with the fewest bytes among the plans that compute at most 1 % more
// elements than the default plan (search.cpp). strict: without additional unrequested gathers.
Plan best_plan(GlobalGraph&, Planner&, bool strict);
// Returns the number of all-gathers that no result, constraint or rule requires
// (report/gather_reasons.cpp).
std::ptrdiff_t unrequested_gathers(const Plan&, const GlobalGraph&);
// Returns the plan in human-readable form (report/print.cpp).
std::string to_string(const Plan&, const GlobalGraph&, const Gradients* = nullptr);
// Raises if the plan breaks an invariant. requested: the shardings that the results must have,
// partial sums included; null: not checked.
void verify(const Plan&, const GlobalGraph&, const char* after,
            const std::vector<Sharding>* requested = nullptr);
// Raises if the node that a device created for a version is not the block that the plan specifies.
// created: a node per version; null: none.
void verify_device(const Plan&, const GlobalGraph&, int device, const std::vector<NodePtr>& created,
                   const char* after);
// Returns the roots, in which loops save additional residuals that later loops would otherwise
// communicate again (residuals.cpp).
Nodes with_residuals(const Nodes& roots, const Plan&, GlobalGraph&, bool gathers_too);
// Lets weights be gathered again in each iteration over microbatches, and for the backward pass.
void regather(Plan&, const GlobalGraph&);
// Replaces gathers that one contraction reads by ring steps, one per block.
void ring(Plan&, const GlobalGraph&);
// Merges collectives that can share one call into buckets.
void bucket(Plan&, const GlobalGraph&, bool overlap);
// Sets `live` for the versions that a root depends on, and recomputes Plan::bytes (bucket.cpp).
void drop_dead_versions(Plan&);
// Returns the collectives in execution order.
std::vector<PlannedCollective> planned_collectives(const Plan&, const GlobalGraph&,
                                                   const Gradients* = nullptr);
Nodes emit(const Plan&, const GlobalGraph&, const std::vector<PartitionInput>&, const Mesh&,
           int device, Nodes& placeholders, bool verify);

}  // namespace haliax::partitioning
