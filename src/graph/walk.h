// Walks over a graph that do not recurse, however deep it is.
#pragma once
#include <algorithm>
#include <unordered_set>

#include "graph/node.h"

namespace haliax {

// Visits nodes, each once. `visit(n, todo)` adds those to go on to; a node that `want` refuses is as if it were not there.
template <class Want, class Visit> void walk(Nodes todo, const Want& want, const Visit& visit) {
  std::unordered_set<const Node*> seen;
  while (!todo.empty()) {
    auto n = std::move(todo.back());
    todo.pop_back();
    if (n && want(*n) && seen.insert(n.get()).second) visit(n, todo);
  }
}
template <class Visit> void walk(Nodes todo, const Visit& visit) {
  walk(std::move(todo), [](const Node&) { return true; }, visit);
}
inline void append(Nodes& to, const Nodes& more) { to.insert(to.end(), more.begin(), more.end()); }
// Inputs first. A walk from the results down finds mostly the newest first, which is the slowest order to sort.
inline void sort_by_age(Nodes& nodes) {
  auto older = [](auto& a, auto& b) { return a->id < b->id; };
  if (nodes.size() > 1 && older(nodes.back(), nodes.front())) std::reverse(nodes.begin(), nodes.end());
  if (!std::is_sorted(nodes.begin(), nodes.end(), older)) std::sort(nodes.begin(), nodes.end(), older);
}
// Nodes that the roots depend on, inputs first. Loop bodies are not entered. `stop(n)`: n is listed, but not what it depends on.
Nodes topological(const Nodes& roots, bool (*stop)(const Node&) = nullptr);

}  // namespace haliax
