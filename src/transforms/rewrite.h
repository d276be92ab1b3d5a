// Graph to graph: substitution, dependence, gradients.
#pragma once
#include <unordered_map>
#include <unordered_set>

#include "graph/loop.h"

namespace haliax {

using Rewrite = std::unordered_map<const Node*, NodePtr>;

// The roots with some nodes replaced, loop bodies included. A node keeps its identity where nothing below it changes.
// `inside`: only in the body of the loop with that index; another loop over it, whose results the body reads, is left alone.
Nodes substitute(const Nodes& roots, Rewrite& to, const Node* inside = nullptr);
NodePtr substitute(const NodePtr& root, Rewrite& to);

// Which of the nodes below the roots depend on one of the goals (the goals themselves do). A loop depends on what its bodies name, as
// far as those lie below the roots too.
std::unordered_set<const Node*> dependents(const Nodes& roots, const std::unordered_set<const Node*>& goals);

// Everything below the roots, loop bodies included; the operands of a body's outside nodes too.
Nodes everything(const Nodes& roots);
// How many read each of these nodes: operands, results of loop bodies, roots.
std::unordered_map<const Node*, int> users_of(const Nodes& all, const Nodes& roots);

// Cotangents of wrt, given those of ys (null: none). Null where ys do not depend on it. One walk: broadcasting is undone, and the
// primal's axis order restored, here, once for every op. Nodes of a loop's body keep their identity in the backward body.
Nodes vjp(const Nodes& ys, const Nodes& gs, const Nodes& wrt);

// Sums of narrow floats, as f32: what is kept from chunk to chunk, or sent between devices, and rounded once, at the end.
NodePtr widened(const NodePtr&);

}  // namespace haliax
