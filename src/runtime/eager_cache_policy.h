// What is kept of a computation beside what it was asked for, so that a loop that reads its loss
// alone does not compute, at each step, all steps before.
#pragma once
#include <unordered_set>

#include "graph/node.h"

namespace haliax {

struct EagerCache {
  // Values that are made on the way, and that an array of the user's or another graph still refers
  // to: each is a result too. As far as they are made of memory anyway, or are small beside what
  // is.
  Nodes extra_results;
  // What may not forget how it was made: there may be a gradient to take by what it is made of.
  std::unordered_set<const Node*> bound;
  // Values from before that were bound, and are no longer.
  Nodes free;
};
// `nodes`: all that the roots are made of, down to values. In a GraphReader.
EagerCache choose_eager_cache(const Nodes& roots, const std::vector<const Node*>& nodes);

}  // namespace haliax
