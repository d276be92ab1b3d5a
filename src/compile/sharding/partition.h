// One mapping shards everything: from the graph of the whole to the graph of one device, with collectives.
//
// In: the graph of the whole; the sharding of each input and root; constraints (prim::pin) and the mapping in the origin of each
// node. Out: for each device a graph of local arrays and collectives. Always: how an op may be cut follows from its rule along
// axes (Along, in graph/node.h) alone, and what it has no rule for is gathered, never cut; all devices make the same calls in the
// same order; the values are those of the graph of the whole, up to the order in which sums over a cut axis are taken (by rank),
// and that of narrow floats each device rounds its own (see reduce_dtype).
#pragma once
#include <map>
#include <optional>

#include "transforms/rewrite.h"
#include "transforms/sharding.h"

namespace haliax {

struct PartitionOptions {
  bool regather = true;  // each loop gathers its weights anew; off: they are gathered once, before the first loop
  bool ring = false;     // a gather that one contraction reads: block by block, see ring
  bool overlap = false;  // collectives go on beside the work, see JitOptions
  bool strict = false;   // no gather is chosen for its bytes if nobody asked for it
  std::optional<DType> reduce_dtype = {};  // of pending sums of narrower floats
  std::shared_ptr<const Gradients> gradients = {};  // noted as the graph was traced, for reports
};
struct PartitionInput {
  NodePtr whole;
  Sharding at;
};
// ---- what moves, in order; runtime/explain says it in words ----
struct Moved {
  enum class What : std::uint8_t { argument, gradient, updated, op, part } what = What::op;
  Names names = {};     // of arguments: the array itself, those whose gradient it is, the one whose new value it is
  const char* op = "";  // that made it, or of which it is a part
  Axes axes = {};       // on the whole
};
enum class Asked : std::uint8_t { nobody, result, constraint, parameter, gradient, blocks };  // by what a gather was asked for
const char* name_of(Asked);  // as reports say it
struct Move {
  enum class Kind : std::uint8_t { reduce_scatter, all_to_all, all_reduce, all_gather, ring, permute } kind = Kind::all_to_all;
  Cut over = {};                   // mesh axes
  std::vector<Moved> arrays = {};  // in one call
  Names loops = {};                // the axes walked around it, outermost first
  const char* cause = nullptr;     // the op that wants it; null: it is a result
  Origin origin = {};              // of that op
  Asked asked = Asked::nobody;
  double bytes = 0, turns = 1;     // sent per device on a ring, in one turn
  bool gathers() const { return kind == Kind::all_gather || kind == Kind::ring; }  // does a device get what others have?
};

// A plan for all devices of a mesh: how each value is cut, and what is sent. `wanted`: the sharding of each root.
class Partition {
 public:
  Partition(const Nodes& roots, const std::vector<Sharding>& wanted, std::vector<PartitionInput> inputs, const Mesh&,
            PartitionOptions = {});
  ~Partition();

  // ---- the passes, in order; pipeline.cpp says what they do ----
  void plan();
  void residuals();
  void regather();
  void ring();
  void bucket();
  struct DeviceGraph {
    Nodes roots, inputs;
  };
  DeviceGraph on(int device) const;  // its graph, and placeholders of its part of the inputs

  std::vector<Move> moves() const;
  double sent_bytes() const;
  bool even() const;                         // all blocks of an axis have one size: the devices' graphs are alike
  std::int64_t size() const;                 // versions
  std::string text() const;                  // for people
  void verify(const char* after) const;      // raises

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace haliax
