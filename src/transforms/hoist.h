// Moves contractions out of the loop of a scan: one contraction of all iterations is faster than
// one small contraction per iteration. Large ones stay in the loop, because the results of all
// iterations are materialized.
#pragma once
#include "graph/loop.h"

namespace haliax {

// Contracts a scanned array with a loop-invariant array before the loop: `x_t . w` of a recurrent
// cell becomes a slice of `x . w`. Returns the values of the body with these contractions replaced.
Nodes with_hoisted_contractions(const Nodes& created, NodeRef index, const Axis& axis);

// Computes sums of contractions after the loop. The gradient of a weight of a recurrent cell is
// such a sum: a sum over t of x_t^T g_t becomes one contraction over t. Operands that are computed
// in the loop become stacked results of it, and sums of these operands are also computed after the
// loop. An operand that is larger than the sum is not stacked.
class DeferredSums {
 public:
  explicit DeferredSums(const Loop&);
  // Returns the loop without these sums, and with the stacks that they read.
  const Loop& loop() const { return loop_; }
  // Returns the values of the original results, given the node of the changed loop.
  Nodes results(NodeRef loop) const;

 private:
  bool in_body(const Node&) const;
  bool is_slice(const Node& x) const;
  bool has_own_axis(const Node& x) const;
  bool is_stacked(const Node& x) const;
  bool can_defer(const Node& sum) const;
  NodePtr deferred(NodeRef sum);
  NodePtr stacked(NodeRef x);

  Loop loop_;                         // the changed loop
  std::vector<std::size_t> numbers_;  // its result for each original result
  Nodes sums_;                        // or the sum that replaces this result, else null
  Nodes stacks_;                      // inputs that represent results until the loop is built
  std::int64_t stacked_bytes_ = 0;    // bytes of the results that are added
};

}  // namespace haliax
