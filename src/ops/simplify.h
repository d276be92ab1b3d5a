// Simplification: rules that replace a node by a simpler one with the same values.
#pragma once
#include <span>

#include "ops/prim.h"

namespace haliax::prim {

// A node that is about to be created.
struct NodeSpec {
  const Op& op;
  Nodes in;
  Axes axes;
  DType dtype;
  Attr attr;
};
// A rule for one op. `apply` returns the simpler node, or null if the rule does not apply.
struct SimplifyRule {
  const char* name;
  const Op* op;
  NodePtr (*apply)(const NodeSpec&);
};
// Returns all rules, in the order in which they are tried.
std::span<const SimplifyRule> simplify_rules();

}  // namespace haliax::prim
