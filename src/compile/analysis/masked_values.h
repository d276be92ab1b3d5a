// The value of a node at the positions where a mask is false.
//
// Some results hold only if other values are 0, which is not known before the program runs: softmax
// weights are 0 if scores of -1e9 are less than the maximum by enough. Such values are appended to
// `if_zero`, and the caller computes a flag from them.
#pragma once
#include "ops/prim.h"

namespace haliax::analysis {

// Returns x where the mask is false, without the axis, if it is constant along the axis. Otherwise
// null.
NodePtr value_where_false(const NodePtr& x, const Node* mask, Name axis, Nodes& if_zero);
// Returns x in an iteration of this index in which the mask is false everywhere: sums and matmuls
// along the axis are then known as well. Null: not known.
NodePtr value_if_never_true(const NodePtr& x, const Node* mask, Name axis, const Node* index,
                            Nodes& if_zero);

// How x, which is computed elementwise from s, reads s where the mask is false. An op that is not
// elementwise is a reader of its own, which the caller examines. In increasing order: an op reads
// as much as the operand that reads most.
enum class MaskedReads : std::uint8_t {
  nothing,  // not at all
  zero,     // s may be 0: it is multiplied by 0, or x is known, such as exp(s - 1e9)
  all,      // x depends on s
};
MaskedReads reads_where_false(const NodePtr& x, const Node* s, const Node* mask, Name axis,
                              Nodes& if_zero);

}  // namespace haliax::analysis
