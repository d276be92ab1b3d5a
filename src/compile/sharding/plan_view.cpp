// Queries of the plan so far.
#include "compile/sharding/plan_view.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::partitioning {

int PlanView::body_of(int n) const {
  auto& open = state_.open_bodies;
  for (std::size_t k = open.size(); k-- > 0;)
    if (varies_in(node(n), loop_of(node(open[k].loop)), open[k].number)) return open[k].body;
  return 0;
}
MeshAxes PlanView::blocked_axes(const Node& n) const {
  MeshAxes out;
  auto add = [&](const MeshAxes& c) {
    for (int x : c)
      if (!out.has(x)) out.push_back(x);
  };
  for (auto& o : state_.open_bodies)
    if (!o.shared_by.empty() && graph_.changes_in(n, loop_of(node(o.loop)), o.number))
      add(o.shared_by);
  for (auto* b = &plan().body(body_of(graph_.find(&n))); b->parent >= 0;
       b = &plan().body(b->parent))
    if (int loop = plan().loop(b->loop).node; graph_.is_conditional(loop))
      add(blocked_axes(node(loop)));
  return out;
}
MeshAxes PlanView::local_iterations_over(int n) const {
  auto& me = node(n);
  for (auto& o : state_.open_bodies) {
    auto& l = loop_of(node(o.loop));
    bool slices_own =
        is_slice_at(me, l.index[o.number].get()) && !graph_.changes_in(*me.in[0], l, o.number);
    if (slices_own && !o.shared_by.empty()) return o.shared_by;
  }
  return {};
}
Sharding PlanView::operand_sharding(int n, std::size_t k, const Sharding& work) const {
  auto need = rules::operand_sharding(node(n), k, work, mesh_);
  if (auto mesh_axes = local_iterations_over(n); k == 0 && !mesh_axes.empty())
    need.set(SliceAttr::of(node(n)).axis, mesh_axes);
  return need;
}
bool PlanView::sends_counted_rows(int n, const Sharding& from, const ReshardStep& step) const {
  auto& me = node(n);
  if (!prim::counts_rows(me) || step.kind != ReshardStep::Kind::exchange) return false;
  const Name rows = AlongAttr::of(me).axis;
  return from.partial.empty() && from.mesh_axes(rows).empty() && step.to.mesh_axes(rows).empty();
}
std::vector<ReshardStep> PlanView::steps_of(int n, const Sharding& from, const Sharding& to) const {
  auto steps = reshard(mesh_, node(n).axes, node(n).dtype, from, to);
  for (std::size_t k = 0; k < steps.size(); ++k)
    if (sends_counted_rows(n, k == 0 ? from : steps[k - 1].to, steps[k]))
      steps[k].bytes /= ranks(mesh_, steps[k].over);
  return steps;
}
const std::vector<int>& PlanView::users(int n) const {
  static const std::vector<int> none;
  auto& r = plan().body(body_of(n));
  auto& s = graph_.level(r.loop < 0 ? -1 : plan().loop(r.loop).node, r.number);
  auto found = s.users.find(n);
  return found == s.users.end() ? none : found->second;
}
const Sharding& PlanView::sharding_of(int n) const {
  static const Sharding replicated;
  if (replacement(n) >= 0) return sharding_of(replacement(n));
  if (node(n).op == &prim::kShardingConstraint && is_planned(n)) return state_.constraints.at(n);
  if (fits_any_sharding(n) || versions(n).empty()) return replicated;
  return version(versions(n)[0]).sharding;
}
bool PlanView::is_chosen(int n, OpChoice choice) const {
  auto found = state_.choices->ops.find(n);
  return found != state_.choices->ops.end() && found->second == choice;
}
OpChoice PlanView::choice_of(int n) const {
  if (auto found = state_.choices->ops.find(n); found != state_.choices->ops.end())
    return found->second;
  int of = graph_.at(n).expansion_of;
  return of >= 0 && node(of).op == node(n).op && is_chosen(of, Choice::move_axes)
             ? Choice::move_axes
             : Choice::usual;
}

}  // namespace haliax::partitioning
