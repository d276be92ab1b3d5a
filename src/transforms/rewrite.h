// Graph rewriting: traversal, substitution, dependence, gradients.
#pragma once
#include <unordered_map>
#include <unordered_set>

#include "graph/loop.h"
#include "graph/traversal.h"

namespace haliax {

struct Rewrite : std::unordered_map<const Node*, NodePtr> {
  using std::unordered_map<const Node*, NodePtr>::unordered_map;
  // Keeps the replaced nodes alive, so that their addresses are not reused for other nodes.
  Nodes held = {};
};

// Returns the roots with some nodes replaced, loop bodies included. A node keeps its identity if
// none of its inputs changes.
//
// - inside: replaces only in the body of the loop with this index. Another loop over the index,
//   whose results the body reads, is unchanged.
// - same: nodes that are known to keep their identity; they are not traversed, and the nodes found
//   to keep theirs are added. A caller that passes one set to several calls must not replace inputs
//   of these nodes between the calls.
Nodes substitute(const Nodes& roots, Rewrite& to, const Node* inside = nullptr,
                 std::unordered_set<const Node*>* same = nullptr);
NodePtr substitute(NodeRef root, Rewrite& to);
// Rewrites until `add_one(roots, to)` adds nothing. It adds one rewrite at a time, since bodies of
// other loops may refer to the node that the rewrite replaces.
template <class AddOne> Nodes rewrite_one_by_one(Nodes roots, const AddOne& add_one) {
  for (;;) {
    Rewrite to;
    add_one(roots, to);
    if (to.empty()) return roots;
    roots = substitute(roots, to);
  }
}
// Returns a copy of the graph in the domain in scope (NodeDomainScope), loop bodies included. The
// copy is compiled while other threads read values, which drops the inputs of nodes. Nodes with a
// value become data; data and inputs are shared with the original. Requires a GraphReader.
Nodes copied(const Nodes& roots);
// Returns the roots with data in place of nodes that have a value. Inside grad, such nodes keep
// their inputs as well.
Nodes with_values_as_data(const Nodes& roots);

// Returns the nodes among the inputs of the roots that depend on one of the goals, including the
// goals. A loop depends on the nodes in its bodies.
std::unordered_set<const Node*> dependents(const Nodes& roots,
                                           const std::unordered_set<const Node*>& goals);
bool depends_on(NodeRef, NodeRef goal);

// Return true if one of the nodes is an operand of the node, or an index that the node varies with.
bool reads(const Node&, const std::unordered_set<const Node*>& some);
bool varies_with(const Node&, const std::unordered_set<const Node*>& some);
// Returns the operands of a node. For a loop, also the values and the carries of its bodies.
Nodes reads_of(const Node&);
// Appends references to them.
void add_reads(NodeRef, PendingNodes&);
// Returns all nodes that the roots depend on, loop bodies included, with inputs first.
Nodes all_nodes(const Nodes& roots);
std::int64_t node_count(const Nodes& roots);  // the number of these nodes
// Returns the nodes of one level, inputs first, including the bodies of its loops. Without an
// index, the level is the top of the graph. Otherwise, it is the part of the body that varies with
// the index, and the region boundaries that the body reads: a loop-invariant cotangent enters the
// region there.
Nodes level_of(const Nodes& roots, const Node* index);
Nodes without_bodies(Nodes level);  // without the bodies of its loops
// Returns the loops of one level, without the loops in their bodies.
std::unordered_set<const Loop*> loops_of_level(const Nodes& roots, const Node* index);
bool is_region_boundary(const Node&);  // true for enter and leave
// Returns the nodes inside regions: they depend on a node that enters, and not by way of a node
// that leaves. `all`: inputs first.
std::unordered_set<const Node*> inside_regions(const Nodes&);
// Replaces tracers, custom gradients and other wraps, which have no effect after tracing, by their
// value. Barriers and sharding constraints stay. Region boundaries stay if keep_boundaries is set,
// until the regions are tiled.
Nodes strip_wraps(const Nodes& roots, bool keep_boundaries);
// Returns the number of readers of each node: operands, results of loop bodies, and roots.
std::unordered_map<const Node*, int> users_of(const Nodes& all, const Nodes& roots);

// Returns the cotangents of wrt for the cotangents gs of ys (null: none). The result is null where
// ys do not depend on wrt. For all ops, this function sums over broadcast axes and restores the
// axis order of the primal. The backward body of a loop refers to the nodes of the forward body.
Nodes vjp(const Nodes& ys, const Nodes& gs, const Nodes& wrt);

// Replaces a loop result by result; `by` may have additional results.
NodePtr replace_loop(NodeRef old, Loop by, Rewrite&);
// Returns the roots with the bodies of the `requested` loops of one level rewritten.
template <class Requested, class Rewritten>
Nodes in_bodies(const Nodes& roots, const Node* index, const Requested& requested,
                const Rewritten& rewritten) {
  Rewrite to;
  // Nodes that read no changed loop. They are older than the new nodes.
  std::unordered_set<const Node*> same;
  for (auto& n : level_of(roots, index)) {
    if (n->op != &kLoop || !requested(loop_of(*n))) continue;
    Loop l = loop_of(*n);
    bool changed = false;
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      Nodes values;
      for (auto& r : l.results) values.push_back(r.value[b]);
      // The body may read a changed loop.
      auto now = rewritten(substitute(values, to, index, &same), l.index[b].get());
      for (std::size_t k = 0; k < now.size(); ++k) {
        changed |= now[k] != values[k];
        l.results[k].value[b] = now[k];
      }
    }
    for (auto& r : l.results)
      if (r.start) {
        auto start = substitute(Nodes{r.start}, to, index, &same)[0];
        changed |= start != r.start;
        r.start = start;
      }
    if (changed) replace_loop(n, std::move(l), to);
  }
  return substitute(roots, to, index, &same);
}

// Returns a sum of 16-bit floats in f32. Used for sums that are carried from tile to tile or
// communicated between devices, which are rounded once, at the end.
NodePtr widened(NodeRef);

}  // namespace haliax
