// What a partition is given beside the graph.
#pragma once
#include <memory>
#include <optional>

#include "graph/node.h"
#include "transforms/sharding.h"

namespace haliax {

struct PartitionOptions {
  bool verify = false;  // DebugOptions::verify
  // each loop gathers its weights anew; off: they are gathered once, before the first loop
  bool regather = true;
  bool ring = false;  // a gather that one contraction reads: block by block, see ring
  // keys that are cut as their queries are: block by block, where scores are walked (rounds.cpp)
  bool ring_attention = false;
  bool overlap = false;  // collectives go on beside the work, see JitOptions
  bool strict = false;   // no gather is chosen for its bytes if nobody asked for it
  std::optional<DType> reduce_dtype = {};           // of pending sums of narrower floats
  std::shared_ptr<const Gradients> gradients = {};  // noted as the graph was traced, for reports
};
struct PartitionInput {
  NodePtr global;
  Sharding at;
};

}  // namespace haliax
