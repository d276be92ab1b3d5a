// Queries of the plan so far: the body in which a value is computed, its versions, and the cost of
// a further version.
#include <algorithm>

#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {

PlanQueries::PlanQueries(GlobalGraph& graph, const PartitionOptions& options)
    : graph_(graph), mesh_(graph.mesh), options_(options) {}

int PlanQueries::body_of(int n) const {
  for (std::size_t k = open_bodies_.size(); k-- > 0;)
    if (varies_in(node(n), loop_of(node(open_bodies_[k].loop)), open_bodies_[k].number))
      return open_bodies_[k].body;
  return 0;
}
MeshAxes PlanQueries::blocked_axes(const Node& n) const {
  MeshAxes out;
  auto add = [&](const MeshAxes& c) {
    for (int x : c)
      if (!out.has(x)) out.push_back(x);
  };
  for (auto& o : open_bodies_)
    if (!o.shared_by.empty() && graph_.changes_in(n, loop_of(node(o.loop)), o.number))
      add(o.shared_by);
  for (auto* b = &draft_.plan.body(body_of(graph_.find(&n))); b->parent >= 0;
       b = &draft_.plan.body(b->parent))
    if (int loop = draft_.plan.loop(b->loop).node; graph_.is_guarded(loop))
      add(blocked_axes(node(loop)));
  return out;
}
MeshAxes PlanQueries::local_iterations_over(int n) const {
  auto& me = node(n);
  for (auto& o : open_bodies_) {
    auto& l = loop_of(node(o.loop));
    bool slices_own =
        is_slice_at(me, l.index[o.number].get()) && !graph_.changes_in(*me.in[0], l, o.number);
    if (slices_own && !o.shared_by.empty()) return o.shared_by;
  }
  return {};
}
// Returns the sharding that the node needs of operand k. A slice at the index of a loop with shared
// iterations needs the sliced axis sharded along the mesh axes that share them.
Sharding PlanQueries::operand_sharding(int n, std::size_t k, const Sharding& work) const {
  auto need = rules::operand_sharding(node(n), k, work, mesh_);
  if (auto mesh_axes = local_iterations_over(n); k == 0 && !mesh_axes.empty())
    need.set(SliceAttr::of(node(n)).axis, mesh_axes);
  return need;
}
const std::vector<int>& PlanQueries::users(int n) const {
  static const std::vector<int> none;
  auto& r = draft_.plan.body(body_of(n));
  auto& s = graph_.level(r.loop < 0 ? -1 : draft_.plan.loop(r.loop).node, r.number);
  auto found = s.users.find(n);
  return found == s.users.end() ? none : found->second;
}
const Sharding& PlanQueries::sharding_of(int n) const {
  static const Sharding replicated;
  if (replacement(n) >= 0) return sharding_of(replacement(n));
  if (node(n).op == &prim::kShardingConstraint && is_planned(n)) return constraints_.at(n);
  if (is_open(n) || versions(n).empty()) return replicated;
  return version(versions(n)[0]).at;
}
bool PlanQueries::is_chosen(int n, OpChoice choice) const {
  auto found = choices_->ops.find(n);
  return found != choices_->ops.end() && found->second == choice;
}
OpChoice PlanQueries::choice_of(int n) const {
  if (auto found = choices_->ops.find(n); found != choices_->ops.end()) return found->second;
  int of = graph_.at(n).expansion_of;
  return of >= 0 && node(of).op == node(n).op && is_chosen(of, Choice::move_axes)
             ? Choice::move_axes
             : Choice::usual;
}
// n is the slice of an array that an iteration reads. Returns true if the array is a weight that is
// gathered in full before the loop.
bool PlanQueries::is_gathered_before_loop(int n) const {
  return graph_.at(operand(n, 0)).of_inputs && !options_.regather;
}

PlanQueries::Candidate PlanQueries::cheapest_source(int n, const Sharding& need, int depth) const {
  if (replacement(n) >= 0) return cheapest_source(replacement(n), need, depth);
  if (is_open(n)) return {};
  Candidate best;
  const auto iterations = iterations_of(n);
  for (int v : versions(n)) {
    auto steps = reshard(mesh_, node(n).axes, node(n).dtype, version(v).at, need);
    double cost = 0;
    for (auto& step : steps) cost += step.bytes * iterations;
    if (best.version < 0 || cost < best.cost || (cost == best.cost && steps.size() < best.steps))
      best = {cost, v, false, steps.size()};
  }
  if (best.version >= 0 && best.cost == 0) return best;
  auto& me = node(n);
  // A barrier delays the rematerialization of its operand and does not change the value. If the
  // operand is a weight, the weight is reused if it is available anyway: it stays resident, or it
  // is gathered before the loop.
  bool resident = me.op == &prim::kBarrier && graph_.is_weight(n) &&
                  (!options_.regather || body_of(n) != body_of(operand(n, 0)));
  bool view = resident || rules::is_free_to_recompute(me) ||
              (me.op->kind == Kind::view && need.mesh_axes(rules::shifted(me)).empty());
  if (!view || depth > 8 || (!need.partial.empty() && best.version >= 0)) return best;
  for (auto& [name, mesh_axes] : need.dims)
    if (!rules::may_shard(me, name, mesh_axes, need, mesh_)) return best;
  double cost = 0;
  for (std::size_t k = 0; k < me.in.size(); ++k)
    if (!is_order_only(me, k))
      cost += cheapest_source(operand(n, k), operand_sharding(n, k, need), depth + 1).cost;
  bool sliced = is_dynamic_slice(me) && body_of(n) != body_of(operand(n, 0));
  bool ahead = sliced && is_gathered_before_loop(n);
  if (best.version < 0 || cost < best.cost - 0.5 || (ahead && cost <= best.cost + 0.5))
    if (!sliced || ahead || cost == 0 || best.version < 0) return {cost, -1, true, 0};
  return best;
}

}  // namespace haliax::partitioning
