// The cost of a version that the plan lacks.
#include "compile/sharding/cost.h"

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::partitioning {
namespace {

constexpr int kMaxDepth = 8;       // ops that are recomputed in a chain
constexpr double kRounding = 0.5;  // bytes

}  // namespace

// n is the slice of an array that an iteration reads. Returns true if the array is a weight that is
// gathered in full before the loop.
bool Cost::is_gathered_before_loop(int n) const {
  return graph_.at(operand(n, 0)).of_inputs && !options_.regather;
}
// Returns the cheapest source of n in the sharding `need`. For example, given the versions [a: x]
// and [a, b] of a weight, the source of [b: x] is [a, b], because a slice communicates nothing. If
// y has a version [a, b] and cast(y) has only [a: x], cast(y) is computed again from y for [a, b].
Cost::Candidate Cost::cheapest_source(int n, const Sharding& need, int depth) const {
  if (replacement(n) >= 0) return cheapest_source(replacement(n), need, depth);
  if (fits_any_sharding(n)) return {};
  Candidate best;
  const auto iterations = iterations_of(n);
  for (int v : versions(n)) {
    auto steps = steps_of(n, version(v).sharding, need);
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
  if (!view || depth > kMaxDepth || (!need.partial.empty() && best.version >= 0)) return best;
  for (auto& [name, mesh_axes] : need.dims)
    if (!rules::may_shard(me, name, mesh_axes, need, mesh_)) return best;
  double cost = 0;
  for (std::size_t k = 0; k < me.in.size(); ++k)
    if (!is_order_only(me, k))
      cost += cheapest_source(operand(n, k), operand_sharding(n, k, need), depth + 1).cost;
  bool sliced = is_dynamic_slice(me) && body_of(n) != body_of(operand(n, 0));
  bool ahead = sliced && is_gathered_before_loop(n);
  // A slice of an outside array is recomputed from it only if that costs nothing, or if the array
  // is gathered before the loop.
  const bool may_recompute = !sliced || ahead || cost == 0;
  const bool is_cheaper = cost < best.cost - kRounding || (ahead && cost <= best.cost + kRounding);
  const bool recomputes = best.version < 0 || (may_recompute && is_cheaper);
  return recomputes ? Candidate{cost, -1, true, 0} : best;
}

}  // namespace haliax::partitioning
