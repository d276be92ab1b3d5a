#include "compile/chunk/cut.h"

#include "compile/chunk/late_rows.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

bool CutPlan::is_whole() const {
  return std::all_of(cuts.begin(), cuts.end(), [](auto& c) { return c.second >= c.first.size; });
}
std::string CutPlan::line() const {
  std::string axes;
  for (auto& a : call.walked) axes += (axes.empty() ? "" : ", ") + std::string(a.text());
  return "whole over " + axes + ": " + how.why;
}

Regions::Regions(const ChunkKey& call, const Nodes& roots, const Nodes& level) {
  for (auto& n : level) {
    if (n->op != &prim::kEnter) continue;
    auto k = ChunkKey::of(n->attr);
    bool known = std::any_of(keys.begin(), keys.end(), [&](auto& other) { return other.axis == k.axis; });
    if (k.same_call(call) && !known) keys.push_back(k);
  }
  auto place = [&](auto& k) { return std::find(call.walked.begin(), call.walked.end(), k.axis); };
  std::stable_sort(keys.begin(), keys.end(), [&](auto& a, auto& b) { return place(a) < place(b); });
  for (auto& k : keys) of.emplace_back(k.attr(), roots, level);
}
bool Regions::contain(const NodePtr& n) const {
  return std::any_of(of.begin(), of.end(), [&](auto& r) { return r.contains(n); });
}

Nodes tiled(const Nodes& roots, const Nodes& level, const Node* index, const Regions& regions, const ChunkKey& tile) {
  return bordered(roots, level, index, [&](const NodePtr& n) { return regions.contain(n); }, tile.attr());
}
Nodes without_borders(const Nodes& roots, const ChunkKey& call, const Node* index) {
  Rewrite to;
  for (auto& n : level_of(roots, index)) {
    bool border = is_border(*n) && ChunkKey::of(n->attr).same_call(call);
    if (border) to[n.get()] = substitute({n->in[0]}, to, index)[0];
  }
  return to.empty() ? roots : substitute(roots, to, index);
}
namespace {
// What lies in the regions of these cuts, but is made outside of the loop over keys (queries, scaled), enters them in its body.
using Entered = std::unordered_map<const Node*, std::vector<Attr>>;
Entered made_before(const CutPlan& plan, const Nodes& roots, const Node* index) {
  Entered out;
  const auto level = without_bodies(level_of(roots, index));
  for (std::size_t k = *plan.keys + 1; k < plan.cuts.size(); ++k) {
    auto key = plan.cuts[k].first.attr();
    Region region(key, roots, level, index);
    for (auto& n : level)
      if (region.contains(n) && region.walks(n) && !is_border(*n) && !is_dynamic_slice(*n) && !region.grows(n))
        out[n.get()].push_back(key);
  }
  return out;
}
Nodes with_entered(const Nodes& values, const Node* index, const Entered& before) {
  Rewrite to;
  for (auto& n : level_of(values, index))
    for (auto& x : n->in) {
      auto known = x && !x->varies_with(index) ? before.find(x.get()) : before.end();
      if (known == before.end()) continue;
      auto entered = x;
      for (auto& key : known->second) entered = prim::enter(prim::leave(entered, key), key);
      to[x.get()] = entered;
    }
  return to.empty() ? values : substitute(values, to, index);
}
Nodes cut_from(const CutPlan& plan, const Nodes& roots, const Node* index, std::size_t from) {
  while (from < plan.cuts.size() && plan.cuts[from].second >= plan.cuts[from].first.size) ++from;
  if (from == plan.cuts.size()) return roots;
  auto& [key, chunk] = plan.cuts[from];
  Region region(key.attr(), roots, level_of(roots, index), index);
  if (region.empty()) return cut_from(plan, roots, index, from + 1);
  auto how = plan.how;
  how.chunk = chunk;
  auto out = region.cut(how);
  auto before = plan.keys == from ? made_before(plan, out, index) : Entered();
  return in_bodies(out, index, [&](const Loop& l) { return l.index == region.index(); },
                   [&](const Nodes& values, const Node* inner) {
                     return cut_from(plan, with_entered(values, inner, before), inner, from + 1);
                   });
}
}  // namespace

Nodes apply(const CutPlan& plan, const Nodes& roots, const Node* index) {
  auto in = roots;
  if (plan.late) {
    auto level = level_of(in, index);
    in = late_rows(in, level, index, Regions(plan.call, in, level));
  }
  for (auto& t : plan.tiles) {
    auto level = level_of(in, index);
    in = tiled(in, level, index, Regions(plan.call, in, level), t);
  }
  return without_borders(cut_from(plan, in, index, 0), plan.call, index);
}

}  // namespace haliax
