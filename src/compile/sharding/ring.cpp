// Ring contractions (ring loops: ring_loops.cpp). If one contraction alone reads a gather, the
// gathered array is never materialized: its blocks rotate around the ring, and each block is
// contracted when it arrives. Afterwards `Version::ring` of the gather is the contraction, and
// `emit` emits both as one node.
#include <algorithm>

#include "ops/prim.h"
#include "compile/sharding/passes.h"

namespace haliax::partitioning {
namespace {

struct RingPass {
  Plan& plan;
  const GlobalGraph& graph;
  std::vector<std::vector<int>> readers;

  const Node& node(const Version& v) const { return graph.node(v.node); }
  double bytes(const Version& v) const { return graph.bytes(v.node, v.sharding); }

  int reader(int k) const {  // the only version that reads it, once; -1: none, or several
    auto& by = readers[std::size_t(k)];
    return by.size() == 1 ? by[0] : -1;
  }
  bool may_rotate(int k) {
    auto& v = plan.version(k);
    if (!v.gathers() || reader(k) < 0) return false;
    auto& to = plan.version(reader(k));
    auto& contraction = node(to);
    if (!to.is<Compute>() || contraction.op->kind != Kind::contract || to.body != v.body)
      return false;
    if (std::any_of(to.in.begin(), to.in.end(), [&](int x) { return plan.version(x).ring() >= 0; }))
      return false;
    // Requires one mesh axis, blocks of equal size, and the full axis as the result of the gather.
    // Small gathers share one collective instead.
    int n = ranks(graph.mesh, v.step().over);
    auto size = find(node(v), v.step().axis)->size;
    bool all = plan.version(v.in[0]).sharding.mesh_axes(v.step().axis) == v.step().over &&
               v.sharding.mesh_axes(v.step().axis).empty();
    if (!all || v.step().over.size() != 1 || n > kMaxRingSteps || size == 0 || size % n != 0 ||
        bytes(v) <= kNegligibleBytes)
      return false;
    auto dtype = contraction.dtype;
    if ((dtype != DType::f32 && dtype != DType::bf16) || contraction.in[0]->dtype != dtype ||
        contraction.in[1]->dtype != dtype)
      return false;
    // Each device adds the blocks in its own order, so the results would differ in rounding. A
    // result that is equal on all devices must not differ.
    bool sums = !find(contraction, v.step().axis),
         differs = to.sharding.uses(v.step().over[0]) || to.sharding.is_partial(v.step().over[0]);
    if (sums && !differs) return false;
    // Sums of 16-bit floats over the gathered axis accumulate in f32. The f32 copy must not need
    // more memory than the ring saves.
    return dtype == DType::f32 || !sums || bytes(to) < bytes(v) * (n - 2) / n;
  }
};

}  // namespace

void ring(Plan& plan, const GlobalGraph& graph) {
  RingPass r{plan, graph, readers_of(plan)};
  for (int k = 0; k < int(plan.versions.size()); ++k)
    if (r.may_rotate(k)) plan.version(k).as<Reshard>().ring = r.reader(k);
}

}  // namespace haliax::partitioning
