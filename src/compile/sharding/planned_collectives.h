// What moves between devices, in order: what a plan says of it; runtime/move_text has the words.
#pragma once
#include "graph/node.h"
#include "transforms/sharding.h"

namespace haliax {

struct CommunicatedArray {
  enum class What : std::uint8_t { argument, gradient, updated, op, part } what = What::op;
  // of arguments: the array itself, those whose gradient it is, the one whose new value it is
  Names names = {};
  const char* op = "";  // that made it, or of which it is a part
  Axes axes = {};       // on the whole
};
// by what a gather was asked for
enum class GatherReason : std::uint8_t {
  unrequested,
  result,
  constraint,
  parameter,
  gradient,
  blocks
};
const char* name_of(GatherReason);  // as reports say it
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
  std::vector<CommunicatedArray> arrays = {};  // in one call
  Names loops = {};                            // the axes walked around it, outermost first
  const char* cause = nullptr;                 // the op that wants it; null: it is a result
  Origin origin = {};                          // of that op
  GatherReason reason = GatherReason::unrequested;
  double bytes = 0, iterations = 1;  // sent per device on a ring, in one turn
  bool at_most = false;              // less where masks make nothing of it
  // does a device get what others have?
  bool gathers() const { return kind == Kind::all_gather || kind == Kind::ring; }
};

}  // namespace haliax
