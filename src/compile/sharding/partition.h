// One mapping shards everything: from the graph of the whole to the graph of one device, with
// collectives.
//
// In: the graph of the whole; the sharding of each input and root; constraints (prim::pin) and the
// mapping in the origin of each node. Out: for each device a graph of local arrays and collectives.
// Always: how an op may be cut follows from its rule along axes (Along, in graph/node.h) alone, and
// what it has no rule for is gathered, never cut; all devices make the same calls in the same
// order; the values are those of the graph of the whole, up to the order in which sums over a cut
// axis are taken (by rank), and that of narrow floats each device rounds its own (see
// reduce_dtype).
#pragma once
#include <memory>

#include "compile/sharding/planned_collectives.h"
#include "compile/sharding/partition_options.h"

namespace haliax {

// A plan for all devices of a mesh: how each value is cut, and what is sent. `requested`: the
// sharding of each root.
class Partition {
 public:
  Partition(const Nodes& roots, const std::vector<Sharding>& requested,
            std::vector<PartitionInput> inputs, const Mesh&, PartitionOptions = {});
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
  DeviceGraph device_graph(
      int device) const;  // its graph, and placeholders of its part of the inputs

  std::vector<PlannedCollective> collectives() const;
  double sent_bytes() const;
  // Sends it less than another? With `strict`, fewer gathers that nobody asked for count more than
  // bytes.
  bool is_better_than(const Partition& other) const;
  std::int64_t unrequested_gathers() const;  // those that nobody asked for
  bool has_even_blocks()
      const;                  // all blocks of an axis have one size: the devices' graphs are alike
  std::int64_t size() const;  // versions
  std::string text() const;   // for people
  void verify(const char* after) const;  // raises

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace haliax
