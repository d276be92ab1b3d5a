// The data structures of the passes plan, residuals, regather, ring and bucket. A plan is the same
// for all devices. It lists the versions of each value (replicated, sharded or partial), the
// versions that each version reads, and the collectives. `emit` builds the graph of one device from
// the plan.
//
// Always  the versions that a version reads precede it, in the list of its own body or of an
//         enclosing body. A plan shards a value, or leaves it partial, only if the rules allow it
//         (verify.cpp).
#pragma once
#include "graph/loop.h"
#include "compile/sharding/reshard.h"

namespace haliax::partitioning {

struct GlobalGraph;

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

// Sets `live` for the versions that a root depends on, and recomputes Plan::bytes (bucket.cpp).
void drop_dead_versions(Plan&);
// Returns the plan in human-readable form (report/print.cpp).
std::string to_string(const Plan&, const GlobalGraph&, const Gradients* = nullptr);

}  // namespace haliax::partitioning
