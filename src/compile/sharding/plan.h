// The data structures of the passes plan, rematerialize, ring and bucket. A plan is the same for
// all devices. It lists the versions of each value (replicated, sharded or partial), the versions
// that each version reads, and the collectives. `emit` builds the graph of one device from the
// plan.
//
// Always  the versions that a version reads precede it, in the list of its own body or of an
//         enclosing body. A plan shards a value, or leaves it partial, only if the rules allow it
//         (verify.cpp).
#pragma once
#include <variant>

#include "graph/loop.h"
#include "compile/sharding/reshard.h"

namespace haliax::partitioning {

struct GlobalGraph;

// The kinds of versions, each with the data that only this kind has.
struct Given {};  // an input, or an array that the graph captured
struct Carry {    // the value that an iteration receives from the iteration before
  int loop = -1;  // index into Plan::loops
  std::size_t result = 0;
};
struct Generate {};  // computed from scalars and positions alone, locally and in any sharding
struct Compute {
  bool local_iterations = false;  // a slice at the device's own iteration
};
struct Moved {
  ReshardStep step;
  std::vector<CopyBox> boxes;  // `array` is an index into Version::in
};
// Positions move along an axis, by send and receive, or by local slices (bytes 0).
struct Shift : Moved {};
// An axis is split or flattened, and the blocks before and after do not match: an all-to-all.
struct Regroup : Moved {};
struct Reshard {
  ReshardStep step;
  // a gather: the contraction that reads its blocks one by one, so it is never materialized
  int ring = -1;
};
struct RingReceive {  // in a ring loop: the block of this iteration, from another device
  ReshardStep step;
};
struct RingReturn {  // in a ring loop: partial sums for a block, sent to its device
  ReshardStep step;
};
struct RunLoop {
  int loop = -1;
};
struct ResultOfLoop {
  int loop = -1;
  std::size_t result = 0;
};

// One version of the value of one node. For example, a sharded weight and the gathered weight are
// two versions of one node.
struct Version {
  using Kind = std::variant<Given, Carry, Generate, Compute, Shift, Regroup, Reshard, RingReceive,
                            RingReturn, RunLoop, ResultOfLoop>;
  Kind kind = Given{};
  int node = -1, body = 0;
  Sharding sharding = {};
  std::vector<int> in = {};  // versions, one for each operand (-1: none)
  bool live = false;
  int bucket = -1;  // versions with the same bucket share one collective
  int cause = -1;   // the node that requires the version; -1: a result

  template <class T> bool is() const { return std::holds_alternative<T>(kind); }
  template <class T> const T& as() const { return std::get<T>(kind); }
  template <class T> T& as() { return std::get<T>(kind); }
  // Return the data of any kind that has it: the communication, boxes that are copied, an index
  // into Plan::loops (-1: none), and the contraction of a ring (-1: none).
  const ReshardStep& step() const {
    static const ReshardStep none;
    return get(none, [](auto& k) -> decltype((k.step)) { return k.step; });
  }
  const std::vector<CopyBox>& boxes() const {
    static const std::vector<CopyBox> none;
    return get(none, [](auto& k) -> decltype((k.boxes)) { return k.boxes; });
  }
  int loop() const {
    return get(-1, [](auto& k) -> decltype((k.loop)) { return k.loop; });
  }
  int ring() const {
    return get(-1, [](auto& k) -> decltype((k.ring)) { return k.ring; });
  }

  bool moves() const { return is<Shift>() || is<Regroup>(); }
  bool in_ring_loop() const { return is<RingReceive>() || is<RingReturn>(); }
  bool sums() const {
    return is<Reshard>() && (step().kind == ReshardStep::Kind::all_reduce ||
                             step().kind == ReshardStep::Kind::reduce_scatter);
  }
  bool gathers() const {
    return live && is<Reshard>() && step().kind == ReshardStep::Kind::all_gather;
  }
  bool communicates() const {
    return (is<Reshard>() && step().kind >= ReshardStep::Kind::reduce_scatter) ||
           ((moves() || in_ring_loop()) && step().bytes > 0);
  }

 private:
  // Returns the field that `of` selects, or `none` for a kind without it.
  template <class T, class Of> const T& get(const T& none, Of of) const {
    return std::visit(
        [&](auto& k) -> const T& {
          if constexpr (std::is_invocable_v<Of, decltype(k)>)
            return of(k);
          else
            return none;
        },
        kind);
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
  std::vector<Sharding> inside = {}, after_loop = {};  // shardings of each result
  std::vector<std::vector<int>> value = {};            // [result][body]: versions
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
    return v.is<RunLoop>() ? loop(v.loop()).bodies : none;
  }
};

// Returns the versions that read each version. An entry -1 stands for a use as a result, or as the
// value of a loop.
std::vector<std::vector<int>> readers_of(const Plan&);

// Sets `live` for the versions that a root depends on, and recomputes Plan::bytes.
void drop_dead_versions(Plan&);
// Returns the plan in human-readable form (report/print.cpp).
std::string to_string(const Plan&, const GlobalGraph&);

}  // namespace haliax::partitioning
