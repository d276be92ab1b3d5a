// The passes over a plan, each in the file of its name if no other is given.
#pragma once
#include "ops/blockwise.h"
#include "compile/sharding/global_graph.h"
#include "compile/sharding/partition_options.h"
#include "compile/sharding/plan.h"

namespace haliax::partitioning {

using prim::kNegligibleBytes;
// Bytes per device in one bucket. Larger buckets would keep too many arrays live while they wait.
constexpr double kBucket = 32 << 20;

// ---- rematerialize: a value that was gathered or summed over devices is saved, or communicated
// again ----
//
// - In a loop over layers, the weights of a layer are gathered in each iteration. Without the
//   option `regather`, all weights are gathered once, before the loop (Cost), unless gathering them
//   again communicates fewer bytes (is_cheaper).
// - A sum in a loop that a later loop would repeat is saved as a stack, and without `regather`, a
//   gathered value too (`with_residuals`).
// - With `regather`, a weight that is gathered outside of such loops is freed during its longest
//   interval without a reader, and gathered again, if more than kBucket bytes would be resident
//   (`regather`).
//
// For example, a training step gathers layer k in the forward pass, and again in the backward pass,
// but sums its activations over `model` in the forward pass only.

// Returns the roots, in which loops save additional residuals that later loops would otherwise
// communicate again (residuals.cpp).
Nodes with_residuals(const Nodes& roots, const Plan&, GlobalGraph&, bool gathers_too);
// Lets weights be gathered again in each iteration over microbatches, and for the backward pass.
void regather(Plan&, const GlobalGraph&);
// Replaces gathers that one contraction reads by ring steps, one per block.
void ring(Plan&, const GlobalGraph&);
// Merges collectives that can share one call into buckets.
void bucket(Plan&, const GlobalGraph&, bool overlap);
// Returns the graph of one device. placeholders: receives its shards of the inputs.
Nodes emit(const Plan&, const GlobalGraph&, const std::vector<PartitionInput>&, const Mesh&,
           int device, Nodes& placeholders, bool verify);
// Returns true if iterations of this ring loop body may be skipped: it reads masks, and contains no
// collective outside of its own ring steps (ring_attention.cpp).
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
