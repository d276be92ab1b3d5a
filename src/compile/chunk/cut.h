// A call of chunked_reduce, cut as a plan says: loops in place of its regions.
#pragma once
#include "compile/chunk/region.h"
#include "compile/loops/loops.h"
#include "transforms/chunked.h"

namespace haliax {

struct CutPlan {
  ChunkKey call;
  std::vector<std::pair<ChunkKey, std::int64_t>> cuts;   // outermost first; positions a turn
  std::optional<ChunkKey> tile;                          // an axis that is cut although nobody asked
  RegionCut how;
  bool is_whole() const;                                 // nothing is cut
  std::string line() const;                              // for people, of what is whole
};

// The regions of a call, along each walked axis that there is, in the order given.
struct Regions {
  std::vector<ChunkKey> keys;
  std::vector<Region> of;
  Regions(const ChunkKey& call, const Nodes& roots, const Nodes& level);
  bool contain(const NodePtr&) const;
};

// The roots with borders along one more axis around the same regions.
Nodes bordered(const Nodes& roots, const Nodes& level, const Node* index, const Regions&, const ChunkKey& tile);
// The roots, of one level, with loops in place of the regions, and without borders.
Nodes apply(const CutPlan&, const Nodes& roots, const Node* index);

// The roots with the bodies of some loops of their level rewritten.
template <class Wanted, class Rewritten>
Nodes in_bodies(const Nodes& roots, const Node* index, const Wanted& wanted, const Rewritten& rewritten) {
  Rewrite to;
  for (auto& n : level_of(roots, index)) {
    if (n->op != &kLoop || !wanted(loop_of(*n))) continue;
    Loop l = loop_of(*n);
    bool changed = false;
    Rewrite before = to;                         // an earlier loop, whose results this one reads, has changed
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      Nodes values;
      for (auto& r : l.results) values.push_back(r.value[b]);
      auto now = rewritten(substitute(values, before, index), l.index[b].get());
      for (std::size_t k = 0; k < now.size(); ++k) changed |= now[k] != values[k], l.results[k].value[b] = now[k];
    }
    for (auto& r : l.results)
      if (r.start) {
        auto start = substitute(Nodes{r.start}, before, index)[0];
        changed |= start != r.start, r.start = start;
      }
    if (changed) replace_loop(n, std::move(l), to);
  }
  return to.empty() ? roots : substitute(roots, to, index);
}

}  // namespace haliax
