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
inline void sort_by_age(Nodes& nodes) {   // inputs first
  std::sort(nodes.begin(), nodes.end(), [](auto& a, auto& b) { return a->id < b->id; });
}

}  // namespace haliax
