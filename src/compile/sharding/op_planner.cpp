// Plans one op after the other, operands first.
#include "compile/sharding/op_planner.h"

#include <algorithm>

#include "compile/sharding/loop_planner.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax::partitioning {
namespace {

// length of the longest chain of ops that each reader computes for itself (Planning::lazy_depth)
constexpr int kMaxLazyDepth = 64;

}  // namespace

void OpPlanner::compute(int n, bool is_requested) {
  if (is_planned(n) || generated(n)) return;
  auto& me = node(n);
  if (int x = is_requested ? -1 : shardings_.deferral_source(n); x >= 0) {
    compute(x);
    if (shardings_.is_deferred(n)) return;
  }
  CauseScope because(*this, n);
  set_planned(n);
  auto in = graph_.at(n).in;  // a copy, since the graph may grow
  for (int x : in)
    if (x >= 0) compute(x);
  if (me.op == &prim::kShardingConstraint) {
    plan_constraint(n);  // communicates nothing yet, since a reader may need another sharding
  } else if (me.op == &kLoop) {
    loops_.compute(n);
  } else if (is_loop_result(me)) {
    // Set with its loop.
  } else if (me.op->kind == Kind::leaf) {
    add_computed({.kind = Given{}, .node = n});
  } else if (loops_.plan_ring_receive(n)) {
    // The device receives its block of the ring.
  } else if (auto other = expansion(n)) {
    plan_replacement(n, other);
  } else {
    compute_op(n);
  }
}
void OpPlanner::plan_constraint(int n) {
  Sharding sharding;
  for (auto& [name, mesh_axes] : constraint(node(n), mesh_).dims)
    if (!mesh_axes.overlaps(blocked_axes(node(n)))) sharding.set(name, mesh_axes);
  add_constraint(n, std::move(sharding));
}
void OpPlanner::plan_replacement(int n, const NodePtr& other) {
  const int before = int(graph_.values.size()), k = graph_.add(other),
            end = int(graph_.values.size());
  auto& preferred_of = graph_.at(k).preferred = preferred(n);
  // Updates of an array are computed in the sharding of the array.
  if (preferred_of.dims.empty() && rules::writes_into(node(n)))
    preferred_of.dims = sharding_of(operand(n, 0)).dims;
  for (int i = end; i-- > before;) graph_.propagate_preferred(i, before);
  track_new_nodes();
  for (int i = before; i < end; ++i) graph_.at(i).expansion_of = n;
  for (int i = before; i < end; ++i) compute(i);
  compute(k);
  set_replacement(n, k);
}
// Returns a low-precision partial sum as a sum in a wider dtype, which is rounded after the
// reduction over devices. Null: the result is no such sum. For example, given a bf16 contraction
// that is partial, and reduce_dtype f32, returns cast(f32 contraction, bf16).
NodePtr OpPlanner::in_wider_sums(int n, const Sharding& result) const {
  auto& me = ptr(n);
  if (!options_.reduce_dtype || !is_float(me->dtype) ||
      bytes_of(me->dtype) >= bytes_of(*options_.reduce_dtype))
    return nullptr;
  if (std::none_of(result.partial.begin(), result.partial.end(),
                   [](auto& p) { return p.second == Monoid::sum; }))
    return nullptr;
  OriginScope due(me->origin);
  auto wide = widened(me);
  return wide->op == me->op ? prim::cast(wide, me->dtype) : nullptr;
}
// If updates are computed in another sharding than their base array has, returns the base combined
// with updates of an identity array, so that the base is not communicated. Null: not the case. For
// example, given scatter_add(base, ids, updates), returns base + scatter_add(0, ids, updates).
NodePtr OpPlanner::separate_from_base(int n, const Sharding& result) const {
  auto& me = node(n);
  auto monoid = me.op->accumulates ? me.op->accumulates(me) : std::nullopt;
  if (!monoid || generated(operand(n, 0))) return nullptr;
  bool gathered = !result.partial.empty() && !sharding_of(operand(n, 0)).dims.empty();
  if (!gathered && choice_of(n) != Choice::move_axes) return nullptr;
  OriginScope due(me.origin);
  auto in = me.in;
  in[0] = prim::fit(prim::identity(*monoid, me.dtype), me.axes);
  return prim::build(prim::pairwise(*monoid), {me.in[0], prim::rebuilt(me, in, me.axes)}, me.axes,
                     me.dtype);
}
// Returns true, and marks n as lazy, if all of its operands are replicated and each reader can
// compute it in the sharding that it needs.
bool OpPlanner::leave_to_readers(int n) {
  auto& me = node(n);
  if (!rules::computable_anywhere(me) && me.op->kind != Kind::reduce && !rules::writes_into(me))
    return false;
  int depth = 0;
  for (int x : graph_.at(n).in) {
    if (x < 0) continue;
    if (!sharding_of(x).is_replicated()) return false;
    depth = std::max(depth, state_.draft.at(x).lazy_depth);
  }
  if (depth < kMaxLazyDepth) set_lazy(n, depth + 1);
  return depth < kMaxLazyDepth;
}
// Returns the partial sums of each operand that stay partial through the op. All other partial sums
// are reduced first. A reduce-scatter may shard a further axis of the iteration space (`work`). All
// decisions depend on `work`, so they are repeated until it no longer changes. For example, given
// y + z of two sums that are partial over x, both stay partial, and the result is reduced once.
// Given exp(y) of a sum y[a, b] that is partial over x, y is reduced first: scattered along a if a
// reader shards a along x, and then `work` is [a: x].
OpPlanner::PartialOperands OpPlanner::partial_operands(int n, Sharding& work) {
  auto& me = node(n);
  PartialOperands partial_of;
  // Returns false if it changed `work`, on which earlier decisions depend.
  auto decide_all = [&] {
    partial_of.assign(me.in.size(), {});
    for (std::size_t k = 0; k < me.in.size(); ++k) {
      int operand = graph_.at(n).in[k];
      if (operand < 0 || is_order_only(me, k)) continue;
      for (auto [x, m] : sharding_of(operand).partial) {
        auto how = shardings_.partial_through(n, k, x, m, work);
        if (how == PartialThrough::larger) add_alternative(n, Choice::keep_partial);
        if (how == PartialThrough::yes ||
            (how == PartialThrough::larger && is_chosen(n, Choice::keep_partial))) {
          partial_of[k].push_back({x, m});
          continue;
        }
        if (work.uses(x)) continue;
        auto [name, mesh_axes] = shardings_.scatter_target(operand, x);
        if (!name) continue;
        Sharding scattered;
        scattered.set(name, mesh_axes);
        auto before = work;
        shardings_.shard_axes(me, work, rules::work_sharding(me, k, scattered, mesh_));
        if (!(work == before)) return false;
      }
    }
    return true;
  };
  while (!decide_all()) {}
  return partial_of;
}
void OpPlanner::compute_op(int n) {
  if (leave_to_readers(n)) return;
  auto& me = node(n);
  Sharding work, usual;
  PartialOperands partial_of;
  {
    OriginScope due(me.origin);
    work = usual = shardings_.work_of(n, Choice::usual);
    if (auto choice = choice_of(n); choice != Choice::usual)
      if (auto other = shardings_.alternative_work(n, usual, choice)) work = *other;
    partial_of = partial_operands(n, work);
  }
  if (auto axis = rules::shifted(me); axis && !work.mesh_axes(axis).empty())
    return moves_.shift(n, work);
  Sharding partial;
  for (auto& sums : partial_of)
    for (auto& [x, m] : sums) partial.add_partial(x, m);
  auto result = rules::result_sharding(me, work);
  for (auto& [x, m] : partial.partial) result.add_partial(x, m);
  if (auto wide = in_wider_sums(n, result)) return plan_replacement(n, wide);
  if (auto sum = separate_from_base(n, result)) return plan_replacement(n, sum);
  if (moves_.regroup(n, work, partial)) return;
  const double bytes_before = plan().bytes;
  compute_at(n, work, partial_of, partial, result);
  // alternatives are only worth a search if this op communicates, or its partial result will
  bool communicates = plan().bytes > bytes_before || (rules::picks(me) && !result.partial.empty());
  for (auto& [x, m] : result.partial) communicates |= preferred(n).uses(x);
  if (communicates) add_alternative_shardings(n, usual);
}
void OpPlanner::compute_at(int n, const Sharding& work, const PartialOperands& partial_of,
                           const Sharding& partial, const Sharding& result) {
  auto& me = node(n);
  const auto in = graph_.at(n).in;  // a copy, since the graph may grow
  Version v{.kind = Compute{!local_iterations_over(n).empty()}, .node = n, .sharding = result};
  for (std::size_t k = 0; k < in.size(); ++k) {
    if (in[k] < 0) {
      v.in.push_back(-1);
      continue;
    }
    if (is_order_only(me, k)) {
      v.in.push_back(versions_.obtain(in[k], sharding_of(in[k])));
      continue;
    }
    auto need = operand_sharding(n, k, work);
    for (auto& [x, m] : partial_of[k]) need.add_partial(x, m);
    if (rules::jointly_partial(me) && linear_in(me, k) != Linear::no)
      need.partial = partial.partial;
    if (rules::writes_into(me) && k == 0) need.partial = result.partial;  // adds the base once
    if (Sharding left;
        rules::work_sharding(me, k, sharding_of(in[k]), mesh_, &left), !left.dims.empty())
      versions_.reshard_base(in[k], need.without_partial());
    v.in.push_back(versions_.obtain(in[k], need));
  }
  add_computed(std::move(v),
               me.op->kind == Kind::view ? 0 : local_size(rules::iteration_axes(me), work, mesh_));
}
void OpPlanner::add_alternative_shardings(int n, const Sharding& usual) {
  if (!state_.finds_alternatives) return;
  std::vector<OpChoice> alternatives{Choice::preferred};
  if (!prim::sends_least_blockwise(node(n))) alternatives.push_back(Choice::move_axes);
  auto& in = graph_.at(n).in;
  for (int k = 0; k < std::min(2, int(in.size())); ++k)
    if (in[std::size_t(k)] >= 0) alternatives.push_back({Choice::operand, k});
  for (auto& choice : alternatives)
    if (shardings_.alternative_work(n, usual, choice)) add_alternative(n, choice);
}
// Returns the op as an expansion over blocks of a sharded axis that it requires in full. For
// example, top-k of a sharded axis is the top-k of the candidates from each block. A cumulative sum
// of [a: x] is the cumulative sum in each block, plus the totals of the blocks before it. One total
// per block is gathered. Null: the op runs on the full axis.
NodePtr OpPlanner::expansion(int n) {
  auto& me = node(n);
  if (!me.op->blockwise) return nullptr;
  // Returns the expansion of `op` along the axis, if it runs by blocks there. If gathering the
  // operand, or an all-to-all, may communicate less, both are alternatives of the search.
  // larger_than: smaller blocks gain nothing.
  auto by_blocks = [&](const Node& op, Name axis, std::int64_t larger_than) -> NodePtr {
    int blocks = shardings_.blocks_along(op, axis, larger_than);
    auto expanded = shardings_.runs_by_blocks(op, axis, larger_than)
                        ? prim::blockwise(ptr(n), axis, blocks)
                        : nullptr;
    if (expanded && !prim::sends_least_blockwise(op))
      for (auto choice : {Choice::gather, Choice::move_axes})
        add_alternative(graph_.find(&op), choice);
    return expanded;
  };
  auto& top = prim::picks_top_k(me) ? *me.in[1] : me;
  if (prim::is_top_k(top))  // a block with at most k positions has only candidates
    return by_blocks(*top.in[0], SliceAttr::of(top).axis, SliceAttr::of(top).size);
  for (auto& a : me.in[0]->axes) {
    if (along(me, 0, a.name).way != Along::Way::full) continue;
    // a sort or a cumulative sum, whose blocks of one position have as many totals as positions
    const bool keeps_axis = me.in.size() == 1 && has(me.axes, a.name);
    if (auto expanded = by_blocks(me, a.name, keeps_axis ? 1 : 0)) return expanded;
  }
  // The op requires an axis in full that its operand lacks, or whose operand is generated locally.
  for (auto& [axis, mesh_axes] : preferred(n).dims)
    if ((!has(me.in[0]->axes, axis) || generated(operand(n, 0))) &&
        along(me, kResultSide, axis).way == Along::Way::full)
      if (auto expanded = prim::blockwise(ptr(n), axis, ranks(mesh_, mesh_axes))) return expanded;
  return nullptr;
}

}  // namespace haliax::partitioning
