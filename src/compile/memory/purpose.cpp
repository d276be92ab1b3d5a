// Determines the purpose of each array from its use in the graph.
#include "compile/memory/purpose.h"

#include <algorithm>

#include "ops/collective.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

std::vector<const NameData*> names(const Axes& axes) {
  std::vector<const NameData*> out;
  for (auto& a : axes) out.push_back(a.name.data());
  std::sort(out.begin(), out.end());
  return out;
}
// Appends the nodes that the node depends on; for a loop its bodies. An accumulation depends on its
// terms rather than on its start value.
void computed_from(const Node& n, Nodes& out) {
  if (n.op != &kLoop) {
    for (auto& x : n.in)
      if (x) out.push_back(x);
    return;
  }
  for (auto& r : loop_of(n).results) {
    out.insert(out.end(), r.value.begin(), r.value.end());
    if (r.carry) out.push_back(r.start);
  }
}

}  // namespace

Purposes::Purposes(const Nodes& roots, const Nodes& inputs) {
  if (inputs.empty()) return;
  auto all = all_nodes(roots);
  Nodes first;  // gradients, and roots that no gradient reaches
  std::set<std::vector<const NameData*>> handed_on;
  std::unordered_set<const NameData*> loop_axes;
  for (auto& n : all) {  // operands and bodies first
    if (n->op == &kLoop) loop_axes.insert(loop_of(*n).axis.name.data());
    Nodes in;
    computed_from(*n, in);
    bool after = n->origin.backward || std::any_of(in.begin(), in.end(), [&](auto& x) {
                   return backward_.count(x.get()) > 0;
                 });
    if (after) backward_.insert(n.get());
    if (n->origin.backward)
      first.push_back(n);
    else
      for (auto& x : in)
        if (x->origin.backward && x->op != &prim::kBarrier) handed_on.insert(names(x->axes));
  }
  for (auto& r : roots) {
    if (!backward_.count(r.get())) first.push_back(r);
    if (r->origin.backward) handed_on.insert(names(r->axes));
  }
  std::unordered_set<const Node*> before;
  while (!first.empty()) {
    auto n = std::move(first.back());
    first.pop_back();
    if (before.insert(n.get()).second) computed_from(*n, first);
  }
  for (auto& n : inputs) {
    if (!is_float(n->dtype)) continue;
    if (!before.count(n.get()) && backward_.size() > 0)
      optimizer_.insert(n.get());
    else if (backward_.empty() ? bool(n->origin.module) : handed_on.count(names(n->axes)) > 0) {
      parameters_.insert(n.get());
      auto mine = names(n->axes);
      if (!mine.empty()) axes_.insert(mine);
      for (std::size_t k = 0; k < mine.size() && mine.size() > 1; ++k) {
        auto rest = mine;
        rest.erase(rest.begin() + std::ptrdiff_t(k));
        if (loop_axes.count(mine[k])) axes_.insert(rest);
      }
    }
  }
}
bool Purposes::gradient(const Node& n) const {
  return backward_.count(&n) > 0 && axes_.count(names(n.axes)) > 0;
}
bool Purposes::gathered(const Node& n) {
  return n.op == &kResult && n.in[0]->op == &kCollective &&
         collective_spec_of(*n.in[0]).collective.kind == program::CollectiveKind::all_gather;
}
const char* Purposes::of(const Node& n) const {
  return gathered(n) ? "gathered" : gradient(n) ? "gradients" : "activations";
}
const char* Purposes::of_argument(const Node& n) const {
  return is_parameter(n) ? "parameters" : optimizer_.count(&n) ? "optimizer" : "inputs";
}

}  // namespace haliax
