// The collectives of a plan, in order, as data for reports. For their names, see
// collective_names.h.
#pragma once
#include "graph/node.h"
#include "transforms/sharding.h"

namespace haliax {

struct CommunicatedArray {
  enum class What : std::uint8_t { argument, gradient, updated, op, part } what = What::op;
  // The argument itself, the parameters whose gradient it is, or the parameter that it updates.
  Names names = {};
  const char* op = "";  // the op that computed it, or whose intermediate it is
  Axes axes = {};       // axes of the unsharded array
};
// The reason for an all-gather: the result, constraint or rule that requires it.
enum class GatherReason : std::uint8_t {
  unrequested,
  unmapped,  // an op replicates an axis because the mapping in scope lacks it
  result,
  constraint,
  parameter,
  gradient,
  blocks
};
const char* name_of(GatherReason);  // name in reports
// Returns true if the user requested the gather: neither `unrequested` nor `unmapped`.
bool is_requested(GatherReason);
struct PlannedCollective {
  enum class Kind : std::uint8_t {
    reduce_scatter,
    all_to_all,
    all_reduce,
    all_gather,
    ring,
    permute
  } kind = Kind::all_to_all;
  MeshAxes over = {};                          // mesh axes
  std::vector<CommunicatedArray> arrays = {};  // arrays that the collective communicates
  Names loops = {};                            // axes of the enclosing loops, outermost first
  const char* cause = nullptr;                 // the op that reads the result; null: a result
  Origin origin = {};                          // origin of that op
  GatherReason reason = GatherReason::unrequested;
  Name unmapped = {};                // for GatherReason::unmapped: the axis
  double bytes = 0, iterations = 1;  // bytes: sent per device and iteration, on a ring
  bool at_most = false;              // an upper bound: masks may skip it
  // Returns true if a device receives data that other devices hold.
  bool gathers() const { return kind == Kind::all_gather || kind == Kind::ring; }
};

namespace partitioning {

struct Plan;
struct GlobalGraph;
// Returns the collectives in execution order.
std::vector<PlannedCollective> planned_collectives(const Plan&, const GlobalGraph&);
// Returns the public name of the op; for a constraint, the op that requires it.
const char* user_op_name(const Node&);

}  // namespace partitioning
}  // namespace haliax
