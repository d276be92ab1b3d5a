// Plans the unsharded graph.
#include "compile/sharding/planner.h"

namespace haliax::partitioning {

Planner::Planner(GlobalGraph& graph, const PartitionOptions& options,
                 const std::vector<PartitionInput>& inputs, const std::vector<Sharding>& requested)
    : inputs_(inputs), requested_(requested), state_{graph, options} {
  if (auto d = options.reduce_dtype; d && (!is_float(*d) || bytes_of(*d) > 4))
    fail("named_jit", "reduce_dtype: expected a float dtype of at most 32 bits, got " +
                          std::string(name_of(*d)));
}
PlannerResult Planner::run(const Choices& choices, bool find_alternatives) {
  auto& graph = state_.graph;
  state_.choices = &choices;
  state_.finds_alternatives = find_alternatives;
  state_.draft = {};
  state_.open_bodies.clear();
  state_.constraints.clear();
  state_.stack_alternatives.clear();
  auto& plan = state_.draft.plan;
  plan.bodies.emplace_back();
  PlanBuilder builder(state_);
  builder.track_new_nodes();
  for (auto& i : inputs_)
    if (int n = graph.find(i.global.get()); n >= 0)
      builder.add_computed({.kind = Given{}, .node = n, .sharding = i.sharding});
  for (int n : graph.level(-1, 0).order) ops_.compute(n);
  for (std::size_t k = 0; k < requested_.size(); ++k) {
    int n = graph.roots[k];
    plan.roots.push_back(versions_.obtain(n, requested_[k].on(graph.node(n).axes)));
  }
  drop_dead_versions(plan);
  return {std::move(plan), std::move(state_.draft.op_alternatives),
          std::move(state_.stack_alternatives)};
}

}  // namespace haliax::partitioning
