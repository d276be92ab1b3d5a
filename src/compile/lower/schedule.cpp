#include "compile/lower/schedule.h"

#include <set>

#include "ops/collective.h"

namespace haliax {
namespace {

// The nodes of other units that making x reads, and that lie in memory of this scope.
void below(const NodePtr& x, const Scope& s, const Places& known, int unit, std::set<const Node*>& out) {
  Nodes todo{x};
  std::set<const Node*> seen;
  while (!todo.empty()) {
    auto n = todo.back();
    todo.pop_back();
    if (known.count(n.get()) || !seen.insert(n.get()).second) continue;
    auto made = s.unit_of.find(n.get());
    if (made != s.unit_of.end()) {
      if (made->second != unit && !s.targets.count(n.get())) out.insert(n.get());
      continue;
    }
    if (n->op->kind != Kind::leaf) for (auto& i : n->in) if (i) todo.push_back(i);
  }
}

}  // namespace

// Greedy: of the units that are ready, the one after which least is alive. Any order is right, few are small.
std::vector<int> schedule(const Scope& s, const Places& known, bool by_age) {
  std::vector<int> out;
  std::size_t n = s.units.size();
  std::vector<std::set<const Node*>> reads(n);
  std::unordered_map<const Node*, int> readers;
  std::vector<std::int64_t> writes(n);
  for (std::size_t u = 0; u < n; ++u) {
    for (auto& made : s.units[u].nodes) {
      if (s.units[u].type != Unit::Type::copy && s.in_memory.count(made.get()) && !s.targets.count(made.get())) writes[u] += made->bytes();
      for (auto& x : made->in) if (x) below(x, s, known, int(u), reads[u]);
      if (made->op == &kCollective) for (std::size_t k = 0; k < wiring_of(*made).out.size(); ++k) writes[u] += collective_result(made, k)->bytes();
      if (made->op == &kLoop) for (std::size_t k = 0; k < loop_of(*made).results.size(); ++k) writes[u] += loop_result(made, k)->bytes();
    }
    for (auto* r : reads[u]) ++readers[r];
  }
  std::vector<std::size_t> waits(n);
  std::vector<std::vector<int>> then(n);
  for (std::size_t u = 0; u < n; ++u) {
    waits[u] = s.units[u].after.size();
    for (int a : s.units[u].after) then[std::size_t(a)].push_back(int(u));
  }
  std::vector<int> ready;
  for (std::size_t u = 0; u < n; ++u) if (!waits[u]) ready.push_back(int(u));
  while (!ready.empty()) {
    std::size_t best = 0;
    std::int64_t least = 0;
    for (std::size_t i = 0; i < ready.size(); ++i) {
      auto u = std::size_t(ready[i]);
      std::int64_t growth = writes[u];
      for (auto* r : reads[u]) if (readers[r] == 1) growth -= r->bytes();
      if (by_age) growth = 0;
      bool older = s.units[u].order < s.units[std::size_t(ready[best])].order;
      if (i == 0 || growth < least || (growth == least && older)) best = i, least = growth;
    }
    int u = ready[best];
    ready.erase(ready.begin() + std::ptrdiff_t(best));
    out.push_back(u);
    for (auto* r : reads[std::size_t(u)]) --readers[r];
    for (int t : then[std::size_t(u)]) if (--waits[std::size_t(t)] == 0) ready.push_back(t);
  }
  return out;
}

}  // namespace haliax
