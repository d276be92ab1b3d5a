// What transforms on leaves share.
#pragma once
#include <optional>

#include "haliax/transforms.h"
#include "graph/traversal.h"

namespace haliax {

// f of the node of each array that is there, in its place; a node that is null makes no array.
template <class F> Leaves mapped(Leaves leaves, const F& f) {
  for (auto& a : leaves)
    if (!a.empty()) a = NamedArray(f(a.node()));
  return leaves;
}
// A function of the user's, which runs outside of the graph's lock.
inline Leaves called(const detail::LeafFunction& f, const Leaves& in) {
  OutsideGraph outside;
  return f(in);
}
inline void called(const detail::BodyFunction& f, const Leaves& carry, const Leaves& xs,
                   Leaves& next, Leaves& out) {
  OutsideGraph outside;
  f.call(f.self, carry, xs, next, out);
}
// A scan that this thread has traced, or traces (`end` is 0). Equal scans share an index, so a
// value of a turn does not show by itself of which it is; when it was made does.
struct TracedScan {
  const Node* index = nullptr;
  SourceLocation at;
  std::uint64_t begin = 0, end = 0;  // ids: what its function makes lies between
};
std::optional<TracedScan> scan_of(const NodePtr&);  // of a value of a turn; none: it was long ago
Nodes nodes_of(const Leaves&);                      // of the arrays that are there
Axes axes_of(const Leaves&);                        // all that users see, each once
Axes with_hidden(const Axes&, const Axes& hidden);  // those that are not there, first
bool same_axes(const NamedArray&, const NamedArray&);  // in any order, of those that users see

}  // namespace haliax
