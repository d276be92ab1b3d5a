// Moves contractions out of the loop of a scan: one contraction of all iterations is faster than one
// small contraction per iteration. Large ones stay in the loop, because the results of all
// iterations are materialized.
#pragma once
#include "graph/loop.h"

namespace haliax {

// Contracts a scanned array with a loop-invariant array before the loop: `x_t . w` of a recurrent
// cell becomes a slice of `x . w`. Returns the values of the body with these contractions replaced.
Nodes with_hoisted_contractions(const Nodes& created, NodeRef index, const Axis& axis);

}  // namespace haliax
