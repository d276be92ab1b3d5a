// Schedule: the order in which the units of a scope run.
#include "compile/lower/fuse.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "ops/collective.h"

namespace haliax {

// Greedy search: among the units that are ready, the unit that leaves the least memory live runs
// next. Every order is correct; few orders use little memory.
std::vector<int> schedule(const Scope& s, const Places& placed, bool by_age) {
  struct Readers {
    std::vector<std::size_t> units;
    std::size_t left = 0;
  };
  std::vector<int> out;
  const std::size_t count = s.units.size();
  std::vector<std::set<const Node*>> reads(count);
  std::unordered_map<const Node*, Readers> readers;
  // growth of live memory by unit: bytes of its results, minus bytes of values that only this unit
  // still has to read
  std::vector<std::int64_t> growth(count);
  for (std::size_t u = 0; u < count; ++u) {
    for (auto& node : s.units[u].nodes) {
      if (s.units[u].type != Unit::Type::copy && s.in_memory.count(node.get()) &&
          !s.targets.count(node.get()))
        growth[u] += node->bytes();
      if (node->op == &kCollective)
        for (std::size_t k = 0; k < collective_spec_of(*node).out.size(); ++k)
          growth[u] += collective_result(node, k)->bytes();
      if (node->op == &kLoop)
        for (std::size_t k = 0; k < loop_of(*node).results.size(); ++k)
          growth[u] += loop_result(node, k)->bytes();
      // Collects the values that other units compute in the memory of this scope.
      auto unknown = [&](const Node& x) { return !placed.count(&x); };
      for (auto& x : node->in)
        traverse({x}, unknown, [&](const NodePtr& n, PendingNodes& todo) {
          auto at = s.unit_of.find(n.get());
          bool created_here = at == s.unit_of.end();  // computed in the unit that reads it
          if (created_here && n->op->kind != Kind::leaf) append(todo, n->in);
          if (!created_here && at->second != int(u) && !s.targets.count(n.get()))
            reads[u].insert(n.get());
        });
    }
    for (auto* r : reads[u]) readers[r].units.push_back(u);
  }
  for (auto& [r, by] : readers)
    if ((by.left = by.units.size()) == 1) growth[by.units[0]] -= r->bytes();
  std::vector<std::size_t> waits(count);
  std::vector<std::vector<std::size_t>> then(count);
  for (std::size_t u = 0; u < count; ++u) {
    for (int a : s.units[u].after) then[std::size_t(a)].push_back(u);
    waits[u] = s.units[u].after.size();
  }
  // Units that are ready, ordered by growth, then by age, then by the time at which they became
  // ready.
  std::set<std::tuple<std::int64_t, std::int64_t, std::size_t, std::size_t>> ready;
  std::vector<std::size_t> place(count);  // number of units that became ready before this one
  std::size_t entered = 0;
  auto key = [&](std::size_t u) {
    return std::tuple(by_age ? 0 : growth[u], s.units[u].age, place[u], u);
  };
  auto enter = [&](std::size_t u) {
    place[u] = entered++;
    ready.insert(key(u));
  };
  for (std::size_t u = 0; u < count; ++u)
    if (!waits[u]) enter(u);
  std::vector<bool> done(count);
  while (!ready.empty()) {
    auto u = std::get<3>(*ready.begin());
    ready.erase(ready.begin());
    out.push_back(int(u));
    done[u] = true;
    for (auto* r : reads[u]) {
      auto& by = readers[r];
      if (--by.left != 1) continue;
      auto last =
          *std::find_if(by.units.begin(), by.units.end(), [&](std::size_t k) { return !done[k]; });
      bool waiting = ready.erase(key(last)) > 0;  // its last reader frees it
      growth[last] -= r->bytes();
      if (waiting) ready.insert(key(last));
    }
    for (auto t : then[u])
      if (--waits[t] == 0) enter(t);
  }
  return out;
}

}  // namespace haliax
