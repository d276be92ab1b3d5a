// How a chunked_reduce is cut: along which axes, in chunks of how many positions. Decided by planned bytes, which are exact, and an estimate
// of time; from the cuts follow the loops.
#pragma once
#include "program/program.h"
#include "transforms/region.h"

namespace haliax {

// What the borders of a chunked_reduce say. Equal ones are the same region, so that what two losses of one array share is shared.
struct ChunkKey {
  Name axis;                                     // of this border
  std::int64_t size = 0, memory = 0;             // of the axis; in bytes, 0: the default
  int depth = 0, inside = 0;                     // loops around the call; other calls around it
  int form = 0, keep = 0;                        // a ChunkForm, a ChunkKeep
  int after = 0;                                 // alike calls that it waits for, one after another: each is a region of its own
  bool reverse = false;                          // the last chunk first
  int blocks = 1;                                // devices that share the axis, each a part of it
  Names walked;                                  // all walked axes
  std::vector<std::int64_t> chunks;              // of each; none: from the memory
  Attr attr() const;
  static ChunkKey of(const Attr&);
  bool same_call(const ChunkKey&) const;
};

struct CutPlan {
  ChunkKey call;
  std::vector<std::pair<ChunkKey, std::int64_t>> cuts;   // outermost first; positions a turn
  std::optional<ChunkKey> tile;                          // an axis that is cut although nobody asked
  RegionCut how;
  bool is_whole() const;                                 // nothing is cut
  std::string line() const;                              // for people, of what is whole
};
int blocks_of(Name axis, const Mapping*);          // devices of the mesh in scope that the mapping cuts it for
CutPlan plan_cuts(const ChunkKey& call, const Nodes& roots, const Nodes& level, program::Device*);
void check_budget(const ChunkKey& call, const Nodes& roots, const Nodes& level);   // raises if not even the smallest chunk fits
// The roots, of one level, with loops in place of the regions, and without borders.
Nodes apply(const CutPlan&, const Nodes& roots, const Node* index);

// The roots with the bodies of some loops of their level rewritten.
template <class Wanted, class Rewritten> Nodes in_bodies(const Nodes& roots, const Node* index, const Wanted& wanted, const Rewritten& rewritten) {
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
    if (!changed) continue;
    auto count = l.results.size();
    auto made = make_loop(std::move(l));
    for (std::size_t k = 0; k < count; ++k) to[loop_result(n, k).get()] = loop_result(made, k);
  }
  return to.empty() ? roots : substitute(roots, to, index);
}

}  // namespace haliax
