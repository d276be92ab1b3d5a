// Masks. A mask is a bool value that selects an operand (`where(mask, x, y)`), or that is converted
// to numbers (`mask.astype(f32) * x`). Passes use masks to skip work on blocks in which a mask is
// false: masks.h finds them, ranges.h computes where they may be true, and masked_values.h
// computes other values where they are false.
//
// In      nodes of a graph, before or after it is divided among devices.
// Out     facts about them: masks, values where a mask is false, ranges, softmax, modules,
//         purposes.
// Always  an analysis changes no node. It may create nodes that compute its result at run time,
//         such as a flag per block. Analyses may recognize ops. The passes use rules along axes
//         instead, except for two that rewrite formulas (tests/house_test.py).
#pragma once
#include <optional>

#include "ops/prim.h"

namespace haliax::analysis {

// Returns true for a select. A NaN of the operand that is not selected has no effect.
bool selects_operand(const Node&);
// Returns true for a select and for a mask that is converted to numbers.
bool reads_mask(const Node&);
// Returns true for elementwise ops and for views that keep the names of the axes.
bool is_elementwise(const Node&);
// Returns the masks with this axis that x depends on elementwise, and the negation of each.
Nodes masks_of(const NodePtr& x, Name axis);

// A comparison that is equal to a mask or to its negation. For example, `tril(ones) == 0` is the
// negation of the mask of tril.
struct EqualMask {
  NodePtr mask;
  bool negated = false;
};
std::optional<EqualMask> equal_mask(const Node& comparison);
// Returns the value of a comparison or negation whose operands are the numbers `in`.
std::optional<bool> constant_mask(const Node&, const Nodes& in);

}  // namespace haliax::analysis
