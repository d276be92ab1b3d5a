// Partitioning by a mapping: from the global graph to the graph of one device, with collectives.
//
// In      the global graph; the sharding of each input and root; sharding constraints
//         (prim::kShardingConstraint), and the mapping in the origin of each node.
// Out     for each device, a graph of local arrays and collectives.
// Always  the sharding of an op follows only from its rule along each axis (Along, in
//         graph/node.h). An axis without a rule is gathered. All devices run the same collectives
//         in the same order. The values are those of the global graph, except for rounding: a sum
//         over a sharded axis adds the partial sums in the order of the devices, and each device
//         rounds its partial sums to 16-bit floats (see reduce_dtype).
#pragma once
#include <memory>

#include "compile/sharding/report/planned_collectives.h"
#include "compile/sharding/partition_options.h"

namespace haliax {

// A plan for all devices of a mesh: the sharding of each value, and the collectives. `requested`:
// the sharding of each root.
class Partition {
 public:
  Partition(const Nodes& roots, const std::vector<Sharding>& requested,
            std::vector<PartitionInput> inputs, const Mesh&, PartitionOptions = {});
  ~Partition();

  // ---- the passes, in order; pipeline.cpp describes each ----
  void plan();
  void rematerialize();
  void ring();
  void bucket();
  struct DeviceGraph {
    Nodes roots, inputs;
  };
  // Returns the graph of a device, and placeholders of its shards of the inputs.
  DeviceGraph device_graph(int device) const;

  std::vector<PlannedCollective> collectives() const;
  double sent_bytes() const;  // bytes communicated per device
  // Returns true if this plan communicates fewer bytes. With `strict`, a plan with fewer
  // unrequested gathers is better regardless of bytes.
  bool is_better_than(const Partition& other) const;
  // Returns the number of all-gathers that no result, constraint or rule requires.
  std::int64_t unrequested_gathers() const;
  // Returns true if all blocks of each sharded axis, and of each loop whose iterations are shared,
  // have one size. The arrays of all devices then have equal sizes.
  bool has_even_blocks() const;
  std::int64_t size() const;             // number of live versions
  std::string text() const;              // human-readable
  void verify(const char* after) const;  // raises if the plan breaks an invariant

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace haliax
