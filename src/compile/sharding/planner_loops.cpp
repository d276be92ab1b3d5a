// Planning loops: a body is planned like the top, with versions of its own. What it needs of a value outside is made outside,
// once.
#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {
namespace {
constexpr int kAttempts = 4;
}

// Does the body only add to this carry? Then what it adds may stay pending until the last turn.
bool Planner::accumulates(int loop, std::size_t k, std::size_t body) {
  auto& r = loop_of(node(loop)).results[k];
  auto& level = whole_.level(loop, body);
  int at = whole_.find(r.carry.get()), value = whole_.id(r.value[body]);
  while (at >= 0 && at != value) {
    auto u = level.users.find(at);
    if (u == level.users.end() || u->second.size() != 1 || u->second[0] < 0) return false;
    at = u->second[0];
    auto& op = *node(at).op;
    if (op.linear != Linear::all && !(op.linear == Linear::moves && rules::is_view(node(at)))) return false;
  }
  if (at != value) return false;
  auto u = level.users.find(value);
  return u == level.users.end() || u->second.size() == 1;
}
// Does the mapping say that these devices share the work of each turn, along an axis that is not the one walked?
bool Planner::shares_work(int loop, Name walked, const Cut& devices) {
  const auto inside = whole_.level(loop, 0).order;
  return !devices.empty() && std::any_of(inside.begin(), inside.end(), [&](int s) {
    if (node(s).op == &kLoop) return shares_work(s, walked, devices);
    if (node(s).op != &prim::kPin) return false;
    auto at = constraint(node(s), mesh_);
    return std::any_of(at.dims.begin(), at.dims.end(), [&](auto& d) { return d.first != walked && d.second.meets(devices); });
  });
}
// What a loop walks may be cut along the axis that it walks. If no turn needs what another has left, each device walks its own
// block: sums over the turns are pending then, and what is stacked is cut as what is walked.
Cut Planner::shared_turns(int n) {
  auto& l = loop_of(node(n));
  if (l.index.size() != 1) return {};
  for (std::size_t k = 0; k < l.results.size(); ++k)
    if (l.results[k].carry && !accumulates(n, k, 0)) return {};
  Cut turns;
  std::int64_t most = 0;
  auto walks = [&](const Node& s) {
    return is_slice_at(s, l.index[0].get()) && !varies_in(*s.in[0], l, 0);
  };
  for (int s : whole_.level(n, 0).order) {
    auto& me = node(s);
    if (!walks(me)) continue;
    auto& walked = *haliax::find(*me.in[0], SliceAttr::of(me).axis);
    if (walked.size != l.axis.size || SliceAttr::of(me).start != 0) return {};
    auto cut = first(whole_.in[std::size_t(s)][0]).cut(walked.name);
    if (!cut.empty() && me.in[0]->bytes() > most) turns = cut, most = me.in[0]->bytes();
  }
  if (shares_work(n, l.axis.name, turns)) return {};
  // Not at the price of a weight that the mapping cuts, gathered.
  for (int s : whole_.level(n, 0).order)
    for (int x : whole_.in[std::size_t(s)]) {
      auto& mapping = node(s).origin.mapping;
      if (x < 0 || !mapping || !whole_.parameter[std::size_t(x)] || varies_in(node(x), l, 0)) continue;
      for (auto& [name, cut] : first(x).dims)
        if (cut.meets(turns) && mapping->find(name) && !(walks(node(s)) && name == SliceAttr::of(node(s)).axis)) return {};
    }
  auto blocks = ranks(mesh_, turns), chunk = int(prim::index_chunk(*l.index[0]));
  bool even = l.axis.size % blocks == 0 && l.axis.size / blocks % chunk == 0;
  return even && !turns.meets(taken(node(n))) ? turns : Cut();
}
Sharding Planner::resolved(int n) {
  auto at = first(n);
  if (whole_.free[std::size_t(n)] || now_.lazy[std::size_t(n)]) return whole_.wish[std::size_t(n)].on(node(n).axes).without_pending();
  auto pending = at.partial;
  at.partial.clear();
  for (auto [x, m] : pending) {
    auto [name, cut] = landing(n, x);
    bool taken = !name || !has(node(n).axes, name) || !at.cut(name).empty();
    for (int y : cut) taken |= at.cuts(y);
    if (!taken) at.set(name, cut);
  }
  return at;
}
// How the value of a turn is kept. A fold by a monoid that is pending stays pending: it is resolved once, after the loop. So does
// a stack, unless another loop reads it, turn by turn, or it would be smaller when it has landed; of a value that some version
// has resolved, that version is kept.
Sharding Planner::kept(int n, const LoopResult& r) {
  auto at = first(n);
  if (at.partial.empty()) return resolved(n);
  if (r.fold == Fold::fold) {
    bool same = std::all_of(at.partial.begin(), at.partial.end(), [&](auto& p) { return p.second == r.monoid; });
    return same ? at : resolved(n);
  }
  for (int v : versions(n))
    if (version(v).at.partial.empty()) return version(v).at;
  auto landed = resolved(n);
  bool shrinks = bytes(n, landed) < bytes(n, at);
  return options_.regather && shrinks ? landed : at;
}

void Planner::loop(int n) {
  auto& l = loop_of(node(n));
  auto count = l.results.size();
  const auto turns = shared_turns(n);
  auto blocked = turns + taken(node(n));
  auto free_of = [&](Sharding s) {  // of the mesh axes that share turns
    std::erase_if(s.dims, [&](auto& d) { return d.second.meets(blocked); });
    return s;
  };
  auto known = carried_.find(n);
  std::vector<Sharding> carried(count);
  if (known != carried_.end())
    carried = known->second;
  else
    for (std::size_t k = 0; k < count; ++k)
      if (l.results[k].carry) {
        // What is only added to may stay pending, if it need not be small.
        int start = whole_.id(l.results[k].start);
        bool loose = whole_.free[std::size_t(start)] || now_.lazy[std::size_t(start)];
        if (!loose || options_.regather || !accumulates(n, k, 0)) carried[k] = resolved(start);
      }
  for (auto& c : carried) c = free_of(c);
  for (int attempt = 0;; ++attempt) {
    auto before = now_;
    auto before_contested = contested;
    bool again = false;
    int me = int(now_.plan.loops.size());
    now_.plan.loops.push_back({.node = n});
    LoopPlan p{.node = n, .turns = turns};
    p.inside.resize(count), p.at.resize(count), p.value.resize(count), p.carry.resize(count), p.start.assign(count, -1);
    int parent = body_of(n);
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      int body = int(now_.plan.bodies.size());
      auto own = double(trips(l, b)) / ranks(mesh_, turns);
      now_.plan.bodies.push_back({parent, me, b, now_.plan.bodies[std::size_t(parent)].turns * own, {}});
      p.bodies.push_back(body);
      open_.push_back({n, b, body, turns});
      for (std::size_t k = 0; k < count; ++k) {
        if (!l.results[k].carry) continue;
        int c = whole_.id(l.results[k].carry);
        fit_tables();
        p.carry[k].push_back(add({.kind = Version::Kind::carry, .node = c, .at = carried[k], .loop = me, .result = k}));
        versions(c) = {p.carry[k].back()};
        now_.done[std::size_t(c)] = true;
      }
      for (int x : whole_.level(n, b).order) compute(x);
      for (std::size_t k = 0; k < count; ++k) {
        auto& r = l.results[k];
        int v = whole_.id(r.value[b]);
        bool loose = whole_.free[std::size_t(v)] || now_.lazy[std::size_t(v)];
        if (r.carry) {
          auto natural = loose ? carried[k] : first(v);
          if (attempt + 1 < kAttempts && carried[k].whole() && !natural.dims.empty())
            carried[k].dims = natural.dims, again = true;
          if (attempt + 1 < kAttempts && accumulates(n, k, b))
            for (auto [x, m] : natural.partial)
              if (m == Monoid::sum && !carried[k].pending(x) && !carried[k].cuts(x)) carried[k].pend(x, m), again = true;
          p.inside[k] = carried[k];
        } else if (b == 0) {
          auto choice = choices_->stack.find({n, k});
          p.inside[k] = free_of(kept(v, r));
          if (choice != choices_->stack.end() && r.fold == Fold::stack && !loose && offer(v, choice->second).cost == 0)
            p.inside[k] = free_of(choice->second);
          if (r.fold == Fold::stack) p.inside[k].set(l.axis.name, {});  // chunks in a row are no block of the whole
        }
        p.value[k].push_back(obtain(v, p.inside[k]));
        p.at[k] = p.inside[k];
        if (r.fold == Fold::stack && !r.carry)
          p.at[k].set(l.axis.name, turns);
        else
          for (int x : turns) p.at[k].pend(x, r.carry ? Monoid::sum : r.monoid);
      }
      // What the body made belongs to this body alone.
      for (std::size_t x = 0; x < whole_.nodes.size(); ++x) {
        if (!now_.done[x] && versions(int(x)).empty()) continue;
        if (!varies_in(*whole_.nodes[x], l, b)) continue;
        now_.of_node[x].clear(), now_.done[x] = now_.lazy[x] = 0, now_.alias[x] = -1;
      }
      open_.pop_back();
    }
    if (again) {
      now_ = std::move(before), contested = std::move(before_contested);
      fit_tables();
      continue;
    }
    for (std::size_t k = 0; k < count; ++k)
      if (l.results[k].start) p.start[k] = obtain(whole_.id(l.results[k].start), p.at[k]);
    carried_[n] = carried;
    Version made{.kind = Version::Kind::loop, .node = n, .loop = me};
    for (int s : p.start)
      if (s >= 0) made.in.push_back(s);
    auto at = p.at;
    now_.plan.loops[std::size_t(me)] = std::move(p);
    int s = add(std::move(made));
    versions(n) = {s};
    for (std::size_t k = 0; k < count; ++k) {
      int r = whole_.find(loop_result(ptr(n), k).get());
      if (r < 0) continue;
      versions(r) = {add({.kind = Version::Kind::result, .node = r, .at = at[k], .in = {s}, .loop = me, .result = k})};
      now_.done[std::size_t(r)] = true;
    }
    return;
  }
}

}  // namespace haliax::partitioning
