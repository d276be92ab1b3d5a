// The dependencies of the nodes of one level.
#include "compile/lower/level_graph.h"

#include <algorithm>
#include <limits>

#include "compile/lower/fuse.h"
#include "transforms/rewrite.h"

namespace haliax {

LevelGraph::LevelGraph(const Nodes& roots, const Node* index, bool has_collectives) {
  std::unordered_map<const Node*, int> known;
  for (auto& n : without_bodies(level_of(roots, index))) {
    LevelNode item{.node = n, .first_collective = has_collectives ? first_collective(*n) : 0};
    for (auto& x : n->in)
      if (auto found = x ? known.find(x.get()) : known.end(); found != known.end())
        item.in.push_back(found->second);
    const int me = size();
    for (int x : item.in) at(x).readers.push_back(me);
    known[n.get()] = me;
    order_.push_back(me);
    all_.push_back(std::move(item));
  }
  for (auto& r : roots)
    if (auto found = known.find(r.get()); found != known.end()) at(found->second).is_root = true;
}

NodeGroup LevelGraph::from(std::size_t i, std::size_t& end) const {
  const int loop = at(order_[i]).loop;
  end = i + 1;
  while (loop >= 0 && end < order_.size() && at(order_[end]).loop == loop) ++end;
  return {order_.data() + i, end - i};
}
static bool any_marked(const std::vector<int>& some, const Marks& m) {
  return std::any_of(some.begin(), some.end(), [&](int k) { return m[k]; });
}
bool LevelGraph::reads(NodeGroup group, const Marks& m) const {
  return std::any_of(group.begin(), group.end(), [&](int k) { return any_marked(at(k).in, m); });
}
bool LevelGraph::is_read(NodeGroup group, const Marks& by) const {
  return std::any_of(group.begin(), group.end(),
                     [&](int k) { return any_marked(at(k).readers, by); });
}

Marks LevelGraph::dependents(const Marks& inside) const {
  Marks out(inside.size());
  forward([&](NodeGroup group) {
    if (!inside[group[0]] && (reads(group, inside) || reads(group, out))) out.add(group);
  });
  return out;
}
Marks LevelGraph::dependencies(const Marks& inside) const {
  Marks out(inside.size());
  backward([&](NodeGroup group) {
    if (!inside[group[0]] && (is_read(group, inside) || is_read(group, out))) out.add(group);
  });
  return out;
}
bool LevelGraph::keeps_collective_order(const Marks& inside) const {
  const auto before = dependencies(inside), after = dependents(inside);
  int last = 0, first = std::numeric_limits<int>::max();
  for (int k : order_) {
    const int number = at(k).first_collective;
    if (before[k]) last = std::max(last, number);
    if (after[k] && number) first = std::min(first, number);
  }
  return last < first;
}
void LevelGraph::form_loop(const Marks& inside, int loop) {
  const auto after = dependents(inside);
  auto is_in = [&](int k) { return inside[k]; };
  auto is_after = [&](int k) { return after[k]; };
  auto first = std::find_if(order_.begin(), order_.end(), is_in);
  auto end = std::find_if(order_.rbegin(), order_.rend(), is_in).base();
  std::stable_partition(first, end, [&](int k) { return !is_after(k); });
  auto mine = std::stable_partition(first, end, [&](int k) { return !is_in(k) && !is_after(k); });
  for (; mine != end && is_in(*mine); ++mine) at(*mine).loop = loop;
}

}  // namespace haliax
