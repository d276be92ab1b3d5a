// Plans loops. A body is planned like the top level, with versions of its own. If it needs an
// outside value in another sharding, the value is resharded once, before the loop.
#include "compile/sharding/loop_planner.h"

#include <algorithm>

#include "compile/sharding/op_planner.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::partitioning {
namespace {
constexpr int kAttempts = 4;

// Returns the sharding without the axes that are sharded along these mesh axes.
Sharding without(Sharding s, const MeshAxes& blocked) {
  std::erase_if(s.dims, [&](auto& d) { return d.second.overlaps(blocked); });
  return s;
}
}  // namespace

// Returns the shardings that the first attempt assumes for the carries: the final ones of the last
// run. In the first run, returns those of the start values, with partial sums reduced.
std::vector<Sharding> LoopPlanner::carries_of(int n) {
  if (auto known = carried_.find(n); known != carried_.end()) return known->second;
  auto& l = loop_of(node(n));
  std::vector<Sharding> carried(l.results.size());
  for (std::size_t k = 0; k < carried.size(); ++k) {
    if (!l.results[k].carry) continue;
    // An accumulator whose start value is available in any sharding, such as 0, has no sharding at
    // first. plan_value derives it from the addends, which may be partial. With
    // PartitionOptions::regather, it starts in reduced_sharding, which needs less memory.
    int start = graph_.add(l.results[k].start);
    bool fits_any = fits_any_sharding(start);
    if (!fits_any || options_.regather || !loop_shardings_.accumulates(n, k, 0))
      carried[k] = shardings_.reduced_sharding(start);
  }
  return carried;
}
void LoopPlanner::compute(int n) {
  auto& l = loop_of(node(n));
  const auto count = l.results.size();
  const auto shared_by = loop_shardings_.iterations_shared_by(n);
  const auto blocked = shared_by + blocked_axes(node(n));
  auto carried = carries_of(n);
  auto ring_axes = loop_shardings_.ring_axes_of(n);
  for (auto& c : carried) c = without(c, blocked);
  for (int attempt = 1;; ++attempt) {
    auto before = state_.draft;
    LoopPlan plan{.node = n, .shared_by = shared_by, .ring_axes = ring_axes};
    LoopAttempt a{n, l, add_loop(n), blocked, attempt == kAttempts, carried, std::move(plan)};
    a.plan.inside.resize(count);
    a.plan.after_loop.resize(count);
    a.plan.value.resize(count);
    a.plan.carry.resize(count);
    a.plan.start.assign(count, -1);
    for (std::size_t b = 0; b < l.index.size(); ++b) plan_body(a, b);
    bool breaks = !a.changed && breaks_ring(a);
    if (!a.changed && !breaks) return finish_loop(a);
    carried = std::move(a.carried);
    restore(std::move(before));
    if (breaks) ring_axes = {};
  }
}
void LoopPlanner::plan_body(LoopAttempt& a, std::size_t b) {
  auto& results = a.l.results;
  const auto own = double(trips(a.l, b)) / ranks(mesh_, a.plan.shared_by);
  a.plan.bodies.push_back(open_body(a.loop, {a.n, b, -1, a.plan.shared_by, a.plan.ring_axes}, own));
  for (std::size_t k = 0; k < results.size(); ++k) {
    if (!results[k].carry) continue;
    int c = graph_.add(results[k].carry);
    track_new_nodes();
    a.plan.carry[k].push_back(
        add_computed({.kind = Carry{a.loop, k}, .node = c, .sharding = a.carried[k]}));
  }
  for (int x : graph_.level(a.n, b).order) ops_.compute(x);
  for (std::size_t k = 0; k < results.size(); ++k) plan_value(a, k, b);
  close_body();
}
// Plans the value that an iteration computes for result k, and the sharding of the result after the
// loop.
void LoopPlanner::plan_value(LoopAttempt& a, std::size_t k, std::size_t b) {
  auto& r = a.l.results[k];
  auto &inside = a.plan.inside[k], &after_loop = a.plan.after_loop[k], &carried = a.carried[k];
  int v = graph_.add(r.value[b]);
  bool fits_any = fits_any_sharding(v), stacks = r.kind == ResultKind::stack;
  bool returned = stacks && !fits_any && !a.plan.ring_axes.empty() &&
                  sharding_of(v).is_partial(a.plan.ring_axes[0]);
  if (returned) {
    inside = sharding_of(v);
    inside.set(a.l.axis.name, {});
    a.plan.value[k].push_back(add_ring_return(a, v, inside));
    inside = after_loop = version(a.plan.value[k].back()).sharding;
    after_loop.set(a.l.axis.name, a.plan.ring_axes);
    return;
  }
  if (r.carry) {
    auto natural = fits_any ? carried : sharding_of(v);
    if (!a.last && carried.is_replicated() && !natural.dims.empty()) {
      carried.dims = natural.dims;
      a.changed = true;
    }

    if (!a.last && loop_shardings_.accumulates(a.n, k, b))
      for (auto [x, m] : natural.partial)
        if (m == Monoid::sum && !carried.is_partial(x) && !carried.uses(x)) {
          carried.add_partial(x, m);
          a.changed = true;
        }

    inside = carried;
  } else if (b == 0) {
    inside = without(loop_shardings_.iteration_sharding(v, r), a.blocked);
    auto choice = state_.choices->stacks.find({a.n, k});
    if (choice != state_.choices->stacks.end() && stacks && !fits_any &&
        cost_.cheapest_source(v, choice->second).cost == 0)
      inside = without(choice->second, a.blocked);
    if (stacks) inside.set(a.l.axis.name, {});  // a device's shards of all tiles form no block
  }
  a.plan.value[k].push_back(versions_.obtain(v, inside));
  after_loop = inside;
  if (stacks && !r.carry)
    after_loop.set(a.l.axis.name, a.plan.shared_by);
  else
    for (int x : a.plan.shared_by) after_loop.add_partial(x, r.carry ? Monoid::sum : r.monoid);
}
void LoopPlanner::finish_loop(LoopAttempt& a) {
  Version created{.kind = RunLoop{a.loop}, .node = a.n};
  for (std::size_t k = 0; k < a.l.results.size(); ++k) {
    if (!a.l.results[k].start) continue;
    a.plan.start[k] = versions_.obtain(graph_.add(a.l.results[k].start), a.plan.after_loop[k]);
    created.in.push_back(a.plan.start[k]);
  }
  carried_[a.n] = a.carried;
  const auto shardings = a.plan.after_loop;
  set_loop(a.loop, std::move(a.plan));
  const int loop = add_computed(std::move(created));
  for (std::size_t k = 0; k < shardings.size(); ++k) {
    if (int r = graph_.find(loop_result(ptr(a.n), k).get()); r >= 0)
      add_computed(
          {.kind = ResultOfLoop{a.loop, k}, .node = r, .sharding = shardings[k], .in = {loop}});
  }
}

}  // namespace haliax::partitioning
