// Queries of the plan so far: the body in which a value is computed, its versions, and the cost of
// a further version.
#include <algorithm>

#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {

Planned::Planned(GlobalGraph& whole, const PartitionOptions& options)
    : whole_(whole), mesh_(whole.mesh), options_(options) {}

int Planned::body_of(int n) const {
  for (std::size_t k = open_.size(); k-- > 0;)
    if (varies_in(node(n), loop_of(node(open_[k].loop)), open_[k].number)) return open_[k].body;
  return 0;
}
MeshAxes Planned::taken(const Node& n) const {
  MeshAxes out;
  auto add = [&](const MeshAxes& c) {
    for (int x : c)
      if (!out.has(x)) out.push_back(x);
  };
  for (auto& o : open_)
    if (!o.shared_by.empty() && whole_.changes_in(n, loop_of(node(o.loop)), o.number))
      add(o.shared_by);
  for (auto* b = &now_.plan.body(body_of(whole_.find(&n))); b->parent >= 0;
       b = &now_.plan.body(b->parent))
    if (int loop = now_.plan.loop(b->loop).node; whole_.is_guarded(loop)) add(taken(node(loop)));
  return out;
}
MeshAxes Planned::own_turns(int n) const {
  auto& me = node(n);
  for (auto& o : open_) {
    auto& l = loop_of(node(o.loop));
    bool walked =
        is_slice_at(me, l.index[o.number].get()) && !whole_.changes_in(*me.in[0], l, o.number);
    if (walked && !o.shared_by.empty()) return o.shared_by;
  }
  return {};
}
// Returns the sharding that the node needs of operand k. A slice at the index of a loop with shared
// iterations needs the sliced axis sharded along the mesh axes that share them.
Sharding Planned::needed(int n, std::size_t k, const Sharding& work) const {
  auto need = rules::operand_sharding(node(n), k, work, mesh_);
  if (auto turns = own_turns(n); k == 0 && !turns.empty())
    need.set(SliceAttr::of(node(n)).axis, turns);
  return need;
}
const std::vector<int>& Planned::users(int n) const {
  static const std::vector<int> none;
  auto& r = now_.plan.body(body_of(n));
  auto& s = whole_.level(r.loop < 0 ? -1 : now_.plan.loop(r.loop).node, r.number);
  auto found = s.users.find(n);
  return found == s.users.end() ? none : found->second;
}
const Sharding& Planned::first(int n) const {
  static const Sharding whole;
  if (instead(n) >= 0) return first(instead(n));
  if (node(n).op == &prim::kShardingConstraint && done(n)) return pins_.at(n);
  if (generated(n) || lazy(n) || versions(n).empty()) return whole;
  return version(versions(n)[0]).at;
}
bool Planned::chosen(int n, OpChoice choice) const {
  auto found = choices_->ops.find(n);
  return found != choices_->ops.end() && found->second == choice;
}
OpChoice Planned::decided(int n) const {
  if (auto found = choices_->ops.find(n); found != choices_->ops.end()) return found->second;
  int of = whole_.at(n).expansion_of;
  return of >= 0 && node(of).op == node(n).op && chosen(of, Choice::move_axes) ? Choice::move_axes
                                                                               : Choice::usual;
}
// n is the slice of an array that an iteration reads. Returns true if the array is a weight that is
// gathered in full before the loop.
bool Planned::gathers_ahead(int n) const {
  return whole_.at(operand(n, 0)).of_inputs && !options_.regather;
}

Planned::Offer Planned::offer(int n, const Sharding& need, int depth) const {
  if (instead(n) >= 0) return offer(instead(n), need, depth);
  if (generated(n) || lazy(n)) return {};
  Offer best;
  auto turns = turns_of(n);
  for (int v : versions(n)) {
    auto hops = reshard(mesh_, node(n).axes, node(n).dtype, version(v).at, need);
    double cost = 0;
    for (auto& h : hops) cost += h.bytes * turns;
    if (best.version < 0 || cost < best.cost || (cost == best.cost && hops.size() < best.length))
      best = {cost, v, false, hops.size()};
  }
  if (best.version >= 0 && best.cost == 0) return best;
  auto& me = node(n);
  // A barrier delays the rematerialization of its operand and does not change the value. If the
  // operand is a weight, the weight is reused if it is available anyway: it stays resident, or it
  // is gathered before the loop.
  bool kept = me.op == &prim::kBarrier && whole_.is_weight(n) &&
              (!options_.regather || body_of(n) != body_of(operand(n, 0)));
  bool view = kept || rules::is_free_to_recompute(me) ||
              (me.op->kind == Kind::view && need.mesh_axes(rules::shifted(me)).empty());
  if (!view || depth > 8 || (!need.partial.empty() && best.version >= 0)) return best;
  for (auto& [name, cut] : need.dims)
    if (!rules::may_shard(me, name, cut, need, mesh_)) return best;
  double cost = 0;
  for (std::size_t k = 0; k < me.in.size(); ++k)
    if (!is_order_only(me, k)) cost += offer(operand(n, k), needed(n, k, need), depth + 1).cost;
  bool sliced = is_dynamic_slice(me) && body_of(n) != body_of(operand(n, 0));
  bool ahead = sliced && gathers_ahead(n);
  if (best.version < 0 || cost < best.cost - 0.5 || (ahead && cost <= best.cost + 0.5))
    if (!sliced || ahead || cost == 0 || best.version < 0) return {cost, -1, true, 0};
  return best;
}

}  // namespace haliax::partitioning
