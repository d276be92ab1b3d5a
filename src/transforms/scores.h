// Tiling of attention scores. The size of scores grows with the square of the sequence length.
// Large scores are never materialized: they get the region boundaries that a chunked_reduce over
// the queries would have (transforms/chunked.h). Boundaries are added before a gradient is taken,
// and when a graph is compiled; both places apply the same rule.
//
// Scores are a contraction of queries and keys, or a reduction of another elementwise function of
// both, such as sum((q - k)^2). They are recognized by their readers, however the model is written:
//
// - All readers work position by position along the queries.
// - One of them reduces over the keys, as softmax does. Without such a reduction (sigmoid
//   attention), the scores must have more elements than the hidden values of a layer would.
// - One of them is a contraction with the values over the keys, or a reduction of values times
//   weights.
//
// The backward pass needs no rule: it is the gradient of the nodes between the boundaries.
#pragma once
#include "transforms/rewrite.h"

namespace haliax {

// Returns the budget that was requested, or that of HALIAX_SCORES, if there is one.
std::optional<std::int64_t> scores_budget(std::optional<std::int64_t> requested = {});

// Returns the roots with boundaries around scores that exceed the budget in bytes.
//
// - `budget`: if none, scores must exceed 32 MiB and the arrays from which they are computed.
// - `depth`: the number of loops around the roots.
// - `of`: if not empty, only scores that depend on these nodes, and no inputs of these nodes.
// - `notes`: receives report lines about scores that are weighed but not tiled.
Nodes with_score_boundaries(const Nodes& roots, std::optional<std::int64_t> budget, int depth,
                            const Nodes& of = {}, std::vector<std::string>* notes = nullptr);

}  // namespace haliax
