// Flags with which an iteration, or a part of it, is skipped at run time (early_exit.cpp).
#pragma once
#include "graph/loop.h"
#include "transforms/rewrite.h"

namespace haliax {

// A result of one iteration: the next value of a carry (`carry` is its previous value), or, with a
// null carry, the term that is added to the result.
struct IterationResult {
  NodePtr value, carry;
};
// Flags of an iteration that computes a tile. Without axes.
struct IterationFlags {
  // False if the iteration leaves all results unchanged: a mask is false everywhere, and the values
  // that replace the scores have no effect, since the running maximum is at least as large and exp
  // of the difference is 0. Null: not known.
  NodePtr changes = {};
  // False if a mask is false everywhere, independent of previous results.
  NodePtr may_be_true = {};
};
IterationFlags iteration_flags(const std::vector<IterationResult>&, const Node* index);
// Returns the value of an iteration as if it were computed without tiles of other axes, so that
// iteration_flags finds masks of the entire iteration in it. Null: it has another form.
NodePtr untiled(const NodePtr& value, const Node* index);
// A part of an iteration. Parts share no contraction and are skipped by different masks, such as
// two heads in one loop, each with its own tokens.
struct IterationPart {
  // Without axes. If it is false, all values of the part are 0, because masks are false everywhere.
  // Null: not known, or expensive to compute.
  NodePtr flag = {};
  // Pairs of the index of a result and its value. A sum may have several terms, which are added in
  // order.
  std::vector<std::pair<std::size_t, NodePtr>> values = {};
  // Requires a loop with any order of iterations. The iterations for which the flag is true run
  // first. A second loop then runs the iterations for which this flag is true: their masks are
  // false, but they change a result, for example if a query sees no key. Null: there is one loop.
  NodePtr deferred = {};
};
// Returns all values of the body as one part, without a flag.
IterationPart unsplit_iteration(const Loop&, std::size_t body);
// By loop: the parts of each of its bodies.
using IterationParts = std::unordered_map<const Node*, std::vector<std::vector<IterationPart>>>;
// may_skip = false: one part per body, without a flag.
IterationParts split_iterations(const Nodes& roots, bool may_skip);
// Returns a human-readable description for the loops below these roots.
std::string to_string(const IterationParts&, const Nodes& roots);

}  // namespace haliax
