// Helpers of the transforms, which work on the leaves of trees.
#pragma once
#include <optional>

#include "haliax/transforms.h"
#include "graph/traversal.h"

namespace haliax {

// Replaces each non-empty leaf by f of its node. A null node makes the leaf empty.
template <class F> Leaves mapped(Leaves leaves, const F& f) {
  for (auto& a : leaves)
    if (!a.empty()) a = NamedArray(f(a.node()));
  return leaves;
}
// Calls a function of the user, which runs outside of the graph's lock.
inline Leaves called(const detail::LeafFunction& f, const Leaves& in) {
  OutsideGraph outside;
  return f(in);
}
inline void called(const detail::BodyFunction& f, const Leaves& carry, const Leaves& xs,
                   Leaves& next, Leaves& out) {
  OutsideGraph outside;
  f.call(f.self, carry, xs, next, out);
}
// A scan that this thread has traced or is tracing (then `end` is 0). Equal scans share an index,
// so the index does not identify the scan of a value. The time of its creation does.
struct TracedScan {
  const Node* index = nullptr;
  SourceLocation at;
  std::uint64_t begin = 0, end = 0;  // ids: the nodes of its function are between them
};
// Returns the scan of a value of its body; none: not recent.
std::optional<TracedScan> scan_of(NodeRef);
Nodes nodes_of(const Leaves&);                      // nodes of the non-empty leaves
Axes axes_of(const Leaves&);                        // visible axes of all leaves, each once
Axes with_hidden(const Axes&, const Axes& hidden);  // adds the missing hidden axes, first
// Returns true for the same visible axes in any order.
bool same_axes(const NamedArray&, const NamedArray&);

}  // namespace haliax
