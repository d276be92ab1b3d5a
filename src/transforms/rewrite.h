// Graph to graph: walks, substitution, dependence, gradients.
#pragma once
#include <unordered_map>
#include <unordered_set>

#include "graph/loop.h"
#include "graph/traversal.h"

namespace haliax {

struct Rewrite : std::unordered_map<const Node*, NodePtr> {
  using std::unordered_map<const Node*, NodePtr>::unordered_map;
  Nodes held = {};  // what `substitute` has entered: else its address may become another node's
};

// The roots with some nodes replaced, loop bodies included. A node keeps its identity where nothing
// below it changes. `inside`: only in the body of the loop with that index; another loop over it,
// whose results the body reads, is left alone. `same`: nodes known to keep their identity, which
// are not entered, and those found to. A caller that gives it to several calls replaces between
// them nothing that these are made of.
Nodes substitute(const Nodes& roots, Rewrite& to, const Node* inside = nullptr,
                 std::unordered_set<const Node*>* same = nullptr);
NodePtr substitute(const NodePtr& root, Rewrite& to);
// The graph below the roots as nodes of the domain in scope (NodeDomainScope), loop bodies
// included: what is compiled, while other threads read values and so make nodes forget how they
// were made. What has a value is data; data and inputs stay. In a GraphReader.
Nodes copied(const Nodes& roots);
// The roots with data in place of what has a value and remembers how it was made, as it does inside
// grad.
Nodes with_values_as_data(const Nodes& roots);

// Which of the nodes below the roots depend on one of the goals (the goals themselves do). A loop
// depends on what its bodies name, as far as those lie below the roots too.
std::unordered_set<const Node*> dependents(const Nodes& roots,
                                           const std::unordered_set<const Node*>& goals);

// Is one of them an operand of the node? An index that it varies with?
bool reads(const Node&, const std::unordered_set<const Node*>& some);
bool varies_with(const Node&, const std::unordered_set<const Node*>& some);
// What a node reads; of a loop also what its bodies make and carry.
void add_reads(const NodePtr&, Nodes& out);
// Everything below the roots, loop bodies included; the operands of a body's outside nodes too.
Nodes all_nodes(const Nodes& roots);
// The nodes of one level: the top (no index), or what varies in a body and the borders that it
// reads, which a cotangent that is the same in all turns enters by; inputs first, with the bodies
// of their loops.
Nodes level_of(const Nodes& roots, const Node* index);
Nodes without_bodies(Nodes level);  // of its loops
// those in their bodies are deeper
std::unordered_set<const Loop*> loops_of_level(const Nodes& roots, const Node* index);
bool is_region_boundary(const Node&);  // of a region of chunks: enter, or leave
// What lies in a region of chunks, of nodes with inputs first: made of what enters one, and has not
// left.
std::unordered_set<const Node*> inside_regions(const Nodes&);
// Tracers and custom gradients have done their work once a graph is traced: what is left is the
// value. Barriers and constraints stay; the borders of regions stay if they are to be kept, until
// these are cut.
Nodes strip_wraps(const Nodes& roots, bool keep_boundaries);
// How many read each of these nodes: operands, results of loop bodies, roots.
std::unordered_map<const Node*, int> users_of(const Nodes& all, const Nodes& roots);

// Cotangents of wrt, given those of ys (null: none). Null where ys do not depend on it. One walk:
// broadcasting is undone, and the primal's axis order restored, here, once for every op. Nodes of a
// loop's body keep their identity in the backward body.
Nodes vjp(const Nodes& ys, const Nodes& gs, const Nodes& wrt);

// result by result; `by` may have more
NodePtr replace_loop(const NodePtr& old, Loop by, Rewrite&);
// The roots with the bodies of some loops of their level rewritten.
template <class Wanted, class Rewritten>
Nodes in_bodies(const Nodes& roots, const Node* index, const Wanted& wanted,
                const Rewritten& rewritten) {
  Rewrite to;
  // what reads no loop that has changed: it is older than those to come
  std::unordered_set<const Node*> same;
  for (auto& n : level_of(roots, index)) {
    if (n->op != &kLoop || !wanted(loop_of(*n))) continue;
    Loop l = loop_of(*n);
    bool changed = false;
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      Nodes values;
      for (auto& r : l.results) values.push_back(r.value[b]);
      // it may read a loop that has changed
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

// Sums of narrow floats, as f32: what is kept from chunk to chunk, or sent between devices, and
// rounded once, at the end.
NodePtr widened(const NodePtr&);

}  // namespace haliax
