// The first positions of an argsort, as top_k reads them, without a sort. The earlier passes see
// the argsort, which they divide into blocks.
#include "compile/lower/rewrites.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/first_positions.h"
#include "transforms/rewrite.h"

namespace haliax {

Nodes first_positions(const Nodes& roots) {
  constexpr std::int64_t kMaxFraction = 8;  // for more than 1/8 of them, a sort is about as fast
  Rewrite to;
  OriginScope follow;
  auto all = all_nodes(roots);
  std::unordered_set<const Node*>
      read_in_full;  // nodes that are read in other ways than their start
  for (auto& n : roots) read_in_full.insert(n.get());
  for (auto& n : all)
    if (!prim::is_top_k(*n))
      for (auto& x : n->in) read_in_full.insert(x.get());
  for (auto& n : all)
    if (prim::is_top_k(*n) && !read_in_full.count(n->in[0].get())) {
      auto c = *slice_of(*n);
      auto& x = n->in[0]->in[0];
      if (c.size * kMaxFraction > find(*x, c.axis)->size) continue;
      follow(n->origin);
      to[n.get()] = substitute(prim::fit(prim::first_positions(x, c.axis, c.size), n->axes), to);
    }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace haliax
