// Drops results of loops that are not read.
#include <algorithm>
#include <utility>

#include "compile/loops/loops.h"

namespace haliax {
namespace {

// Returns the live results: a result whose last value is read, and a carry that a live result reads
// in the body.
std::vector<bool> live_results(const NodePtr& loop, const std::unordered_set<NodePtr>& read,
                               bool effects_only) {
  auto& results = loop_of(*loop).results;
  std::vector<bool> keep(results.size());
  auto reads = [](const LoopResult& r, const NodePtr& carry) {
    return std::any_of(r.value.begin(), r.value.end(),
                       [&](auto& v) { return depends_on(v, carry); });
  };
  for (std::size_t k = 0; k < keep.size(); ++k)
    keep[k] = results[k].is_condition || (effects_only && !results[k].effect) ||
              read.count(loop_result(loop, k)) > 0;
  for (bool grew = true; grew;) {
    grew = false;
    for (std::size_t k = 0; k < keep.size(); ++k)
      for (std::size_t j = 0; j < keep.size() && !keep[k] && results[k].carry; ++j)
        if (keep[j] && reads(results[j], results[k].carry)) keep[k] = grew = true;
  }
  return keep;
}

// Repeats until nothing changes, since a dropped result may have been the only user of another
// loop.
Nodes drop_dead(Nodes roots, bool effects_only) {
  return rewrite_one_by_one(std::move(roots), [&](const Nodes& roots, Rewrite& to) {
    auto all = all_nodes(roots);
    std::unordered_set<NodePtr> read(all.begin(), all.end());
    for (auto& n : all) {
      if (n->op != &kLoop) continue;
      Loop out = loop_of(*n);
      auto results = std::exchange(out.results, {});
      auto keep = live_results(n, read, effects_only);
      std::vector<std::pair<std::size_t, std::size_t>> moved;
      for (std::size_t k = 0; k < results.size(); ++k)
        if (keep[k]) moved.push_back({k, add_result(out, results[k])});
      if (out.results.size() == results.size()) continue;
      auto loop = make_loop(std::move(out));
      for (auto [from, at] : moved) to[loop_result(n, from).get()] = loop_result(loop, at);
      break;
    }
  });
}

}  // namespace

Nodes drop_dead_results(Nodes roots) { return drop_dead(std::move(roots), false); }
Nodes drop_dead_effects(Nodes roots) { return drop_dead(std::move(roots), true); }

}  // namespace haliax
