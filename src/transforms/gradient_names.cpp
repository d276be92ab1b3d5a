#include "transforms/gradient_names.h"

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

void add_names(Names& to, const Names& more) {
  for (auto n : more)
    if (!has(to, n)) to.push_back(n);
}

namespace {

// What a value is made of; null: of data, or turn by turn.
std::optional<Nodes> operands(const Node& n) {
  if (n.op == &prim::kNumber || n.op == &prim::kIota || n.op == &prim::kIndex || n.op == &prim::kStop) return Nodes();
  if (n.op == &prim::kBarrier) return Nodes{n.in[0]};
  if (n.op == &kResult && n.in[0]->op == &kCustom) return Nodes{n.in[0]->in[result_number(n)]};
  if (n.op == &kResult || n.op == &kLoop || n.op->kind == Kind::leaf) return {};
  return n.in;
}

}  // namespace

const std::optional<Names>& Gradients::made_of(const NodePtr& root) {
  Nodes todo;
  if (!made_of_.count(root->id)) todo.push_back(root);
  while (!todo.empty()) {
    auto n = todo.back();
    auto before = todo.size();
    std::optional<Names> names;
    if (n->op == &prim::kTracer) {
      if (n->origin.module) names = Names{n->origin.module};
    } else if (auto in = operands(*n)) {
      names.emplace();
      for (auto& x : *in) {
        if (!x || !names) continue;
        auto found = made_of_.find(x->id);
        if (found == made_of_.end())
          todo.push_back(x);
        else if (found->second)
          add_names(*names, *found->second);
        else
          names.reset();
      }
    }
    if (names && todo.size() > before) continue;  // its operands first
    todo.resize(before - 1);
    made_of_[n->id] = std::move(names);
  }
  return made_of_.at(root->id);
}

void Gradients::note(const NodePtr& of, const NodePtr& cotangent) {
  auto& parameters = made_of(of);
  if (!parameters || parameters->empty()) return;
  for (auto* n = cotangent.get();; n = n->in[0].get()) {  // and what it is a view or a cast of
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
