// The partition pass: plan, compare, join, emit.
#include "transforms/partition.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/where.h"
#include "ops/prim.h"
#include "transforms/partition_plan.h"

namespace haliax {
namespace partitioning {

namespace {
std::string looks(const Node& n, int decision) {
  auto text = std::string(n.op->name) + to_string(n.axes);
  if (decision == kRides) return text;  // what is added up: all of it, or nothing is won
  for (auto& x : n.in) text += x ? to_string(x->axes) : "-";
  return text;
}
}  // namespace

// Gather the weight, or move the activation? The bytes of the whole program are compared: a gather that another op needs anyway
// is free here, a reduction that will be merged with another costs once. Only what pays is tried.
Plan best(Whole& whole, Planner& planner, bool strict) {
  auto unasked = [&](const Plan& p) {
    auto moves = moves_of(p, whole);
    return std::count_if(moves.begin(), moves.end(), [](auto& m) { return gathers(m.kind) && m.asked.empty(); });
  };
  Choices choices;
  const int given = int(whole.nodes.size());
  Plan b = planner.run(choices);
  auto most = b.points * 1.01;
  auto take = [&](const Choices& c) {
    Plan p = planner.run(c);
    if (p.bytes >= b.bytes - 1 || p.points > most || (strict && unasked(p) > unasked(b))) return false;
    b = std::move(p), choices = c;
    return true;
  };
  auto asked = planner.asked;
  for (auto& [stack, at] : asked) {
    auto c = choices;
    c.stack[stack] = at;
    take(c);
  }
  // Ops that look the same, layer after layer, are decided together; what an op is said in terms of before the op itself.
  std::map<std::tuple<bool, std::string, int>, std::set<int>> alike;
  for (auto& [n, k] : planner.contested) alike[{n < given, looks(*whole.nodes[std::size_t(n)], k), k}].insert(n);
  for (auto& [decision, nodes] : alike) {
    auto c = choices;
    for (int n : nodes) c.follow[n] = std::get<int>(decision);
    take(c);
  }
  return b;
}

}  // namespace partitioning

using namespace partitioning;

struct Partition::Impl {
  Mesh mesh;
  std::vector<PartitionInput> inputs;
  Plan plan;
  std::unique_ptr<Whole> whole;
};

Partition::Partition(const Nodes& roots, const std::vector<Sharding>& wanted, std::vector<PartitionInput> inputs,
                     const Mesh& mesh, PartitionOptions options)
    : impl_(std::make_unique<Impl>()) {
  auto& m = *impl_;
  m.mesh = mesh, m.inputs = std::move(inputs);
  auto outer = context().origin;
  for (Nodes out = roots;;) {
    m.whole = std::make_unique<Whole>(out, wanted, m.mesh);
    Planner planner(*m.whole, options, m.inputs, wanted);
    m.plan = best(*m.whole, planner, options.strict);
    auto more = with_saved(out, m.plan, *m.whole, !options.regather);
    if (more == out) break;
    out = std::move(more);
  }
  if (options.ring) ring(m.plan, *m.whole);
  join(m.plan, *m.whole);
  context().origin = outer;
}
Partition::~Partition() = default;

Partition::Device Partition::on(int device) const {
  Device d;
  d.roots = emit(impl_->plan, *impl_->whole, impl_->inputs, impl_->mesh, device, d.inputs);
  return d;
}

std::vector<Move> Partition::moves() const { return moves_of(impl_->plan, *impl_->whole); }
double Partition::sent_bytes() const { return impl_->plan.bytes; }
double Partition::calls() const {
  double n = 0;
  for (auto& m : moves()) n += m.turns;
  return n;
}

}  // namespace haliax
