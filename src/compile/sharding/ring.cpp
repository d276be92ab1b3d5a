// A gather that one contraction alone reads is never made whole: its blocks go round, and each is
// contracted as it comes. Afterwards a version with ring >= 0 is never made: emit makes it and the
// contraction it names one node.
#include <algorithm>

#include "ops/prim.h"
#include "compile/sharding/planner.h"

namespace haliax::partitioning {
namespace {

constexpr int kMostRanks = 32;  // as many versions are in the program

struct Ringing {
  Plan& plan;
  const GlobalGraph& whole;
  std::vector<std::vector<int>> readers;

  const Node& node(const Version& s) const { return whole.node(s.node); }
  double bytes(const Version& s) const { return whole.bytes(s.node, s.at); }

  int reader(int k) const {  // the one version that reads it, once; -1: none, or more
    auto& by = readers[std::size_t(k)];
    return by.size() == 1 ? by[0] : -1;
  }
  bool goes_round(int k) {
    auto& s = plan.version(k);
    if (!s.gathers() || reader(k) < 0) return false;
    auto& to = plan.version(reader(k));
    auto& contraction = node(to);
    if (to.kind != Version::Kind::compute || contraction.op->kind != Kind::contract ||
        to.body != s.body)
      return false;
    if (std::any_of(to.in.begin(), to.in.end(), [&](int x) { return plan.version(x).ring >= 0; }))
      return false;
    // One mesh axis, even blocks, all of the axis; what is small goes with other small gathers in
    // one call.
    int n = ranks(whole.mesh, s.reshard_step.over);
    auto size = find(node(s), s.reshard_step.axis)->size;
    bool all = plan.version(s.in[0]).at.mesh_axes(s.reshard_step.axis) == s.reshard_step.over &&
               s.at.mesh_axes(s.reshard_step.axis).empty();
    if (!all || s.reshard_step.over.size() != 1 || n > kMostRanks || size == 0 || size % n != 0 ||
        bytes(s) <= kNegligibleBytes)
      return false;
    auto dtype = contraction.dtype;
    if ((dtype != DType::f32 && dtype != DType::bf16) || contraction.in[0]->dtype != dtype ||
        contraction.in[1]->dtype != dtype)
      return false;
    // Each device adds up in an order of its own: what must be the same on all of them would not
    // be.
    bool sums = !find(contraction, s.reshard_step.axis),
         differs = to.at.uses(s.reshard_step.over[0]) || to.at.is_partial(s.reshard_step.over[0]);
    if (sums && !differs) return false;
    // Sums of half floats over the gathered axis are kept in f32: not at the price of more memory
    // than is saved.
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
    if (s.kind != Version::Kind::loop) continue;
    for (auto& v : plan.loop(s.loop).value)
      for (int x : v) read(x, -1);
  }
  return out;
}

void ring(Plan& plan, const GlobalGraph& whole) {
  Ringing r{plan, whole, readers_of(plan)};
  for (int k = 0; k < int(plan.versions.size()); ++k)
    if (r.goes_round(k)) plan.version(k).ring = r.reader(k);
}

}  // namespace haliax::partitioning
