// Partitions a graph: plans the sharding of all values, and emits the graph of each device.
#include "compile/sharding/partition.h"

#include "base/where.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/planner.h"
#include "compile/sharding/gather_reasons.h"

namespace haliax {

using namespace partitioning;

struct Partition::Impl {
  Mesh mesh;
  std::vector<Sharding> requested;
  std::vector<PartitionInput> inputs;
  PartitionOptions options;
  Planned current;

  Planned planned(const Nodes& roots, bool regather) const {
    OriginScope outer;  // restores the origin, which planning changes
    auto with = options;
    with.regather = regather;
    auto graph = std::make_unique<GlobalGraph>(roots, requested, mesh);
    graph->gradients = options.gradients;
    Planner planner(*graph, with, inputs, requested);
    auto plan = best_plan(*graph, planner, options.strict);
    return {roots, std::move(graph), std::move(plan)};
  }
};

Partition::Partition(const Nodes& roots, const std::vector<Sharding>& requested,
                     std::vector<PartitionInput> inputs, const Mesh& mesh, PartitionOptions options)
    : impl_(new Impl{mesh, requested, std::move(inputs), std::move(options), {roots}}) {}
Partition::~Partition() = default;

void Partition::plan() {
  impl_->current = impl_->planned(impl_->current.roots, impl_->options.regather);
}
void Partition::rematerialize() {
  auto& m = *impl_;
  m.current = partitioning::rematerialize(
      std::move(m.current), m.options,
      [&](const Nodes& roots, bool regather) { return m.planned(roots, regather); });
}
void Partition::ring() {
  if (impl_->options.ring) partitioning::ring(impl_->current.plan, *impl_->current.graph);
}
void Partition::bucket() {
  partitioning::bucket(impl_->current.plan, *impl_->current.graph, impl_->options.overlap);
}

Partition::DeviceGraph Partition::device_graph(int device) const {
  DeviceGraph d;
  d.roots = emit(impl_->current.plan, *impl_->current.graph, impl_->inputs, impl_->mesh, device,
                 d.inputs, impl_->options.verify);
  return d;
}

std::vector<PlannedCollective> Partition::collectives() const {
  return planned_collectives(impl_->current.plan, *impl_->current.graph);
}
double Partition::sent_bytes() const { return impl_->current.plan.bytes; }
bool Partition::is_better_than(const Partition& other) const {
  auto price = [](const Partition& p) {
    return std::pair(p.impl_->options.strict ? p.unrequested_gathers() : 0,
                     p.impl_->current.plan.bytes);
  };
  return price(*this) < price(other);
}
std::int64_t Partition::unrequested_gathers() const {
  return partitioning::unrequested_gathers(impl_->current.plan, *impl_->current.graph);
}
bool Partition::has_even_blocks() const {
  auto& m = *impl_;
  auto divides = [&](const Axis& a, const MeshAxes& by) { return a.size % ranks(m.mesh, by) == 0; };
  auto is_even = [&](const Version& v) {
    auto& n = m.current.graph->node(v.node);
    bool is_even_loop =
        !v.is<RunLoop>() || divides(loop_of(n).axis, m.current.plan.loop(v.loop()).shared_by);
    return is_even_loop && std::all_of(n.axes.begin(), n.axes.end(), [&](auto& a) {
             return divides(a, v.sharding.mesh_axes(a.name));
           });
  };
  return std::all_of(m.current.plan.versions.begin(), m.current.plan.versions.end(),
                     [&](auto& v) { return !v.live || is_even(v); });
}
std::string Partition::text() const {
  return to_string(impl_->current.plan, *impl_->current.graph);
}
std::int64_t Partition::size() const {
  return std::count_if(impl_->current.plan.versions.begin(), impl_->current.plan.versions.end(),
                       [](auto& v) { return v.live; });
}
void Partition::verify(const char* after) const {
  partitioning::verify(impl_->current.plan, *impl_->current.graph, after, &impl_->requested);
}

}  // namespace haliax
