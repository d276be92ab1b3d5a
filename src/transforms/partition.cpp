// The partition pass: plan, compare, join, emit.
#include "transforms/partition.h"

#include <algorithm>
#include <set>

#include "base/where.h"
#include "ops/prim.h"
#include "transforms/partition_plan.h"

namespace haliax {
namespace partitioning {

namespace {
std::string looks(const Node& n) {
  auto text = std::string(n.op->name) + to_string(n.axes);
  for (auto& x : n.in) text += x ? to_string(x->axes) : "-";
  return text;
}
}  // namespace

// Gather the weight, or move the activation? The bytes of the whole program are compared: a gather that another op needs anyway
// is free here, a reduction that will be merged with another costs once. Only what pays is tried.
Plan best(Whole& whole, Planner& planner) {
  Choices choices;
  Plan b = planner.run(choices);
  auto most = b.points * 1.01;
  auto take = [&](const Choices& c) {
    Plan p = planner.run(c);
    if (p.bytes >= b.bytes - 1 || p.points > most) return false;
    b = std::move(p), choices = c;
    return true;
  };
  auto asked = planner.asked;
  for (auto& [stack, at] : asked) {
    auto c = choices;
    c.stack[stack] = at;
    take(c);
  }
  // Ops that look the same, layer after layer, are decided together.
  std::map<std::pair<std::string, int>, std::set<int>> alike;
  for (auto& [n, k] : planner.contested) alike[{looks(*whole.nodes[std::size_t(n)]), k}].insert(n);
  for (auto& [decision, nodes] : alike) {
    auto c = choices;
    for (int n : nodes) c.follow[n] = decision.second;
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
    m.plan = best(*m.whole, planner);
    auto more = with_saved(out, m.plan, *m.whole, !options.regather);
    if (more == out) break;
    out = std::move(more);
  }
  join(m.plan, *m.whole);
  context().origin = outer;
}
Partition::~Partition() = default;

Partition::Device Partition::on(int device) const {
  Device d;
  d.roots = emit(impl_->plan, *impl_->whole, impl_->inputs, impl_->mesh, device, d.inputs);
  return d;
}

std::vector<Move> Partition::moves() const {
  auto& p = impl_->plan;
  std::vector<Move> out;
  std::map<int, std::size_t> of_bucket;
  for (std::size_t k = 0; k < p.steps.size(); ++k) {
    auto& s = p.steps[k];
    if (!s.live || !s.talks()) continue;
    auto& n = *impl_->whole->nodes[std::size_t(s.node)];
    if (s.bucket > 0 && of_bucket.count(s.bucket)) {
      auto& m = out[of_bucket[s.bucket]];
      m.axes += ", " + to_string(n.axes), m.bytes += s.hop.bytes, ++m.arrays;
      continue;
    }
    const char* const kinds[] = {"", "", "reduce-scatter", "all-to-all", "all-reduce", "all-gather"};
    Move m{kinds[int(s.hop.kind)],
           to_string(impl_->mesh, s.hop.over),
           to_string(n.axes),
           to_string(n.origin.at),
           "",
           1,
           s.hop.bytes,
           1};
    if (s.kind == Step::Kind::shift) m.kind = "permute";
    if (n.origin.module) m.where += ", in " + std::string(n.origin.module.text());
    for (int r = s.region; r > 0; r = p.regions[std::size_t(r)].parent) {
      auto name =
          loop_of(*impl_->whole->nodes[std::size_t(p.loops[std::size_t(p.regions[std::size_t(r)].loop)].node)]).axis.name.text();
      m.loop = std::string(name) + (m.loop.empty() ? "" : ", ") + m.loop;
    }
    m.turns = p.regions[std::size_t(s.region)].turns;
    if (s.bucket > 0) of_bucket[s.bucket] = out.size();
    out.push_back(std::move(m));
  }
  return out;
}
double Partition::sent_bytes() const { return impl_->plan.bytes; }
double Partition::calls() const {
  double n = 0;
  for (auto& m : moves()) n += m.turns;
  return n;
}

}  // namespace haliax
