// Plans the versions of a value. All versions are retained, and a further version is resharded from
// the cheapest one.
#include "compile/sharding/version_planner.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "compile/sharding/op_planner.h"

namespace haliax::partitioning {

int VersionPlanner::obtain(int n, Sharding need) {
  if (replacement(n) >= 0) return obtain(replacement(n), std::move(need));
  need.dims = need.on(node(n).axes).dims;
  int from = -1;
  if (generated(n)) {
    from = obtain_generated(n, need.without_partial());
  } else {
    if (!is_planned(n)) ops_.compute(n, true);
    if (replacement(n) >= 0) return obtain(replacement(n), std::move(need));
    for (int v : versions(n))
      if (version(v).sharding == need) return v;
    if (is_lazy(n)) {
      from = obtain_lazy(n, need);
    } else {
      auto o = cost_.cheapest_source(n, need);
      if (o.cost > 0 && is_dynamic_slice(node(n)) && !options_.regather)
        if (auto& of = node(operand(n, 0)); is_loop_result(of))
          add_stack_alternative(graph_.find(of.in[0].get()), result_number(of), need);
      from = o.recompute ? compute_version(n, need.without_partial()) : o.version;
    }
  }
  for (auto& step : steps_of(n, version(from).sharding, need)) {
    std::vector<int> in{from};
    if (sends_counted_rows(n, version(from).sharding, step))
      in.push_back(obtain(operand(n, 1), version(from).sharding));
    from =
        add_version({.kind = Reshard{step}, .node = n, .sharding = step.to, .in = std::move(in)});
  }
  return from;
}
int VersionPlanner::obtain_generated(int n, const Sharding& need) {
  for (int v : versions(n))
    if (version(v).sharding == need) return v;
  return add_version({.kind = Generate{}, .node = n, .sharding = need});
}
// Returns a version that is resharded to `need` without communication. n is lazy: each reader
// computes it from replicated operands, in the sharding that it needs.
int VersionPlanner::obtain_lazy(int n, const Sharding& need) {
  for (int v : versions(n)) {
    // A replicated version of a reduction or scatter is reused if slices of it suffice. Other ops
    // are computed again per sharding, so that no replicated version has to be materialized.
    bool sends_nothing = !rules::computable_anywhere(node(n));
    for (auto& step : steps_of(n, version(v).sharding, need)) sends_nothing &= step.bytes == 0;
    if (sends_nothing) return v;
  }
  Sharding can;
  for (auto& [name, mesh_axes] : need.dims) {
    auto more = can;
    more.set(name, mesh_axes);
    if (rules::may_shard(node(n), name, mesh_axes, can, mesh_) &&
        rules::result_sharding(node(n), more) == more)
      can = more;
  }
  return compute_version(n, can);
}
// Returns true if n is a sharding constraint, and `need` is sharded at least as the constraint
// requires. A reader that needs an axis less sharded is itself the cause of the communication.
bool VersionPlanner::requires_sharding(int n, const Sharding& need) const {
  if (node(n).op != &prim::kShardingConstraint) return false;
  auto found = state_.constraints.find(n);
  auto is_sharded_enough = [&](auto& a) {
    return need.mesh_axes(a.name).starts_with(found->second.mesh_axes(a.name));
  };
  return found == state_.constraints.end() ||
         std::all_of(node(n).axes.begin(), node(n).axes.end(), is_sharded_enough);
}
int VersionPlanner::compute_version(int n, const Sharding& need) {
  CauseScope because(*this, requires_sharding(n, need) ? n : state_.cause);
  Version v{.kind = Compute{!local_iterations_over(n).empty()}, .node = n, .sharding = need};
  for (std::size_t k = 0; k < node(n).in.size(); ++k) {
    int x = operand(n, k);
    v.in.push_back(
        obtain(x, is_order_only(node(n), k) ? sharding_of(x) : operand_sharding(n, k, need)));
  }
  if (is_lazy(n)) add_points(n, local_size(rules::iteration_axes(node(n)), need, mesh_));
  if (node(n).op == &prim::kShardingConstraint) {
    reuse_version(n, v.in[0]);
    return v.in[0];
  }
  return add_version(std::move(v));
}
void VersionPlanner::reshard_base(int x, const Sharding& need) {
  auto read_as_it_is = [&](const Node& n) {
    auto& u = users(graph_.find(&n));
    return std::any_of(u.begin(), u.end(),
                       [&](int k) { return k < 0 || node(k).op->kind != Kind::map; });
  };
  int base = graph_.find(prim::pointwise_source(ptr(x), read_as_it_is).get());
  if (base < 0 || base == x || replacement(base) >= 0 || body_of(base) != body_of(x)) return;
  if (!users(base).empty() && !read_as_it_is(node(base))) return;
  const auto cost = cost_.cheapest_source(x, need).cost;
  if (cost == 0 || cost_.cheapest_source(base, need).cost > cost) return;
  recompute_from(x, base, need);
}
void VersionPlanner::recompute_from(int n, int base, const Sharding& need) {
  if (n == base || generated(n)) return;
  for (int v : versions(n))
    if (version(v).sharding == need) return;
  for (int x : graph_.at(n).in) recompute_from(x, base, need);
  compute_version(n, need);
}

}  // namespace haliax::partitioning
