// Contractions by groups of rows.
#pragma once
#include "ops/prim.h"

namespace haliax::prim {

// The axes of a contraction by groups. Group g consists of sizes[g] consecutive rows.
struct RaggedAttr {
  Name rows, groups;
  Name inner;    // the contracted axis, or the first axis of a weight
  Name columns;  // axis of the result
  Attr attr() const { return {.names = {rows, groups, inner, columns}}; }
  static RaggedAttr of(const Attr& a) { return {a.names[0], a.names[1], a.names[2], a.names[3]}; }
  static RaggedAttr of(const Node& n) { return of(n.attr); }
};
// Returns x[rows, inner] times the weight[groups, inner, columns] of the group of each row. Rows of
// no group are 0. `sizes` are i64, over the groups. Other axes are batch axes.
NodePtr ragged(NodeRef x, NodeRef weight, NodeRef sizes, const RaggedAttr&);
// Returns for each group the sum over its rows of a[rows, inner] b[rows, columns], with the axes
// (groups, inner, columns): the gradient of the weights.
NodePtr ragged_sums(NodeRef a, NodeRef b, NodeRef sizes, const RaggedAttr&, const Axis& groups);
extern const Op kRagged, kRaggedSums;

}  // namespace haliax::prim
