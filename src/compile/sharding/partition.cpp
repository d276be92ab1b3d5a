// Partitions a graph: plans the sharding of all values, and emits the graph of each device.
#include "compile/sharding/partition.h"

#include "base/where.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/planner.h"
#include "compile/sharding/report/gather_reasons.h"

namespace haliax {

using namespace partitioning;

struct Partition::Impl {
  Mesh mesh;
  Nodes roots;
  std::vector<Sharding> requested;
  std::vector<PartitionInput> inputs;
  PartitionOptions options;
  Plan plan = {};
  std::unique_ptr<GlobalGraph> graph = {};

  // Plans the current roots with the fewest bytes communicated. regather: each loop gathers weights
  // again; false: weights are gathered once and stay resident.
  void make(bool regather) {
    OriginScope outer;  // restores the origin, which planning changes
    options.regather = regather;
    graph = std::make_unique<GlobalGraph>(roots, requested, mesh);
    graph->gradients = options.gradients;
    Planner planner(*graph, options, inputs, requested);
    plan = best_plan(*graph, planner, options.strict);
  }
  // Saves residuals and plans again, until there are no more residuals to save. A saved residual
  // may allow further ones. It may also replace an earlier one, in an endless cycle: after some
  // rounds without improvement, the best round is used.
  void keep_residuals() {
    constexpr int most_idle = 4;  // rounds that save no bytes
    auto best = roots;
    auto least = plan.bytes;
    for (int idle = 0; idle < most_idle;) {
      auto more = with_residuals(roots, plan, *graph, !options.regather);
      if (more == roots) break;
      roots = std::move(more);
      make(options.regather);
      idle = plan.bytes < least ? 0 : idle + 1;
      if (idle == 0) {
        best = roots;
        least = plan.bytes;
      }
    }
    if (plan.bytes <= least) return;
    roots = std::move(best);
    make(options.regather);
  }
};

Partition::Partition(const Nodes& roots, const std::vector<Sharding>& requested,
                     std::vector<PartitionInput> inputs, const Mesh& mesh, PartitionOptions options)
    : impl_(new Impl{mesh, roots, requested, std::move(inputs), std::move(options)}) {}
Partition::~Partition() = default;

void Partition::plan() { impl_->make(impl_->options.regather); }
void Partition::rematerialize() {
  auto& m = *impl_;
  if (m.options.regather) {
    m.keep_residuals();
    return regather(m.plan, *m.graph);
  }
  auto other = std::make_unique<Impl>(Impl{m.mesh, m.roots, m.requested, m.inputs, m.options});
  m.keep_residuals();
  // Gathered weights stay resident only to reduce communication. If gathering them again in each
  // loop communicates less, that plan is used.
  other->make(true);
  other->keep_residuals();
  if (!is_cheaper(other->plan, *other->graph, m.plan, *m.graph, m.options.strict)) return;
  other->options.regather = false;
  impl_ = std::move(other);
}
void Partition::ring() {
  if (impl_->options.ring) partitioning::ring(impl_->plan, *impl_->graph);
}
void Partition::bucket() {
  partitioning::bucket(impl_->plan, *impl_->graph, impl_->options.overlap);
}

Partition::DeviceGraph Partition::device_graph(int device) const {
  DeviceGraph d;
  d.roots = emit(impl_->plan, *impl_->graph, impl_->inputs, impl_->mesh, device, d.inputs,
                 impl_->options.verify);
  return d;
}

std::vector<PlannedCollective> Partition::collectives() const {
  return planned_collectives(impl_->plan, *impl_->graph);
}
double Partition::sent_bytes() const { return impl_->plan.bytes; }
bool Partition::is_better_than(const Partition& other) const {
  auto price = [](const Partition& p) {
    return std::pair(p.impl_->options.strict ? p.unrequested_gathers() : 0, p.impl_->plan.bytes);
  };
  return price(*this) < price(other);
}
std::int64_t Partition::unrequested_gathers() const {
  return partitioning::unrequested_gathers(impl_->plan, *impl_->graph);
}
bool Partition::has_even_blocks() const {
  auto& m = *impl_;
  auto divides = [&](const Axis& a, const MeshAxes& by) { return a.size % ranks(m.mesh, by) == 0; };
  auto is_even = [&](const Version& v) {
    auto& n = m.graph->node(v.node);
    bool is_even_loop =
        !v.is<RunLoop>() || divides(loop_of(n).axis, m.plan.loop(v.loop()).shared_by);
    return is_even_loop && std::all_of(n.axes.begin(), n.axes.end(),
                                       [&](auto& a) { return divides(a, v.at.mesh_axes(a.name)); });
  };
  return std::all_of(m.plan.versions.begin(), m.plan.versions.end(),
                     [&](auto& v) { return !v.live || is_even(v); });
}
std::string Partition::text() const { return to_string(impl_->plan, *impl_->graph); }
std::int64_t Partition::size() const {
  return std::count_if(impl_->plan.versions.begin(), impl_->plan.versions.end(),
                       [](auto& s) { return s.live; });
}
void Partition::verify(const char* after) const {
  partitioning::verify(impl_->plan, *impl_->graph, after, &impl_->requested);
}

}  // namespace haliax
