// The parameters that a value is computed from, and the record of their gradients.
#include "transforms/gradient_names.h"

#include <span>

#include "graph/traversal.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

void add_names(Names& to, const Names& more) {
  for (auto n : more)
    if (!has(to, n)) to.push_back(n);
}

namespace {

// Returns the operands to follow; nothing if the value depends on data or on a loop.
std::optional<std::span<const NodePtr>> operands(const Node& n) {
  const auto only = [](NodeRef operand) { return std::span(&operand, 1); };
  if (n.op == &prim::kNumber || n.op == &prim::kIota || n.op == &prim::kIndex ||
      n.op == &prim::kStop)
    return std::span<const NodePtr>();
  if (n.op == &prim::kBarrier) return only(n.in[0]);
  if (n.op == &kResult && n.in[0]->op == &kCustomVjp) return only(n.in[0]->in[result_number(n)]);
  if (n.op == &prim::kTracer && n.origin.module) return std::span<const NodePtr>();  // a parameter
  if (n.op == &kResult || n.op == &kLoop || n.op == &prim::kTracer || n.op->kind == Kind::leaf)
    return {};
  return n.in;
}

}  // namespace

const std::optional<Names>& Gradients::computed_from(NodeRef root) {
  Nodes order;
  auto is_new = [&](const Node& n) { return !computed_from_.count(n.id); };
  traverse({root}, is_new, [&](NodeRef n, PendingNodes& todo) {
    order.push_back(n);
    for (auto& x : operands(*n).value_or(std::span<const NodePtr>()))
      if (x) todo.push_back(&x);
  });
  sort_by_age(order);
  for (auto& n : order) {
    auto& names = computed_from_[n->id];
    auto in = operands(*n);
    if (!in) continue;
    names.emplace();
    if (n->op == &prim::kTracer) add_names(*names, {n->origin.module});
    for (auto& x : *in) {
      if (!x || !names) continue;
      if (auto& more = computed_from_.at(x->id))
        add_names(*names, *more);
      else
        names.reset();
    }
  }
  return computed_from_.at(root->id);
}

void Gradients::note(NodeRef of, NodeRef cotangent) {
  auto& parameters = computed_from(of);
  if (!parameters || parameters->empty()) return;
  // Records the name for the nodes that the cotangent is a view or a cast of, as well.
  for (auto* n = cotangent.get();; n = n->in[0].get()) {
    add_names(of_[n->origin.traced], *parameters);
    if (n->op->kind != Kind::wrap && n->op->linear != Linear::moves && n->op != &prim::kCast) break;
  }
}
const Names& Gradients::parameters(const Node& n) const {
  static const Names none;
  auto found = of_.find(n.origin.traced);
  return found == of_.end() ? none : found->second;
}

}  // namespace haliax
