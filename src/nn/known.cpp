// Values that are known while the graph is built.
#include "nn/known.h"

#include <algorithm>

#include "graph/traversal.h"
#include "ops/prim.h"

namespace haliax::nn {

bool is_known(const NamedArray& a) {
  for (auto& n : topological({a.node()}, [](const Node& m) { return bool(m.value); })) {
    if (std::any_of(n->axes.begin(), n->axes.end(), [](auto& x) { return x.name.hidden(); }))
      return false;
    if (!n->value && (n->op == &prim::kInput || n->op == &prim::kIndex || n->op == &prim::kCarry))
      return false;
  }
  return true;
}

}  // namespace haliax::nn
