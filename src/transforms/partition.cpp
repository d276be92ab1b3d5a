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
auto unasked(const Plan& plan, const Whole& whole) {  // gathers
  auto moves = moves_of(plan, whole);
  return std::count_if(moves.begin(), moves.end(), [](auto& m) { return gathers(m.kind) && m.asked.empty(); });
}
}  // namespace

// Gather the weight, or move the activation? The bytes of the whole program are compared: a gather that another op needs anyway
// is free here, a reduction that will be merged with another costs once. Only what pays is tried.
Plan best(Whole& whole, Planner& planner, bool strict) {
  Choices choices;
  const int given = int(whole.nodes.size());
  Plan b = planner.run(choices);
  auto most = b.points * 1.01;
  auto take = [&](const Choices& c) {
    Plan p = planner.run(c);
    if (p.bytes >= b.bytes - 1 || p.points > most || (strict && unasked(p, whole) > unasked(b, whole))) return false;
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
  struct Declined {
    const std::set<int>& nodes;
    int way;
    std::set<int> read = {};  // but weights, which move for many
  };
  std::vector<Declined> declined;
  auto decide = [](Choices& c, const Declined& d) {
    for (int n : d.nodes) c.follow[n] = d.way;
  };
  for (auto& [decision, nodes] : alike) {
    auto c = choices;
    Declined d{nodes, std::get<int>(decision)};
    decide(c, d);
    if (take(c)) continue;
    for (int n : nodes)
      for (int x : whole.in[std::size_t(n)])
        if (x >= 0 && !whole.free[std::size_t(x)] && !whole.weight(x)) d.read.insert(x);
    declined.push_back(std::move(d));
  }
  // What two ops read may move for both, or for neither.
  auto meet = [](const std::set<int>& a, const std::set<int>& b) {
    return std::any_of(a.begin(), a.end(), [&](int x) { return b.count(x) > 0; });
  };
  for (auto d = declined.begin(); d != declined.end(); ++d)
    for (auto e = declined.begin(); e != d; ++e) {
      if (!meet(d->read, e->read) || meet(d->nodes, e->nodes)) continue;
      auto c = choices;
      decide(c, *d), decide(c, *e);
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
  std::shared_ptr<const Gradients> gradients = {};

  void make(Nodes roots, const std::vector<Sharding>& wanted, const PartitionOptions& options) {
    for (;;) {
      whole = std::make_unique<Whole>(roots, wanted, mesh);
      Planner planner(*whole, options, inputs, wanted);
      plan = best(*whole, planner, options.strict);
      auto more = with_saved(roots, plan, *whole, !options.regather);
      if (more == roots) break;
      roots = std::move(more);
    }
  }
};

Partition::Partition(const Nodes& roots, const std::vector<Sharding>& wanted, std::vector<PartitionInput> inputs,
                     const Mesh& mesh, PartitionOptions options)
    : impl_(std::make_unique<Impl>()) {
  auto& m = *impl_;
  m.mesh = mesh, m.inputs = std::move(inputs), m.gradients = options.gradients;
  auto outer = context().origin;
  m.make(roots, wanted, options);
  if (!options.regather) {  // what is kept is to save traffic: where it does not, it is not kept
    Impl other{m.mesh, m.inputs, {}, {}};
    auto again = options;
    again.regather = true;
    other.make(roots, wanted, again);
    bool refused = options.strict && unasked(other.plan, *other.whole) > unasked(m.plan, *m.whole);
    if (other.plan.bytes < m.plan.bytes - 1 && !refused) m.make(roots, wanted, again);
  }
  if (options.regather) gather_again(m.plan, *m.whole);
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

std::vector<Move> Partition::moves() const { return moves_of(impl_->plan, *impl_->whole, impl_->gradients.get()); }
double Partition::sent_bytes() const { return impl_->plan.bytes; }

}  // namespace haliax
