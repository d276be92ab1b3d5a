// In which order the units of a scope run.
#include "compile/lower/fuse.h"

#include <set>

#include "ops/collective.h"

namespace haliax {

// Greedy: of the units that are ready, the one after which least is live. Any order is right, few are small.
std::vector<int> schedule(const Scope& s, const Places& known, bool by_age) {
  std::vector<int> out;
  std::size_t n = s.units.size();
  std::vector<std::set<const Node*>> reads(n);
  std::unordered_map<const Node*, int> readers;
  std::vector<std::int64_t> writes(n);
  for (std::size_t u = 0; u < n; ++u) {
    for (auto& made : s.units[u].nodes) {
      if (s.units[u].type != Unit::Type::copy && s.in_memory.count(made.get()) && !s.targets.count(made.get()))
        writes[u] += made->bytes();
      if (made->op == &kCollective)
        for (std::size_t k = 0; k < wiring_of(*made).out.size(); ++k) writes[u] += collective_result(made, k)->bytes();
      if (made->op == &kLoop)
        for (std::size_t k = 0; k < loop_of(*made).results.size(); ++k) writes[u] += loop_result(made, k)->bytes();
      // What other units make, and lies in memory of this scope.
      auto unknown = [&](const Node& x) { return !known.count(&x); };
      for (auto& x : made->in)
        walk({x}, unknown, [&](const NodePtr& n, Nodes& todo) {
          auto at = s.unit_of.find(n.get());
          bool made_here = at == s.unit_of.end();   // with what reads it
          if (made_here && n->op->kind != Kind::leaf) append(todo, n->in);
          if (!made_here && at->second != int(u) && !s.targets.count(n.get())) reads[u].insert(n.get());
        });
    }
    for (auto* r : reads[u]) ++readers[r];
  }
  std::vector<std::size_t> waits;
  std::vector<std::vector<int>> then(n);
  for (auto& u : s.units) {
    for (int a : u.after) then[std::size_t(a)].push_back(int(waits.size()));
    waits.push_back(u.after.size());
  }
  std::vector<int> ready;
  for (std::size_t u = 0; u < n; ++u)
    if (!waits[u]) ready.push_back(int(u));
  while (!ready.empty()) {
    std::size_t best = 0;
    std::int64_t least = 0;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      auto u = std::size_t(ready[i]);
      std::int64_t growth = by_age ? 0 : writes[u];
      for (auto* r : reads[u])
        if (!by_age && readers[r] == 1) growth -= r->bytes();
      bool older = s.units[u].order < s.units[std::size_t(ready[best])].order;
      if (i == 0 || growth < least || (growth == least && older)) best = i, least = growth;
    }
    int u = ready[best];
    ready.erase(ready.begin() + std::ptrdiff_t(best));
    out.push_back(u);
    for (auto* r : reads[std::size_t(u)]) --readers[r];
    for (int t : then[std::size_t(u)])
      if (--waits[std::size_t(t)] == 0) ready.push_back(t);
  }
  return out;
}

}  // namespace haliax
