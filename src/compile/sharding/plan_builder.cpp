// Adds versions and bodies to a plan.
#include "compile/sharding/plan_builder.h"

namespace haliax::partitioning {

int PlanBuilder::add(Version v) {
  const int k = int(plan().versions.size());
  v.body = body_of(v.node);
  v.cause = state_.cause;
  auto& body = draft_.plan.body(v.body);
  draft_.plan.bytes += v.step().bytes * body.iterations;
  body.versions.push_back(k);
  draft_.plan.versions.push_back(std::move(v));
  return k;
}
int PlanBuilder::add_version(Version v) {
  auto& versions = draft_.at(v.node).versions;
  versions.push_back(add(std::move(v)));
  return versions.back();
}
int PlanBuilder::add_computed(Version v, double points) {
  auto& planning = draft_.at(v.node);
  planning.planned = true;
  add_points(v.node, points);
  const int k = add(std::move(v));
  planning.versions.insert(planning.versions.begin(), k);
  return k;
}
void PlanBuilder::add_alternative(int n, OpChoice choice) {
  if (state_.finds_alternatives) draft_.op_alternatives.push_back({n, choice});
}
void PlanBuilder::add_stack_alternative(int loop, std::size_t result, const Sharding& sharding) {
  mutable_state_.stack_alternatives[{loop, result}] = sharding;
}
void PlanBuilder::add_constraint(int n, Sharding sharding) {
  mutable_state_.constraints.try_emplace(n, std::move(sharding));
}

int PlanBuilder::add_loop(int n) {
  draft_.plan.loops.push_back({.node = n});
  return int(plan().loops.size()) - 1;
}
int PlanBuilder::open_body(int loop, const OpenBody& open, double iterations) {
  const int parent = body_of(open.loop), body = int(plan().bodies.size());
  draft_.plan.bodies.push_back(
      {parent, loop, open.number, plan().body(parent).iterations * iterations, {}});
  mutable_state_.open_bodies.push_back(open);
  mutable_state_.open_bodies.back().body = body;
  return body;
}
void PlanBuilder::close_body() {
  auto& open = state_.open_bodies.back();
  for (std::size_t x = 0; x < draft_.nodes.size(); ++x) {
    auto& planning = draft_.nodes[x];
    if ((planning.planned || !planning.versions.empty()) &&
        varies_in(node(int(x)), loop_of(node(open.loop)), open.number))
      planning = {};
  }
  mutable_state_.open_bodies.pop_back();
}
void PlanBuilder::restore(Draft before) {
  draft_ = std::move(before);
  track_new_nodes();
}

}  // namespace haliax::partitioning
