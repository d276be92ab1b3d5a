// What the passes plan, residuals, regather, ring and bucket work on. A plan says, for all devices
// alike, which versions of each value there are (whole, cut, pending), which is made of which, and
// what is sent; `emit` makes one device's graph of it.
//
// Always: in the list of its body, or of one around it, what a version reads comes before it; a
// plan cuts, and leaves pending, only what the rules allow (verify.cpp).
#pragma once
#include <functional>
#include <map>
#include <unordered_map>

#include "graph/loop.h"
#include "ops/blockwise.h"
#include "compile/sharding/planned_collectives.h"
#include "compile/sharding/partition_options.h"
#include "compile/sharding/rules.h"
#include "compile/sharding/reshard.h"

namespace haliax::partitioning {

// One version of the value of one node.
struct Version {
  enum class Kind : std::uint8_t {
    given,     // an input, or an array that the graph captured
    carry,     // what a loop carries
    generate,  // of numbers and positions: made in place, in any sharding
    compute,
    // positions moved along an axis, by an exchange or (bytes 0) by slices of what each device has
    shift,
    // an axis in parts, or parts in an axis, whose blocks do not lie in one another: an exchange
    regroup,
    reshard,
    ring_receive,  // in a loop that goes round: the block of the device whose turn this is
    ring_return,   // what such a turn made of a block, sent back to the device that has the block
    loop,
    result,  // of a loop
  } kind = Kind::given;
  int node = -1, body = 0;
  Sharding at = {};
  std::vector<int> in = {};  // versions, one for each operand (-1: none)
  ReshardStep reshard_step = {};
  std::vector<CopyBox> copy_boxes = {};  // shift, regroup: `array` says which of `in`
  bool local_iterations = false;         // compute: a slice that counts the turns of this device
  int loop = -1;                         // loop, result, carry: which of the plan's loops
  std::size_t result = 0;                // result, carry: which of the loop's
  bool live = false;
  int bucket = -1;  // versions with one bucket are one call
  // a gather: the contraction that takes its blocks one by one, so that it is never made
  int ring = -1;
  int cause = -1;  // the node that it is made for; -1: a result
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
struct Body {  // the top, or a body of a loop
  int parent = -1, loop = -1;
  std::size_t number = 0;          // of the loop's bodies
  double iterations = 1;           // of all loops around it
  std::vector<int> versions = {};  // what is made here, in order
};
struct LoopPlan {
  int node = -1;
  std::vector<int> bodies = {};  // of each body
  MeshAxes shared_by =
      {};  // mesh axes that share the turns: each device walks its own block of them
  // or the one whose blocks go round: each device makes all turns, from its own on
  MeshAxes ring_axes = {};
  std::vector<Sharding> inside = {}, at = {};  // of each result, in a turn and after the last
  std::vector<std::vector<int>> value = {};    // [result][body]: versions
  std::vector<std::vector<int>> carry = {};    // likewise, the placeholders
  std::vector<int> start = {};
};
struct Plan {
  std::vector<Version> versions;
  std::vector<Body> bodies;
  std::vector<LoopPlan> loops;
  std::vector<int> roots;
  double bytes = 0, points = 0;  // sent; points of ops computed; both per device

  Version& version(int k) { return versions[std::size_t(k)]; }
  const Version& version(int k) const { return versions[std::size_t(k)]; }
  const Body& body(int k) const { return bodies[std::size_t(k)]; }
  Body& body(int k) { return bodies[std::size_t(k)]; }
  const LoopPlan& loop(int k) const { return loops[std::size_t(k)]; }
  LoopPlan& loop(int k) { return loops[std::size_t(k)]; }
  // of other versions than loops: none
  const std::vector<int>& bodies_of(const Version& v) const {
    static const std::vector<int> none;
    return v.kind == Version::Kind::loop ? loop(v.loop).bodies : none;
  }
};

// The versions that read each version, and -1 for each time that it is a result or a value of a
// loop.
std::vector<std::vector<int>> readers_of(const Plan&);

struct GlobalGraph;
// Of the body of a loop that goes round: does it stand under masks, and make no other call? Then
// each of its calls says on which devices it is needed. (rounds.cpp)
bool may_skip(const Plan&, const GlobalGraph&, int body);

// The graph of the whole, and what is known of it before anything is cut. Grows when an op is said
// in terms of others. (whole.cpp)
struct GlobalGraph {
  // the top, or a body: its nodes, inputs first, and who reads them there (-1: what comes out)
  struct Level {
    std::vector<int> order;
    std::unordered_map<int, std::vector<int>> users;
  };
  struct GlobalValue {
    NodePtr node;
    std::vector<int> in = {};  // operands; -1: none
    bool generated = false;    // made of numbers and positions: anywhere, at no traffic
    // an input of any kind, or made of inputs alone by views and point by point
    bool of_inputs = false;
    // made of what these loops carry, by their first indices
    std::vector<const Node*> carried = {};
    int expansion_of = -1;  // which op it helps to say in terms of others; -1: it is the user's own
    Sharding preferred = {};  // what later readers will want it cut by
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
  int find(const Node* n) const;      // -1: not here
  const Node& user_op(int n) const {  // the op of the user's that it helps to make
    while (at(n).expansion_of >= 0) n = at(n).expansion_of;
    return node(n);
  }
  bool is_weight(int n) const { return at(n).of_inputs && is_float(node(n).dtype); }
  // that it is, or that it is made of (of_inputs); null: it is something else
  const Node* input(int n) const;
  double bytes(int n, const Sharding& at) const {  // on one device
    return local_size(node(n).axes, at, mesh) * bytes_of(node(n).dtype);
  }
  const Level& level(int loop, std::size_t body);  // loop -1: the top
  // Does it change from turn to turn of this body? So does what a loop inside of it carries, if
  // that loop does.
  bool changes_in(const Node&, const Loop&, std::size_t body) const;
  bool is_guarded(int loop) const;  // has it a flag without which there is no turn?
  // hands n's wish to its operands, those numbered `least` or later
  void propagate_preferred(int n, int least = 0);

 private:
  std::unordered_map<const Node*, int> ids_;
  std::unordered_map<const Node*, const Node*> loops_;  // by their first indices
  std::map<std::pair<int, std::size_t>, Level> levels_;
  void prefer(int n, const Sharding&);
  void init_preferred(const std::vector<Sharding>& requested);
};

using prim::kNegligibleBytes;
// bytes on one device: waiting for more would keep too much live
constexpr double kBucket = 32 << 20;

// What may be decided otherwise, if fewer bytes are sent: whose cuts an op follows first; how it
// comes by an axis that it needs whole and that is cut; what stays pending; which version of a
// value a loop stacks.
constexpr int kWish = -2, kUsual = -1;  // else the number of an operand
// gathered: no blocks, no exchange; the cut moves to another axis, however small
constexpr int kWhole = -3, kMoved = -4;
// a pending sum rides through `place`, which makes it larger: other terms are as large
constexpr int kRides = -5;
struct Choices {
  std::map<int, int> follow;
  std::map<std::pair<int, std::size_t>, Sharding> stack;
};

// What is planned so far, and questions about it; no question changes anything. (planned.cpp)
class Planned {
 protected:
  Planned(GlobalGraph&, const PartitionOptions&);

  struct Draft {  // all that a second attempt starts from again
    Plan plan;
    struct Planning {                  // of a node
      std::vector<int> versions = {};  // the first is the one that was computed
      char lazy = 0;      // 0, or how many ops deep what each reader makes for itself is
      bool done = false;  // planned
      int instead = -1;   // what is planned in its place
    };
    std::vector<Planning> nodes;
    std::vector<std::pair<int, int>> contested;
    Planning& at(int n) { return nodes[std::size_t(n)]; }
    const Planning& at(int n) const { return nodes[std::size_t(n)]; }
  };
  struct OpenBody {
    int loop;
    std::size_t number;
    int body;
    MeshAxes shared_by = {}, round = {};
  };
  struct Offer {
    double cost = 0;
    int version = -1;
    bool remake = false;
    std::size_t length = 0;
  };
  enum class Rides : std::uint8_t { no, yes, larger };  // larger: what is pending would grow

  const Node& node(int n) const { return whole_.node(n); }
  const NodePtr& ptr(int n) const { return whole_.ptr(n); }
  int operand(int n, std::size_t k) const { return whole_.at(n).in[k]; }
  bool generated(int n) const { return whole_.at(n).generated; }
  const Sharding& wish(int n) const { return whole_.at(n).preferred; }
  const Version& version(int s) const { return now_.plan.version(s); }
  const std::vector<int>& versions(int n) const { return now_.at(n).versions; }
  bool lazy(int n) const { return now_.at(n).lazy; }
  bool done(int n) const { return now_.at(n).done; }
  int instead(int n) const { return now_.at(n).instead; }
  bool chosen(int n, int way) const;  // over what is usual
  // whose cuts an op follows; kMoved also where it helps to make such an op of its kind
  int decided(int n) const;
  double bytes(int n, const Sharding& s) const { return whole_.bytes(n, s); }
  int body_of(int n) const;
  double turns_of(int n) const { return now_.plan.body(body_of(n)).iterations; }
  // Mesh axes that share the turns of the loops around: they cut nothing inside. Nor, in a loop
  // whose turns a flag decides about, what is the same in all turns: devices with other turns may
  // have another flag.
  MeshAxes taken(const Node&) const;
  MeshAxes own_turns(int n) const;  // those of the loop whose turns this slice counts
  Sharding needed(int n, std::size_t k, const Sharding& work) const;
  const std::vector<int>& users(int n) const;
  const Sharding& first(int n) const;  // as it was computed, or as a constraint says
  Offer offer(int n, const Sharding& need, int depth = 0) const;
  bool gathers_ahead(int n) const;

  // ---- how an op may be cut (cuts.cpp) ----
  Sharding work_of(int n, int follow) const;
  std::optional<Sharding> otherwise_cut(int n, const Sharding& usual, int follow) const;
  void assign(const Node&, Sharding& work, Name, const MeshAxes&) const;
  void displace(int n, Sharding& work, int follow) const;
  void cut_rows(int n, Sharding& work) const;
  Rides rides(int n, std::size_t k, int x, Monoid, const Sharding& work) const;
  std::pair<Name, MeshAxes> landing(int n, int x) const;
  int awaited(int n) const;          // whose cut says whether n is put off; -1: it is not
  bool waits_to_shift(int x) const;  // a slice that is put off
  // `awaited` is planned: will others read through n rather than read it?
  bool put_off(int n) const;
  int blocks_along(const Node& op, Name axis, std::int64_t least = 0) const;
  bool goes_by_blocks(const Node& op, Name axis, std::int64_t least = 0) const;
  bool first_in_blocks(const Node&) const;

  // ---- loops (planner_loops.cpp) ----
  bool accumulates(int loop, std::size_t k, std::size_t body) const;
  bool shares_work(int loop, Name walked, const MeshAxes& devices) const;
  bool reads_more(const std::vector<int>& order, int x, Name axis, const Node* index) const;
  MeshAxes shared_turns(int loop) const;
  MeshAxes ring_axes_of(int loop) const;  // ring_attention.cpp
  Sharding kept(int n, const LoopResult&) const;
  Sharding resolved(int n) const;  // nothing pending, where it is wanted

  GlobalGraph& whole_;  // grows when an op is said in terms of others, and remembers its levels
  const Mesh& mesh_;
  const PartitionOptions& options_;
  const Choices* choices_ = nullptr;
  std::map<int, Sharding> pins_;  // of constraints that are planned
  Draft now_;
  std::vector<OpenBody> open_;  // the bodies that are being planned, outermost first
};

// What a run has planned, and what may pay to decide otherwise: whose cuts a node follows, how a
// result of a loop is stacked.
struct Run {
  Plan plan;
  std::vector<std::pair<int, int>> contested;
  std::map<std::pair<int, std::size_t>, Sharding> stacks;
};

// The plan in the making: each op in turn. (planner.cpp)
class Planner : Planned {
 public:
  Planner(GlobalGraph&, const PartitionOptions&, const std::vector<PartitionInput>&,
          const std::vector<Sharding>& requested);
  Run run(const Choices&, bool contest);  // contest: say what may be decided otherwise

 private:
  Version& version(int s) { return now_.plan.version(s); }
  std::vector<int>& versions(int n) { return now_.at(n).versions; }
  using Planned::version, Planned::versions;
  void fit_tables();                              // after the whole has grown
  int add(Version);                               // to the body that its node varies with
  void put_first(int n, Version, double points);  // as it was computed
  void contest(int n, int way);
  int obtain(int n, Sharding need);  // the version that is so
  int obtain_lazy(int n, const Sharding& need);
  bool asks_for(int n, const Sharding& need) const;  // n, as a constraint
  // of operands that are whole, or seen through a view
  int made_now(int n, const Sharding& need);
  int version_generated(int n, const Sharding& need);

  // ---- ops ----
  void compute(int n, bool asked_for = false);
  void compute_op(int n);
  void pin(int n);
  bool leave_to_readers(int n);
  using Pending = std::vector<std::vector<std::pair<int, Monoid>>>;  // of each operand
  Pending ride_or_land(int n, Sharding& work);
  void compute_at(int n, const Sharding& work, const Pending&, const Sharding& kept,
                  const Sharding& created);
  void contest_cuts(int n, const Sharding& usual);
  void plan_instead(int n, const NodePtr& other);  // is planned in its place
  NodePtr in_wider_sums(int n, const Sharding& pending);
  NodePtr apart_from_base(int n, const Sharding& created);

  // ---- along an axis that is cut (planner_axes.cpp) ----
  // in terms of other ops, where an axis that it needs whole is cut; null: no
  NodePtr otherwise(int n);
  void shift(int n, const Sharding& work);
  bool regroup(int n, const Sharding& work, const Sharding& keep);
  void move_base(int x, const Sharding& need);
  void rematerialise(int n, int base, const Sharding& need);

  // ---- loops that go round (rounds.cpp) ----
  struct LoopAttempt;
  bool visit(int n);
  int sent_back(const LoopAttempt&, int n, const Sharding& at);
  bool is_stuck(const LoopAttempt&) const;

  // ---- loops (planner_loops.cpp) ----
  void loop(int n);
  std::vector<Sharding> carries_of(int n);
  void plan_body(LoopAttempt&, std::size_t b);
  void plan_value(LoopAttempt&, std::size_t k, std::size_t b);
  void forget_body(const Loop&, std::size_t b);
  void finish_loop(LoopAttempt&);

  const std::vector<PartitionInput>& inputs_;
  const std::vector<Sharding>& requested_;
  bool contests_ = false;
  std::map<std::pair<int, std::size_t>, Sharding> stacks_;
  // what the carries of each loop came to, for the next run
  std::map<int, std::vector<Sharding>> carried_;
  int cause_ = -1;  // what is being made
};
// One go at a loop. What its carries come to is known when its bodies are planned; if that is more
// than they started with, again.
struct Planner::LoopAttempt {
  int n;  // the node
  const Loop& l;
  int loop;          // of the plan
  MeshAxes blocked;  // mesh axes that share turns: they cut nothing inside
  bool last;         // the carries stay as they are
  std::vector<Sharding> carried;
  LoopPlan plan;
  bool changed = false;
};

// ---- each in the file of its name; best: search.cpp, unasked: asked.cpp, said,
// planned_collectives: report.cpp ---- what `shard` asks for; raises where it was written
// (whole.cpp)
Sharding constraint(const Node& pin, const Mesh&);
const char* user_op_name(
    const Node&);  // the op as users know it; of a constraint, the op that wants it
// The run that sends least, of those that are fair; strict: of those with no more gathers that
// nobody asked for.
Plan best_plan(GlobalGraph&, Planner&, bool strict);
std::ptrdiff_t unrequested_gathers(const Plan&,
                                   const GlobalGraph&);  // gathers that nobody asked for
// for people (print.cpp)
std::string to_string(const Plan&, const GlobalGraph&, const Gradients* = nullptr);
// Raises. wanted: how the results should lie, nothing pending that is not wanted so; null: it is
// not known.
void verify(const Plan&, const GlobalGraph&, const char* after,
            const std::vector<Sharding>* requested = nullptr);
// What a device made of each version (null: nothing): its block, of the positions that the plan
// says. Raises.
void verify_device(const Plan&, const GlobalGraph&, int device, const std::vector<NodePtr>& created,
                   const char* after);
// The roots, with loops that keep what later loops would have to send again. (residuals.cpp)
Nodes with_residuals(const Nodes& roots, const Plan&, GlobalGraph&, bool gathers_too);
// weights, in each turn over microbatches, and for the backward pass
void regather(Plan&, const GlobalGraph&);
void ring(Plan&,
          const GlobalGraph&);  // gathers that one contraction reads are taken block by block
void bucket(Plan&, const GlobalGraph&, bool overlap);  // collectives that can be one call are
void drop_dead_versions(Plan&);                        // (bucket.cpp)
std::vector<PlannedCollective> planned_collectives(const Plan&, const GlobalGraph&,
                                                   const Gradients* = nullptr);  // in order
Nodes emit(const Plan&, const GlobalGraph&, const std::vector<PartitionInput>&, const Mesh&,
           int device, Nodes& placeholders, bool verify);

}  // namespace haliax::partitioning
