// Options and inputs of a partition, in addition to the graph.
#pragma once
#include <memory>
#include <optional>

#include "graph/node.h"
#include "transforms/sharding.h"

namespace haliax {

struct PartitionOptions {
  bool verify = false;  // DebugOptions::verify
  // true: each loop gathers its weights again; false: weights are gathered once, before the first
  // loop
  bool regather = true;
  bool ring = false;  // a gather that one contraction reads runs block by block, see `ring`
  // Keys that are sharded like their queries rotate around the ring in loops that tile the scores
  // (ring_loops.cpp).
  bool ring_attention = false;
  bool overlap = false;  // collectives run concurrently with computation, see `JitOptions`
  bool strict = false;   // no unrequested gather is chosen to save bytes
  std::optional<DType> reduce_dtype = {};  // dtype of partial sums with fewer bits
  // recorded while the graph was traced, for reports
  std::shared_ptr<const Gradients> gradients = {};
};
struct PartitionInput {
  NodePtr global;
  Sharding sharding;
};

}  // namespace haliax
