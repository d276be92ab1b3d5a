// Determines the purpose of each array from its use in the graph.
#include "compile/analysis/purpose.h"

#include <algorithm>

#include "ops/collective.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax::analysis {
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
  const auto all = all_nodes(roots);
  find_backward(all);
  NameSets gradient_axes;  // axes of the backward values that are read
  Nodes todo;              // gradients, and roots that no gradient reaches
  std::unordered_set<const NameData*> loop_axes;
  for (auto& n : all) {
    if (n->op == &kLoop) loop_axes.insert(loop_of(*n).axis.name.data());
    if (n->origin.backward) {
      todo.push_back(n);
      continue;
    }
    Nodes in;
    computed_from(*n, in);
    for (auto& x : in)
      if (x->origin.backward && x->op != &prim::kBarrier) gradient_axes.insert(names(x->axes));
  }
  for (auto& r : roots) {
    if (!backward_.count(r.get())) todo.push_back(r);
    if (r->origin.backward) gradient_axes.insert(names(r->axes));
  }
  std::unordered_set<const Node*> reached;  // gradients and independent results depend on these
  while (!todo.empty()) {
    auto n = std::move(todo.back());
    todo.pop_back();
    if (reached.insert(n.get()).second) computed_from(*n, todo);
  }
  for (auto& n : inputs) {
    if (!is_float(n->dtype)) continue;
    if (!reached.count(n.get()) && !backward_.empty()) {
      optimizer_.insert(n.get());
    } else if (backward_.empty() ? bool(n->origin.module)
                                 : gradient_axes.count(names(n->axes)) > 0) {
      parameters_.insert(n.get());
      add_parameter_axes(names(n->axes), loop_axes);
    }
  }
}
void Purposes::find_backward(const Nodes& all) {
  for (auto& n : all) {  // operands and bodies first
    Nodes in;
    computed_from(*n, in);
    const bool is_backward = n->origin.backward || std::any_of(in.begin(), in.end(), [&](auto& x) {
                               return backward_.count(x.get()) > 0;
                             });
    if (is_backward) backward_.insert(n.get());
  }
}
void Purposes::add_parameter_axes(const std::vector<const NameData*>& axes,
                                  const std::unordered_set<const NameData*>& loop_axes) {
  if (axes.empty()) return;
  parameter_axes_.insert(axes);
  for (std::size_t k = 0; k < axes.size() && axes.size() > 1; ++k) {
    if (!loop_axes.count(axes[k])) continue;
    auto rest = axes;
    rest.erase(rest.begin() + std::ptrdiff_t(k));
    parameter_axes_.insert(rest);
  }
}
bool Purposes::gradient(const Node& n) const {
  return backward_.count(&n) > 0 && parameter_axes_.count(names(n.axes)) > 0;
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

}  // namespace haliax::analysis
