// How the points of an op are cut: by what it reads, by what is wanted of it, and along axes that
// it needs whole.
#include <algorithm>

#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {
namespace {

// Does the largest of so many blocks have a smaller share of a than of b? If not less, the longer
// axis is better.
bool takes_cut_better(const Axis& a, const Axis& b, std::int64_t blocks) {
  auto share = [&](const Axis& x) {
    return double((x.size + blocks - 1) / blocks) / double(x.size);
  };
  return share(a) < share(b) || (share(a) == share(b) && a.size > b.size);
}

}  // namespace

void Planned::assign(const Node& n, Sharding& work, Name a, const MeshAxes& cut) const {
  if (cut.empty() || !work.mesh_axes(a).empty() || cut.overlaps(taken(n))) return;
  for (int x : cut)
    if (work.uses(x)) return;
  if (rules::may_shard(n, a, cut, work, mesh_)) work.set(a, cut);
}
// How the points of an op are cut: a mapping binds the result of a contraction or a take; then come
// the operands' own cuts, the largest operand first (it is the dearest to move), where axis and
// mesh axis are still free; what no operand cuts is made as it will be wanted.
Sharding Planned::work_of(int n, int follow) const {
  auto& me = node(n);
  Sharding work;
  auto after = [&](std::size_t k) {
    for (auto& [name, cut] : rules::work_sharding(me, k, first(operand(n, k)), mesh_).dims)
      assign(me, work, name, cut);
  };
  auto wished = [&] {
    for (auto& [name, cut] : wish(n).dims) assign(me, work, name, cut);
  };
  if (follow >= 0) after(std::size_t(follow));
  if (follow == kMoved) cut_rows(n, work);
  if (follow == kWish) wished();
  bool picks = rules::picks(me) && !rules::writes_into(me), in_order = prim::picks_in_order(me);
  bool binds = me.op->kind == Kind::contract || (picks && !in_order);
  if (binds && me.origin.mapping)
    for (auto& [name, cut] : sharding_for(me, *me.origin.mapping, mesh_).dims)
      assign(me, work, name, cut);
  std::vector<std::size_t> operands;
  for (std::size_t k = 0; k < me.in.size(); ++k)
    if (me.in[k]) operands.push_back(k);
  std::stable_sort(operands.begin(), operands.end(),
                   [&](auto a, auto b) { return me.in[a]->bytes() > me.in[b]->bytes(); });
  for (auto k : operands) after(k);
  if (follow == kMoved) displace(n, work, follow);
  if (work.dims.empty())
    for (auto& [name, cut] : wish(n).dims) {  // but what is pending lands later, if it can
      bool pending = false;
      for (int x : whole_.at(n).in)
        if (x >= 0)
          for (int m : cut) pending |= first(x).is_partial(m);
      if (!pending) assign(me, work, name, cut);
    }
  if (work.dims.empty())  // of slices that are read through, as what they are taken of lies
    for (auto k : operands) {
      int x = operand(n, k);
      if (!waits_to_shift(x)) continue;
      for (auto& [name, cut] : first(operand(x, 0)).dims) assign(me, work, name, cut);
    }
  displace(n, work, follow);
  return work;
}
// May what is pending over x in operand k ride through this op, to be reduced later?
Planned::Rides Planned::rides(int n, std::size_t k, int x, Monoid m, const Sharding& work) const {
  auto& me = node(n);
  int of = operand(n, k);
  auto how = linear_in(me, k);
  if (how == Linear::no || work.uses(x) || (how != Linear::moves && m != Monoid::sum))
    return Rides::no;
  if (users(of).size() > 1 || body_of(of) != body_of(n)) return Rides::no;
  for (int v : versions(of))
    if (!version(v).at.is_partial(x)) return Rides::no;
  if (how == Linear::one)
    for (std::size_t j = 0; j < me.in.size(); ++j)
      if (j != k && me.in[j] && (me.in[j] == me.in[k] || first(operand(n, j)).is_partial(x)))
        return Rides::no;
  double terms = bytes(of, first(of));  // never grow what is pending
  if (rules::shifted(me))
    for (std::size_t j = 0; j < me.in.size(); ++j)
      if (j != k && first(operand(n, j)).is_partial(x))
        terms += bytes(operand(n, j), first(operand(n, j)));
  if (bytes(n, rules::result_sharding(me, work)) <= terms * 1.001) return Rides::yes;
  // `place`, among zeros
  bool larger = me.op->kind == Kind::step && how == Linear::moves && !rules::jointly_partial(me);
  return larger ? Rides::larger : Rides::no;
}
// Where something pending over x should land: on the axis that an output, a constraint or any
// consumer will have cut by x.
std::pair<Name, MeshAxes> Planned::landing(int n, int x) const {
  for (auto& [name, cut] : wish(n).dims)
    if (cut.has(x)) return {name, cut};
  // A sum that is made wider lands where the narrow one would.
  if (int of = whole_.at(n).expansion_of;
      of >= 0 && node(of).op == node(n).op && node(of).axes == node(n).axes)
    return landing(of, x);
  for (int u : users(n)) {
    if (u < 0 || node(u).op == &kLoop || node(u).op == &kResult ||
        node(u).op == &prim::kShardingConstraint)
      continue;
    auto work = work_of(u, kUsual);
    for (std::size_t k = 0; k < node(u).in.size(); ++k)
      if (operand(u, k) == n)
        for (auto& [name, cut] : rules::operand_sharding(node(u), k, work, mesh_).dims)
          if (cut.has(x)) return {name, cut};
  }
  return {};
}

// How the points may be cut instead, by another's cuts first. Fewer bytes never buy less parallel
// work, nor a weight gathered along an axis that the mapping cuts.
std::optional<Sharding> Planned::otherwise_cut(int n, const Sharding& usual, int follow) const {
  auto& me = node(n);
  auto& in = whole_.at(n).in;
  auto other = work_of(n, follow);
  if (other == usual) return {};
  auto used = [&](const Sharding& s) {
    int r = 1;
    for (auto& d : s.dims) r *= ranks(mesh_, d.second);
    return r;
  };
  if (used(other) < used(usual)) return {};
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0 || !me.origin.mapping || !whole_.is_weight(in[k])) continue;
    auto need = rules::operand_sharding(me, k, other, mesh_),
         before = rules::operand_sharding(me, k, usual, mesh_);
    for (auto& [name, cut] : first(in[k]).dims)
      if (me.origin.mapping->find(name) && before.mesh_axes(name) == cut &&
          !(need.mesh_axes(name) == cut))
        return {};
  }
  return other;
}
// What is cut along an axis that the op needs whole: the cut moves to another axis, by an exchange,
// rather than be gathered.
void Planned::displace(int n, Sharding& work, int follow) const {
  auto& me = node(n);
  if (rules::regroups(me)) return;
  for (std::size_t k = 0; k < me.in.size(); ++k) {
    if (!me.in[k] || (double(me.in[k]->bytes()) <= kNegligibleBytes && follow != kMoved)) continue;
    Sharding left;
    rules::work_sharding(me, k, first(operand(n, k)), mesh_, &left);
    for (auto& [name, cut] : left.dims) {
      const Axis* best = nullptr;
      for (auto& a : me.in[k]->axes) {
        // not an axis of ids of that name
        bool stays = has(me.axes, a.name) && along(me, k, a.name).point == a.name;
        if (a.name == name || !stays || a.size < 2 || !work.mesh_axes(a.name).empty()) continue;
        bool better = !best || takes_cut_better(a, *best, ranks(mesh_, cut));
        if (better && rules::may_shard(me, a.name, cut, work, mesh_)) best = &a;
      }
      if (best) assign(me, work, best->name, cut);
    }
  }
}
// Where ids and the table that they pick from, or write into, are cut along one mesh axis, that may
// cut the rows instead: each device looks up all ids in its part of every row.
void Planned::cut_rows(int n, Sharding& work) const {
  auto& me = node(n);
  if (!rules::picks(me) || double(me.in[0]->bytes()) <= kNegligibleBytes) return;
  auto is_of_rows = [&](Name a) {
    return has(me.in[0]->axes, a) && has(me.axes, a) && along(me, 0, a).way == Along::Way::map;
  };
  for (std::size_t k = 0; k < me.in.size(); ++k)
    for (auto& [name, cut] : first(operand(n, k)).dims) {
      const Axis* best = nullptr;
      for (auto& a : me.in[0]->axes)
        if (is_of_rows(a.name) && a.size > 1 && first(operand(n, 0)).mesh_axes(a.name).empty() &&
            work.mesh_axes(a.name).empty())
          if (!best || takes_cut_better(a, *best, ranks(mesh_, cut))) best = &a;
      if (best && !is_of_rows(name)) assign(me, work, best->name, cut);
    }
}

// ---- axes that an op needs whole, and positions that move ----
// In how many blocks lies an axis that an op needs whole? 0: in one, or `least` is as much as a
// block has.
int Planned::blocks_along(const Node& op, Name axis, std::int64_t least) const {
  int x = operand(whole_.find(&op), 0), blocks = ranks(mesh_, first(x).mesh_axes(axis));
  return blocks < 2 || (haliax::find(node(x), axis)->size + blocks - 1) / blocks <= least ? 0
                                                                                          : blocks;
}
bool Planned::goes_by_blocks(const Node& op, Name axis, std::int64_t least) const {
  int n = whole_.find(&op);
  return !chosen(n, kWhole) && !chosen(n, kMoved) && blocks_along(op, axis, least) > 0;
}
bool Planned::first_in_blocks(const Node& n) const {
  return prim::is_top_k(n) &&
         goes_by_blocks(*n.in[0], SliceAttr::of(n).axis, SliceAttr::of(n).size);
}
// An order of which others read only the first few, and those if others pick by them, are made with
// what reads them, block by block. So is a slice that others put in a row: its positions move once.
int Planned::awaited(int n) const {
  if (done(n)) return -1;
  auto& me = node(n);
  auto all_users = [&](auto is) {
    auto& u = users(n);
    return !u.empty() &&
           std::all_of(u.begin(), u.end(), [&](int k) { return k >= 0 && is(node(k)); });
  };
  if (all_users([](const Node& u) { return prim::is_top_k(u); })) return operand(n, 0);
  if (prim::is_top_k(me)) {
    bool picked =
        all_users([&](const Node& u) { return prim::picks_top_k(u) && u.in[1].get() == &me; });
    return picked ? operand(operand(n, 0), 0) : -1;
  }
  auto axis = me.op->kind == Kind::view ? rules::shifted(me) : Name();
  auto joins = [&](const Node& u) {
    return u.op->kind == Kind::step && rules::jointly_partial(u) && rules::shifted(u) == axis;
  };
  return axis && all_users(joins) ? operand(n, 0) : -1;
}
bool Planned::waits_to_shift(int x) const {
  return x >= 0 && !done(x) && node(x).op->kind == Kind::view && rules::shifted(node(x));
}
bool Planned::put_off(int n) const {
  auto& me = node(n);
  if (prim::is_top_k(me)) return first_in_blocks(me);
  if (auto axis = rules::shifted(me)) return !first(operand(n, 0)).mesh_axes(axis).empty();
  auto& u = users(n);
  return std::all_of(u.begin(), u.end(), [&](int k) { return first_in_blocks(node(k)); });
}

}  // namespace haliax::partitioning
