// Plans loops. A body is planned like the top level, with versions of its own. If it needs an
// outside value in another sharding, the value is resharded once, before the loop.
#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {
namespace {
constexpr int kAttempts = 4;

// Returns the sharding without the axes that are sharded along these mesh axes.
Sharding without(Sharding s, const MeshAxes& blocked) {
  std::erase_if(s.dims, [&](auto& d) { return d.second.overlaps(blocked); });
  return s;
}
}  // namespace

// Returns true if the body only adds to this carry. Its addends may then stay partial until the
// loop ends.
bool PlanQueries::accumulates(int loop, std::size_t k, std::size_t body) const {
  auto& r = loop_of(node(loop)).results[k];
  auto& level = graph_.level(loop, body);
  int at = graph_.find(r.carry.get()), value = graph_.id(r.value[body]);
  while (at >= 0 && at != value) {
    auto u = level.users.find(at);
    if (u == level.users.end() || u->second.size() != 1 || u->second[0] < 0) return false;
    at = u->second[0];
    auto& op = *node(at).op;
    if (op.linear != Linear::all &&
        !(op.linear == Linear::moves && rules::is_free_to_recompute(node(at))))
      return false;
  }
  if (at != value) return false;
  auto u = level.users.find(value);
  return u == level.users.end() || u->second.size() == 1;
}
// Returns true if a sharding constraint in the loop shards another axis than the tiled one along
// these mesh axes, so that the devices share the work of each iteration.
bool PlanQueries::shares_work(int loop, Name tiled, const MeshAxes& devices) const {
  const auto inside = graph_.level(loop, 0).order;
  return !devices.empty() && std::any_of(inside.begin(), inside.end(), [&](int s) {
    if (node(s).op == &kLoop) return shares_work(s, tiled, devices);
    if (node(s).op != &prim::kShardingConstraint) return false;
    auto at = constraint(node(s), mesh_);
    return std::any_of(at.dims.begin(), at.dims.end(),
                       [&](auto& d) { return d.first != tiled && d.second.overlaps(devices); });
  });
}
// Returns true if one of these nodes, or a node of an inner loop, reads more of x along the axis
// than the slice of the current iteration.
bool PlanQueries::reads_beyond_slice(const std::vector<int>& order, int x, Name axis,
                                     const Node* index) const {
  return std::any_of(order.begin(), order.end(), [&](int s) {
    auto& in = graph_.at(s).in;
    if (std::find(in.begin(), in.end(), x) == in.end()) return false;
    auto& me = node(s);
    if (me.op == &kLoop) {
      const auto bodies = loop_of(me).index.size();
      for (std::size_t b = 0; b < bodies; ++b)
        if (reads_beyond_slice(graph_.level(s, b).order, x, axis, index)) return true;
      return false;
    }
    auto part = slice_of(me);
    if (!part) return true;
    return part->axis == axis ? !is_slice_at(me, index) : reads_beyond_slice(order, s, axis, index);
  });
}
// Returns the mesh axes whose devices share the iterations of the loop. A loop may tile an axis
// that is sharded. If its iterations are independent, each device runs those of its own block. Sums
// over iterations are then partial, and stacked results are sharded as the tiled arrays. For
// example, given 8 chunks and 4 devices, each device runs 2 iterations.
MeshAxes PlanQueries::iterations_shared_by(int n) const {
  auto& l = loop_of(node(n));
  if (l.index.size() != 1) return {};
  for (std::size_t k = 0; k < l.results.size(); ++k)
    if (l.results[k].carry && !accumulates(n, k, 0)) return {};
  MeshAxes shared_by;
  std::int64_t most = 0;
  auto is_tile = [&](const Node& s) {
    return is_slice_at(s, l.index[0].get()) && !varies_in(*s.in[0], l, 0);
  };
  const auto order = graph_.level(n, 0).order;
  for (int s : order) {
    auto& me = node(s);
    if (!is_tile(me)) continue;
    auto& tiled = *haliax::find(*me.in[0], SliceAttr::of(me).axis);
    if (tiled.size != l.axis.size || SliceAttr::of(me).start != 0) return {};
    auto mesh_axes = sharding_of(operand(s, 0)).mesh_axes(tiled.name);
    if (!mesh_axes.empty() && me.in[0]->bytes() > most) {
      shared_by = mesh_axes;
      most = me.in[0]->bytes();
    }
  }
  if (shares_work(n, l.axis.name, shared_by)) return {};
  // Not if this requires an all-gather of a weight that the mapping shards.
  for (int s : order)
    for (int x : graph_.at(s).in) {
      auto& mapping = node(s).origin.mapping;
      if (x < 0 || !mapping || !graph_.at(x).of_inputs || varies_in(node(x), l, 0)) continue;
      for (auto& [name, mesh_axes] : sharding_of(x).dims)
        if (mesh_axes.overlaps(shared_by) && mapping->find(name) &&
            reads_beyond_slice(order, x, name, l.index[0].get()))
          return {};
    }
  auto blocks = ranks(mesh_, shared_by), chunk = int(prim::index_chunk(*l.index[0]));
  bool even = l.axis.size % blocks == 0 && l.axis.size / blocks % chunk == 0;
  return even && !shared_by.overlaps(blocked_axes(node(n))) ? shared_by : MeshAxes();
}
Sharding PlanQueries::reduced_sharding(int n) const {
  auto at = sharding_of(n);
  if (is_open(n)) return preferred(n).on(node(n).axes).without_partial();
  auto pending = at.partial;
  at.partial.clear();
  for (auto [x, m] : pending) {
    auto [name, mesh_axes] = scatter_target(n, x);
    bool taken = !name || !has(node(n).axes, name) || !at.mesh_axes(name).empty();
    for (int y : mesh_axes) taken |= at.uses(y);
    if (!taken) at.set(name, mesh_axes);
  }
  return at;
}
// Returns the sharding in which a loop accumulates or stacks the value of an iteration.
//
// - A reduction over iterations of values that are partial by the same monoid stays partial. It is
//   reduced over devices once, after the loop.
// - A stack uses a version without partial sums if there is one. Otherwise it stays partial, unless
//   `regather` is set and a reduce-scatter makes the value smaller.
Sharding PlanQueries::iteration_sharding(int n, const LoopResult& r) const {
  auto at = sharding_of(n);
  if (at.partial.empty()) return reduced_sharding(n);
  if (r.fold == Fold::fold) {
    bool same = std::all_of(at.partial.begin(), at.partial.end(),
                            [&](auto& p) { return p.second == r.monoid; });
    return same ? at : reduced_sharding(n);
  }
  for (int v : versions(n))
    if (version(v).at.partial.empty()) return version(v).at;
  auto scattered = reduced_sharding(n);
  bool shrinks = bytes(n, scattered) < bytes(n, at);
  return options_.regather && shrinks ? scattered : at;
}

// Returns the shardings of the carries with which the first attempt starts.
std::vector<Sharding> Planner::carries_of(int n) {
  if (auto known = carried_.find(n); known != carried_.end()) return known->second;
  auto& l = loop_of(node(n));
  std::vector<Sharding> carried(l.results.size());
  for (std::size_t k = 0; k < carried.size(); ++k) {
    if (!l.results[k].carry) continue;
    // An accumulator that starts from a value computable in any sharding has no sharding at first.
    // plan_value derives it from the addends, which may be partial. With `regather`, it starts in
    // its preferred sharding, which needs less memory.
    int start = graph_.id(l.results[k].start);
    bool open = is_open(start);
    if (!open || options_.regather || !accumulates(n, k, 0)) carried[k] = reduced_sharding(start);
  }
  return carried;
}
void Planner::loop(int n) {
  auto& l = loop_of(node(n));
  const auto count = l.results.size();
  const auto shared_by = iterations_shared_by(n);
  const auto blocked = shared_by + blocked_axes(node(n));
  auto carried = carries_of(n);
  auto ring_axes = ring_axes_of(n);
  for (auto& c : carried) c = without(c, blocked);
  for (int attempt = 1;; ++attempt) {
    auto before = draft_;
    LoopPlan plan{.node = n, .shared_by = shared_by, .ring_axes = ring_axes};
    LoopAttempt a{n,
                  l,
                  int(draft_.plan.loops.size()),
                  blocked,
                  attempt == kAttempts,
                  carried,
                  std::move(plan)};
    draft_.plan.loops.push_back({.node = n});
    a.plan.inside.resize(count);
    a.plan.at.resize(count);
    a.plan.value.resize(count);
    a.plan.carry.resize(count);
    a.plan.start.assign(count, -1);
    for (std::size_t b = 0; b < l.index.size(); ++b) plan_body(a, b);
    bool breaks = !a.changed && breaks_ring(a);
    if (!a.changed && !breaks) return finish_loop(a);
    carried = std::move(a.carried);
    draft_ = std::move(before);
    if (breaks) ring_axes = {};
    track_new_nodes();
  }
}
void Planner::plan_body(LoopAttempt& a, std::size_t b) {
  auto& results = a.l.results;
  int parent = body_of(a.n), body = int(draft_.plan.bodies.size());
  auto own = double(trips(a.l, b)) / ranks(mesh_, a.plan.shared_by);
  draft_.plan.bodies.push_back({parent, a.loop, b, draft_.plan.body(parent).iterations * own, {}});
  a.plan.bodies.push_back(body);
  open_bodies_.push_back({a.n, b, body, a.plan.shared_by, a.plan.ring_axes});
  for (std::size_t k = 0; k < results.size(); ++k) {
    if (!results[k].carry) continue;
    int c = graph_.id(results[k].carry);
    track_new_nodes();
    a.plan.carry[k].push_back(add({.kind = Carry{a.loop, k}, .node = c, .at = a.carried[k]}));
    versions(c) = {a.plan.carry[k].back()};
    draft_.at(c).planned = true;
  }
  for (int x : graph_.level(a.n, b).order) compute(x);
  for (std::size_t k = 0; k < results.size(); ++k) plan_value(a, k, b);
  forget_body(a.l, b);
  open_bodies_.pop_back();
}
// Plans the value that an iteration computes for result k, and the sharding of the result after the
// loop.
void Planner::plan_value(LoopAttempt& a, std::size_t k, std::size_t b) {
  auto& r = a.l.results[k];
  auto &inside = a.plan.inside[k], &at = a.plan.at[k], &carried = a.carried[k];
  int v = graph_.id(r.value[b]);
  bool open = is_open(v), stacks = r.fold == Fold::stack;
  bool returned = stacks && !open && !a.plan.ring_axes.empty() &&
                  sharding_of(v).is_partial(a.plan.ring_axes[0]);
  if (returned) {
    inside = sharding_of(v);
    inside.set(a.l.axis.name, {});
    a.plan.value[k].push_back(add_ring_return(a, v, inside));
    inside = at = version(a.plan.value[k].back()).at;
    at.set(a.l.axis.name, a.plan.ring_axes);
    return;
  }
  if (r.carry) {
    auto natural = open ? carried : sharding_of(v);
    if (!a.last && carried.is_replicated() && !natural.dims.empty()) {
      carried.dims = natural.dims;
      a.changed = true;
    }

    if (!a.last && accumulates(a.n, k, b))
      for (auto [x, m] : natural.partial)
        if (m == Monoid::sum && !carried.is_partial(x) && !carried.uses(x)) {
          carried.add_partial(x, m);
          a.changed = true;
        }

    inside = carried;
  } else if (b == 0) {
    inside = without(iteration_sharding(v, r), a.blocked);
    auto choice = choices_->stacks.find({a.n, k});
    if (choice != choices_->stacks.end() && stacks && !open &&
        cheapest_source(v, choice->second).cost == 0)
      inside = without(choice->second, a.blocked);
    if (stacks) inside.set(a.l.axis.name, {});  // a device's shards of all chunks form no block
  }
  a.plan.value[k].push_back(obtain(v, inside));
  at = inside;
  if (stacks && !r.carry)
    at.set(a.l.axis.name, a.plan.shared_by);
  else
    for (int x : a.plan.shared_by) at.add_partial(x, r.carry ? Monoid::sum : r.monoid);
}
// Resets the planning state of values that vary in the body. Their versions exist only there.
void Planner::forget_body(const Loop& l, std::size_t b) {
  for (std::size_t x = 0; x < draft_.nodes.size(); ++x) {
    auto& known = draft_.nodes[x];
    if ((known.planned || !known.versions.empty()) && varies_in(node(int(x)), l, b)) known = {};
  }
}
void Planner::finish_loop(LoopAttempt& a) {
  Version created{.kind = RunLoop{a.loop}, .node = a.n};
  for (std::size_t k = 0; k < a.l.results.size(); ++k) {
    if (!a.l.results[k].start) continue;
    a.plan.start[k] = obtain(graph_.id(a.l.results[k].start), a.plan.at[k]);
    created.in.push_back(a.plan.start[k]);
  }
  carried_[a.n] = a.carried;
  auto at = a.plan.at;
  draft_.plan.loop(a.loop) = std::move(a.plan);
  int s = add(std::move(created));
  versions(a.n) = {s};
  for (std::size_t k = 0; k < at.size(); ++k) {
    int r = graph_.find(loop_result(ptr(a.n), k).get());
    if (r < 0) continue;
    versions(r) = {add({.kind = ResultOfLoop{a.loop, k}, .node = r, .at = at[k], .in = {s}})};
    draft_.at(r).planned = true;
  }
}

}  // namespace haliax::partitioning
