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
bool Planned::accumulates(int loop, std::size_t k, std::size_t body) const {
  auto& r = loop_of(node(loop)).results[k];
  auto& level = whole_.level(loop, body);
  int at = whole_.find(r.carry.get()), value = whole_.id(r.value[body]);
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
bool Planned::shares_work(int loop, Name walked, const MeshAxes& devices) const {
  const auto inside = whole_.level(loop, 0).order;
  return !devices.empty() && std::any_of(inside.begin(), inside.end(), [&](int s) {
    if (node(s).op == &kLoop) return shares_work(s, walked, devices);
    if (node(s).op != &prim::kShardingConstraint) return false;
    auto at = constraint(node(s), mesh_);
    return std::any_of(at.dims.begin(), at.dims.end(),
                       [&](auto& d) { return d.first != walked && d.second.overlaps(devices); });
  });
}
// Returns true if one of these nodes, or a node of an inner loop, reads more of x along the axis
// than the slice of the current iteration.
bool Planned::reads_more(const std::vector<int>& order, int x, Name axis, const Node* index) const {
  return std::any_of(order.begin(), order.end(), [&](int s) {
    auto& in = whole_.at(s).in;
    if (std::find(in.begin(), in.end(), x) == in.end()) return false;
    auto& me = node(s);
    if (me.op == &kLoop) {
      const auto bodies = loop_of(me).index.size();
      for (std::size_t b = 0; b < bodies; ++b)
        if (reads_more(whole_.level(s, b).order, x, axis, index)) return true;
      return false;
    }
    auto part = slice_of(me);
    if (!part) return true;
    return part->axis == axis ? !is_slice_at(me, index) : reads_more(order, s, axis, index);
  });
}
// Returns the mesh axes whose devices share the iterations of the loop. A loop may tile an axis
// that is sharded. If its iterations are independent, each device runs those of its own block. Sums
// over iterations are then partial, and stacked results are sharded as the tiled arrays. For
// example, given 8 chunks and 4 devices, each device runs 2 iterations.
MeshAxes Planned::shared_turns(int n) const {
  auto& l = loop_of(node(n));
  if (l.index.size() != 1) return {};
  for (std::size_t k = 0; k < l.results.size(); ++k)
    if (l.results[k].carry && !accumulates(n, k, 0)) return {};
  MeshAxes turns;
  std::int64_t most = 0;
  auto walks = [&](const Node& s) {
    return is_slice_at(s, l.index[0].get()) && !varies_in(*s.in[0], l, 0);
  };
  const auto order = whole_.level(n, 0).order;
  for (int s : order) {
    auto& me = node(s);
    if (!walks(me)) continue;
    auto& walked = *haliax::find(*me.in[0], SliceAttr::of(me).axis);
    if (walked.size != l.axis.size || SliceAttr::of(me).start != 0) return {};
    auto cut = first(operand(s, 0)).mesh_axes(walked.name);
    if (!cut.empty() && me.in[0]->bytes() > most) {
      turns = cut;
      most = me.in[0]->bytes();
    }
  }
  if (shares_work(n, l.axis.name, turns)) return {};
  // Not if this requires an all-gather of a weight that the mapping shards.
  for (int s : order)
    for (int x : whole_.at(s).in) {
      auto& mapping = node(s).origin.mapping;
      if (x < 0 || !mapping || !whole_.at(x).of_inputs || varies_in(node(x), l, 0)) continue;
      for (auto& [name, cut] : first(x).dims)
        if (cut.overlaps(turns) && mapping->find(name) &&
            reads_more(order, x, name, l.index[0].get()))
          return {};
    }
  auto blocks = ranks(mesh_, turns), chunk = int(prim::index_chunk(*l.index[0]));
  bool even = l.axis.size % blocks == 0 && l.axis.size / blocks % chunk == 0;
  return even && !turns.overlaps(taken(node(n))) ? turns : MeshAxes();
}
Sharding Planned::resolved(int n) const {
  auto at = first(n);
  if (generated(n) || lazy(n)) return wish(n).on(node(n).axes).without_partial();
  auto pending = at.partial;
  at.partial.clear();
  for (auto [x, m] : pending) {
    auto [name, cut] = landing(n, x);
    bool taken = !name || !has(node(n).axes, name) || !at.mesh_axes(name).empty();
    for (int y : cut) taken |= at.uses(y);
    if (!taken) at.set(name, cut);
  }
  return at;
}
// Returns the sharding in which a loop accumulates or stacks the value of an iteration.
//
// - A reduction over iterations of values that are partial by the same monoid stays partial. It is
//   reduced over devices once, after the loop.
// - A stack uses a version without partial sums if there is one. Otherwise it stays partial, unless
//   `regather` is set and a reduce-scatter makes the value smaller.
Sharding Planned::kept(int n, const LoopResult& r) const {
  auto at = first(n);
  if (at.partial.empty()) return resolved(n);
  if (r.fold == Fold::fold) {
    bool same = std::all_of(at.partial.begin(), at.partial.end(),
                            [&](auto& p) { return p.second == r.monoid; });
    return same ? at : resolved(n);
  }
  for (int v : versions(n))
    if (version(v).at.partial.empty()) return version(v).at;
  auto landed = resolved(n);
  bool shrinks = bytes(n, landed) < bytes(n, at);
  return options_.regather && shrinks ? landed : at;
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
    int start = whole_.id(l.results[k].start);
    bool loose = generated(start) || lazy(start);
    if (!loose || options_.regather || !accumulates(n, k, 0)) carried[k] = resolved(start);
  }
  return carried;
}
void Planner::loop(int n) {
  auto& l = loop_of(node(n));
  const auto count = l.results.size();
  const auto turns = shared_turns(n);
  const auto blocked = turns + taken(node(n));
  auto carried = carries_of(n);
  auto round = ring_axes_of(n);
  for (auto& c : carried) c = without(c, blocked);
  for (int attempt = 1;; ++attempt) {
    auto before = now_;
    LoopPlan plan{.node = n, .shared_by = turns, .ring_axes = round};
    LoopAttempt a{
        n, l, int(now_.plan.loops.size()), blocked, attempt == kAttempts, carried, std::move(plan)};
    now_.plan.loops.push_back({.node = n});
    a.plan.inside.resize(count);
    a.plan.at.resize(count);
    a.plan.value.resize(count);
    a.plan.carry.resize(count);
    a.plan.start.assign(count, -1);
    for (std::size_t b = 0; b < l.index.size(); ++b) plan_body(a, b);
    bool stuck = !a.changed && is_stuck(a);
    if (!a.changed && !stuck) return finish_loop(a);
    carried = std::move(a.carried);
    now_ = std::move(before);
    if (stuck) round = {};
    fit_tables();
  }
}
void Planner::plan_body(LoopAttempt& a, std::size_t b) {
  auto& results = a.l.results;
  int parent = body_of(a.n), body = int(now_.plan.bodies.size());
  auto own = double(trips(a.l, b)) / ranks(mesh_, a.plan.shared_by);
  now_.plan.bodies.push_back({parent, a.loop, b, now_.plan.body(parent).iterations * own, {}});
  a.plan.bodies.push_back(body);
  open_.push_back({a.n, b, body, a.plan.shared_by, a.plan.ring_axes});
  for (std::size_t k = 0; k < results.size(); ++k) {
    if (!results[k].carry) continue;
    int c = whole_.id(results[k].carry);
    fit_tables();
    a.plan.carry[k].push_back(add({.kind = Version::Kind::carry,
                                   .node = c,
                                   .at = a.carried[k],
                                   .loop = a.loop,
                                   .result = k}));
    versions(c) = {a.plan.carry[k].back()};
    now_.at(c).done = true;
  }
  for (int x : whole_.level(a.n, b).order) compute(x);
  for (std::size_t k = 0; k < results.size(); ++k) plan_value(a, k, b);
  forget_body(a.l, b);
  open_.pop_back();
}
// Plans the value that an iteration computes for result k, and the sharding of the result after the
// loop.
void Planner::plan_value(LoopAttempt& a, std::size_t k, std::size_t b) {
  auto& r = a.l.results[k];
  auto &inside = a.plan.inside[k], &at = a.plan.at[k], &carried = a.carried[k];
  int v = whole_.id(r.value[b]);
  bool loose = generated(v) || lazy(v), stacks = r.fold == Fold::stack;
  bool returned =
      stacks && !loose && !a.plan.ring_axes.empty() && first(v).is_partial(a.plan.ring_axes[0]);
  if (returned) {
    inside = first(v);
    inside.set(a.l.axis.name, {});
    a.plan.value[k].push_back(sent_back(a, v, inside));
    inside = at = version(a.plan.value[k].back()).at;
    at.set(a.l.axis.name, a.plan.ring_axes);
    return;
  }
  if (r.carry) {
    auto natural = loose ? carried : first(v);
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
    inside = without(kept(v, r), a.blocked);
    auto choice = choices_->stacks.find({a.n, k});
    if (choice != choices_->stacks.end() && stacks && !loose && offer(v, choice->second).cost == 0)
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
  for (std::size_t x = 0; x < now_.nodes.size(); ++x) {
    auto& known = now_.nodes[x];
    if ((known.done || !known.versions.empty()) && varies_in(node(int(x)), l, b)) known = {};
  }
}
void Planner::finish_loop(LoopAttempt& a) {
  Version created{.kind = Version::Kind::loop, .node = a.n, .loop = a.loop};
  for (std::size_t k = 0; k < a.l.results.size(); ++k) {
    if (!a.l.results[k].start) continue;
    a.plan.start[k] = obtain(whole_.id(a.l.results[k].start), a.plan.at[k]);
    created.in.push_back(a.plan.start[k]);
  }
  carried_[a.n] = a.carried;
  auto at = a.plan.at;
  now_.plan.loop(a.loop) = std::move(a.plan);
  int s = add(std::move(created));
  versions(a.n) = {s};
  for (std::size_t k = 0; k < at.size(); ++k) {
    int r = whole_.find(loop_result(ptr(a.n), k).get());
    if (r < 0) continue;
    versions(r) = {add({.kind = Version::Kind::result,
                        .node = r,
                        .at = at[k],
                        .in = {s},
                        .loop = a.loop,
                        .result = k})};
    now_.at(r).done = true;
  }
}

}  // namespace haliax::partitioning
