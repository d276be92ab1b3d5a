// Ring contractions. If one contraction alone reads a gather, the gathered array is never
// materialized: its blocks rotate around the ring, and each block is contracted when it arrives.
// Afterwards `Version::ring` of the gather is the contraction, and `emit` emits both as one node.
#include <algorithm>

#include "ops/prim.h"
#include "compile/sharding/passes.h"

namespace haliax::partitioning {
namespace {

constexpr int kMostRanks = 32;  // limit, since the Program has one contraction per rank

struct Ringing {
  Plan& plan;
  const GlobalGraph& graph;
  std::vector<std::vector<int>> readers;

  const Node& node(const Version& s) const { return graph.node(s.node); }
  double bytes(const Version& s) const { return graph.bytes(s.node, s.at); }

  int reader(int k) const {  // the only version that reads it, once; -1: none, or several
    auto& by = readers[std::size_t(k)];
    return by.size() == 1 ? by[0] : -1;
  }
  bool is_rotated(int k) {
    auto& s = plan.version(k);
    if (!s.gathers() || reader(k) < 0) return false;
    auto& to = plan.version(reader(k));
    auto& contraction = node(to);
    if (!to.is<Compute>() || contraction.op->kind != Kind::contract || to.body != s.body)
      return false;
    if (std::any_of(to.in.begin(), to.in.end(), [&](int x) { return plan.version(x).ring() >= 0; }))
      return false;
    // Requires one mesh axis, blocks of equal size, and the full axis as the result of the gather.
    // Small gathers share one collective instead.
    int n = ranks(graph.mesh, s.step().over);
    auto size = find(node(s), s.step().axis)->size;
    bool all = plan.version(s.in[0]).at.mesh_axes(s.step().axis) == s.step().over &&
               s.at.mesh_axes(s.step().axis).empty();
    if (!all || s.step().over.size() != 1 || n > kMostRanks || size == 0 || size % n != 0 ||
        bytes(s) <= kNegligibleBytes)
      return false;
    auto dtype = contraction.dtype;
    if ((dtype != DType::f32 && dtype != DType::bf16) || contraction.in[0]->dtype != dtype ||
        contraction.in[1]->dtype != dtype)
      return false;
    // Each device adds the blocks in its own order, so the results would differ in rounding. A
    // result that is equal on all devices must not differ.
    bool sums = !find(contraction, s.step().axis),
         differs = to.at.uses(s.step().over[0]) || to.at.is_partial(s.step().over[0]);
    if (sums && !differs) return false;
    // Sums of 16-bit floats over the gathered axis accumulate in f32. The f32 copy must not need
    // more memory than the ring saves.
    return dtype == DType::f32 || !sums || bytes(to) < bytes(s) * (n - 2) / n;
  }
};

}  // namespace

std::vector<std::vector<int>> readers_of(const Plan& plan) {
  std::vector<std::vector<int>> out(plan.versions.size());
  auto read = [&](int x, int by) {
    if (x >= 0) out[std::size_t(x)].push_back(by);
  };
  for (int r : plan.roots) read(r, -1);
  for (int k = 0; k < int(plan.versions.size()); ++k) {
    auto& s = plan.version(k);
    if (!s.live) continue;
    for (int x : s.in) read(x, k);
    if (!s.is<RunLoop>()) continue;
    for (auto& v : plan.loop(s.loop()).value)
      for (int x : v) read(x, -1);
  }
  return out;
}

void ring(Plan& plan, const GlobalGraph& graph) {
  Ringing r{plan, graph, readers_of(plan)};
  for (int k = 0; k < int(plan.versions.size()); ++k)
    if (r.is_rotated(k)) plan.version(k).as<Reshard>().ring = r.reader(k);
}

}  // namespace haliax::partitioning
