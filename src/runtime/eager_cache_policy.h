// Chooses the intermediates of an evaluation that are cached. Without the cache, a loop that reads
// only its loss would recompute all previous steps at each step.
#pragma once
#include <unordered_set>

#include "graph/node.h"

namespace haliax {

struct EagerCache {
  // Intermediates to which an array of the user or another graph still refers. Each of them becomes
  // an additional result, unless it exceeds both 64 MiB and the total size of the values that the
  // evaluation stores anyway.
  Nodes extra_results;
  // Nodes that retain their operands after the evaluation, because a gradient with respect to a
  // tracer below them may still be computed.
  std::unordered_set<const Node*> bound;
  // Nodes with a value that are not bound. They drop their operands after the evaluation.
  Nodes unbound;
};
// Returns the policy for an evaluation of the roots. `nodes`: all nodes that the roots depend on,
// down to nodes with values. Requires a GraphReader.
EagerCache choose_eager_cache(const Nodes& roots, const std::vector<const Node*>& nodes);

}  // namespace haliax
