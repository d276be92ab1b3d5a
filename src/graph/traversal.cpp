// The topological order of a graph.
#include "graph/traversal.h"

namespace haliax {

// `list` returns the entry of a node.
template <class Listed, class List>
static std::vector<Listed> sorted(const Nodes& roots, bool (*stop)(const Node&), const List& list) {
  std::vector<Listed> out;
  out.reserve(16);
  traverse(roots, [&](const NodePtr& n, PendingNodes& todo) {
    out.push_back(list(n));
    if (!stop || !stop(*n)) append(todo, n->in);
  });
  sort_by_age(out);
  return out;
}
Nodes topological(const Nodes& roots, bool (*stop)(const Node&)) {
  return sorted<NodePtr>(roots, stop, [](const NodePtr& n) { return n; });
}
std::vector<const Node*> nodes_below(const Nodes& roots, bool (*stop)(const Node&)) {
  return sorted<const Node*>(roots, stop, [](const NodePtr& n) { return n.get(); });
}

}  // namespace haliax
