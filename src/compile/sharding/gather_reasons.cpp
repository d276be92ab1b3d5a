// Reasons for all-gathers: matches each gather with a request of the user or a rule of an op.
#include "compile/sharding/gather_reasons.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/sharding/rules.h"
#include "transforms/gradient_names.h"
#include "transforms/rewrite.h"

namespace haliax::partitioning {
namespace {

analysis::Purposes purposes_of(const GlobalGraph& graph) {
  Nodes roots, inputs;
  for (int r : graph.roots) roots.push_back(graph.ptr(r));
  for (auto& n : graph.values)
    if (n.node->op == &prim::kInput) inputs.push_back(n.node);
  return analysis::Purposes(roots, inputs);
}
// Returns the source of x: looks through views, casts and loop results.
const Node* source_of(const Node* x) {
  for (;;) {
    if (is_loop_result(*x))
      x = result_of(*x).value[0].get();
    else if (x->op->kind == Kind::view || rules::is_free_to_recompute(*x))
      x = x->in[0].get();
    else
      return x;
  }
}
// Returns true if `back` computes the cotangent of an operand of the contraction `product` from the
// cotangent `g` of its result. `back` multiplies g by the other operand, and it has an axis that
// `product` contracts. This relation also holds with the roles of the two contractions swapped.
// Callers exclude this case: the forward contraction does not depend on the operands of the
// backward one.
bool is_cotangent_of(const Node& back, const Node& product, const Node& g) {
  auto folded = [&](const Axis& a) { return !find(product, a.name) && find(back, a.name); };
  for (auto& x : product.in)
    for (auto& y : back.in)
      if (x && y && source_of(x.get()) == source_of(y.get()) && source_of(x.get()) != source_of(&g))
        for (auto& z : product.in)
          if (z && std::any_of(z->axes.begin(), z->axes.end(), folded)) return true;
  return false;
}

bool is_computed_from(const NodePtr& n, const Node& x) {
  auto below = all_nodes({n});
  return std::any_of(below.begin(), below.end(), [&](auto& b) { return b.get() == &x; });
}

}  // namespace

GatherReasons::GatherReasons(const Plan& plan, const GlobalGraph& graph)
    : purposes(purposes_of(graph)), plan_(plan), graph_(graph) {
  find_parameters();
}
void GatherReasons::find_parameters() {  // operands precede their readers
  for (std::size_t n = 0; n < graph_.values.size(); ++n) {
    auto& me = node(int(n));
    bool all = !graph_.values[n].in.empty() && me.op->kind != Kind::loop && me.op != &kResult,
         some = false;
    for (std::size_t k = 0; k < graph_.values[n].in.size(); ++k) {
      int x = graph_.values[n].in[k];
      if (x < 0 || is_order_only(me, k)) continue;
      all &= of_parameters_[std::size_t(x)] || graph_.at(x).generated;
      some |= bool(of_parameters_[std::size_t(x)]);
    }
    // The argument is a parameter even if no gradient reaches it, as that of a frozen leaf.
    bool named = graph_.gradients && graph_.gradients->is_parameter(me.origin.module);
    bool argument = named || purposes.is_parameter(me);
    of_parameters_.push_back(me.op == &prim::kInput ? argument : all && some);
  }
}
// Returns true if the gathered array is an intermediate of a blockwise op that the op itself reads,
// such as the sums of its blocks.
bool GatherReasons::is_blockwise_intermediate(const Version& v) const {
  auto& op = graph_.user_op(v.cause);
  bool written = &op != &node(v.cause) && &op != &node(v.node) && &op == &graph_.user_op(v.node);
  return written && node(v.node).bytes() < op.in[0]->bytes();
}
// Returns true for ids that select from a sharded table, or rows that are written into one. Each
// device reads all of them and handles the positions in its own shard. The ids or rows are smaller
// than the table.
bool GatherReasons::is_read_by_every_shard(const Version& v) const {
  auto& cause = node(v.cause);
  if (!rules::picks(cause) || node(v.node).bytes() >= cause.in[0]->bytes()) return false;
  auto stays_sharded = [&](const Version& pick) {
    if (!pick.live || pick.node != v.cause || !pick.is<Compute>()) return false;
    auto& table = plan_.version(pick.in[0]).sharding;
    return std::all_of(v.step().over.begin(), v.step().over.end(),
                       [&](int x) { return table.uses(x); });
  };
  return std::any_of(plan_.versions.begin(), plan_.versions.end(), stays_sharded) &&
         !is_computed_from(cause.in[0], node(v.node));
}
bool GatherReasons::is_of_parameter(const Version& v, const Node& cause) const {
  if (!of_parameters_[std::size_t(v.node)] || !cause.origin.mapping) return false;
  auto* shared = cause.origin.mapping->find(v.step().axis);
  return !shared || std::none_of(v.step().over.begin(), v.step().over.end(), [&](int x) {
    return std::find(shared->begin(), shared->end(), graph_.mesh.axes()[std::size_t(x)].first) !=
           shared->end();
  });
}
// Returns true if the reader is a result of the function that is free to recompute or regroups
// axes, and whose preferred sharding uses none of the gathered mesh axes. The sharding of the
// result then causes the gather.
bool GatherReasons::is_returned_view(const Version& v) const {
  auto& op = graph_.user_op(v.cause);
  int n = graph_.find(&op);
  return (rules::is_free_to_recompute(op) || rules::regroups(op)) &&
         std::count(graph_.roots.begin(), graph_.roots.end(), n) > 0 &&
         std::none_of(v.step().over.begin(), v.step().over.end(),
                      [&](int x) { return graph_.at(n).preferred.uses(x); });
}
// A gather has one of these reasons:
// - result: the sharding of a result requires it.
// - constraint: a sharding constraint requires it.
// - unmapped: an op such as dot constrains its result to the mapping in scope, which lacks the
//   gathered axis. The axis is often a new name, such as that of flattened axes.
// - parameter: the mapping of the computation that reads a parameter does not shard this axis along
//   these mesh axes.
// - gradient: the gathered array is the cotangent of a value that was reduce-scattered.
// - blocks: a blockwise op, or an op that selects from a shard of a table, requires it.
// - unrequested: all other gathers.
GatherReason GatherReasons::reason(const Version& v) const {
  if (v.cause < 0 || is_returned_view(v)) return GatherReason::result;
  auto& cause = graph_.user_op(v.cause);
  if (cause.op == &prim::kShardingConstraint) {
    auto& constraint = prim::sharding_constraint_of(cause);
    const bool by_user = constraint.by == std::string_view("shard");
    return by_user || constraint.mapping->find(v.step().axis) ? GatherReason::constraint
                                                              : GatherReason::unmapped;
  }
  auto is_reduced_forward = [&](const Version& other) {
    return other.live && other.step().kind == ReshardStep::Kind::reduce_scatter &&
           other.step().over == v.step().over &&
           is_cotangent_of(cause, graph_.user_op(other.node), node(v.node)) &&
           !is_computed_from(graph_.ptr(other.node), node(v.node));
  };
  if (is_of_parameter(v, cause)) return GatherReason::parameter;
  if (std::any_of(plan_.versions.begin(), plan_.versions.end(), is_reduced_forward))
    return GatherReason::gradient;
  return is_blockwise_intermediate(v) || is_read_by_every_shard(v) ? GatherReason::blocks
                                                                   : GatherReason::unrequested;
}

std::ptrdiff_t unrequested_gathers(const Plan& plan, const GlobalGraph& graph) {
  GatherReasons gather_reasons(plan, graph);
  return std::count_if(plan.versions.begin(), plan.versions.end(), [&](auto& v) {
    return v.gathers() && !is_requested(gather_reasons.reason(v));
  });
}

}  // namespace haliax::partitioning
