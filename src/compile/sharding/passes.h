// The passes over a plan, each in the file of its name if no other is given.
#pragma once
#include <functional>

#include "ops/blockwise.h"
#include "compile/sharding/global_graph.h"
#include "compile/sharding/partition_options.h"
#include "compile/sharding/plan.h"

namespace haliax::partitioning {

using prim::kNegligibleBytes;
// Bytes per device in one bucket. Larger buckets would keep too many arrays live while they wait.
constexpr double kBucket = 32 << 20;
constexpr int kMaxRingSteps = 32;  // the Program contains the body of a ring once per step

// A graph with its plan. A pass that changes the graph plans it again.
struct Planned {
  Nodes roots;
  std::unique_ptr<GlobalGraph> graph = {};
  Plan plan = {};
};
// Plans these roots. regather: each loop gathers its weights again (PartitionOptions::regather).
using Replan = std::function<Planned(const Nodes& roots, bool regather)>;

// Saves a value that was gathered or summed over devices, or communicates it again.
//
// - In a loop over layers, the weights of a layer are gathered in each iteration. Without the
//   option `regather`, all weights are gathered once, before the loop (Cost), unless gathering them
//   again communicates fewer bytes (is_cheaper).
// - A sum in a loop that a later loop would repeat is saved, without `regather` also a gather.
// - With `regather`, weights that are gathered outside of such loops are gathered again, if more
//   than kBucket bytes would be resident.
//
// For example, a training step gathers layer k in the forward pass, and again in the backward pass,
// but sums its activations over `model` in the forward pass only.
Planned rematerialize(Planned, const PartitionOptions&, const Replan&);
// Replaces gathers that one contraction reads by ring steps, one per block.
void ring(Plan&, const GlobalGraph&);
// Merges collectives that can share one call into buckets.
void bucket(Plan&, const GlobalGraph&, bool overlap);
// Returns the graph of one device. placeholders: receives its shards of the inputs.
Nodes emit(const Plan&, const GlobalGraph&, const std::vector<PartitionInput>&, const Mesh&,
           int device, Nodes& placeholders, bool verify);
// Returns true if iterations of this ring loop body may be skipped: it reads masks, and contains no
// collective outside of its own ring steps (ring_loops.cpp).
bool may_skip(const Plan&, const GlobalGraph&, int body);
// Raises if the plan breaks an invariant. requested: the shardings that the results must have,
// partial sums included; null: not checked.
void verify(const Plan&, const GlobalGraph&, const char* after,
            const std::vector<Sharding>* requested = nullptr);
// Raises if the node that a device created for a version is not the block that the plan specifies.
// created: a node per version; null: none.
void verify_device(const Plan&, const GlobalGraph&, int device, const std::vector<NodePtr>& created,
                   const char* after);

}  // namespace haliax::partitioning
