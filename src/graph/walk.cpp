#include "graph/walk.h"

namespace haliax {

Nodes topological(const Nodes& roots, bool (*stop)(const Node&)) {
  Nodes out;
  walk(roots, [&](const NodePtr& n, Nodes& todo) {
    out.push_back(n);
    if (!stop || !stop(*n)) append(todo, n->in);
  });
  sort_by_age(out);
  return out;
}

}  // namespace haliax
