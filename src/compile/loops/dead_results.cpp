#include <algorithm>

#include "compile/loops/loops.h"

namespace haliax {

NodePtr replace_loop(const NodePtr& old, Loop by, Rewrite& to) {
  auto made = make_loop(std::move(by));
  for (std::size_t k = 0; k < loop_of(*old).results.size(); ++k) to[loop_result(old, k).get()] = loop_result(made, k);
  return made;
}
bool depends_on(const NodePtr& n, const NodePtr& goal) { return dependents({n}, {goal.get()}).count(n.get()) > 0; }

Nodes drop_dead_results(Nodes roots) {   // again and again, because a dropped result may have been another loop's only user
  for (;;) {
    auto all = everything(roots);
    std::unordered_set<const Node*> live;
    for (auto& n : all) live.insert(n.get());
    Rewrite to;
    bool changed = false;
    for (auto& n : all) {
      if (n->op != &kLoop) continue;
      auto& l = loop_of(*n);
      // A carry lives if its last value is read, or if the body of what lives reads it.
      std::vector<bool> keep(l.results.size());
      auto reads = [&](std::size_t k, const NodePtr& carry) {
        for (auto& v : l.results[k].value)
          if (depends_on(v, carry)) return true;
        return false;
      };
      for (std::size_t k = 0; k < l.results.size(); ++k) keep[k] = live.count(loop_result(n, k).get()) > 0;
      for (bool grew = true; grew;) {
        grew = false;
        for (std::size_t k = 0; k < l.results.size(); ++k) {
          if (keep[k] || !l.results[k].carry) continue;
          for (std::size_t j = 0; j < l.results.size() && !keep[k]; ++j)
            if (keep[j] && reads(j, l.results[k].carry)) keep[k] = grew = true;
        }
      }
      Loop out = l;
      out.results.clear();
      std::vector<std::pair<std::size_t, std::size_t>> moved;
      for (std::size_t k = 0; k < l.results.size(); ++k) {
        if (!keep[k]) continue;
        auto same = std::find(out.results.begin(), out.results.end(), l.results[k]);
        moved.push_back({k, std::size_t(same - out.results.begin())});
        if (same == out.results.end()) out.results.push_back(l.results[k]);
      }
      if (out.results.size() == l.results.size()) continue;
      changed = true;
      auto loop = make_loop(std::move(out));
      for (auto [from, at] : moved) to[loop_result(n, from).get()] = loop_result(loop, at);
      break;   // bodies of other loops may name this one: one at a time
    }
    if (!changed) return roots;
    roots = substitute(roots, to);
  }
}

}  // namespace haliax
