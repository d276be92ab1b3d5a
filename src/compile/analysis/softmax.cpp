#include "compile/analysis/softmax.h"

#include "graph/loop.h"

namespace haliax::analysis {

using namespace prim;

const NodePtr& same_values(const NodePtr& n) {
  const NodePtr* x = &n;
  auto shows = [](const Node& m) { return m.op->kind == Kind::wrap && m.op != &kCustomVjp; };
  while ((*x)->op == &kStop || keeps_names(**x) || shows(**x)) x = &(*x)->in[0];
  return *x;
}
std::optional<ShiftedExp> shifted_exp(const Node& n) {
  if (n.op != &kExp || n.in[0]->op != &kSub) return {};
  auto& x = n.in[0]->in[0];
  auto* top = &same_values(n.in[0]->in[1]);
  bool guarded = (*top)->op == &kSelect && is_number((*top)->in[2], 0);
  if (guarded) top = &same_values((*top)->in[1]);
  if ((*top)->op != &kMax || same_values((*top)->in[0]) != same_values(x)) return {};
  return ShiftedExp{x, *top, guarded};
}
std::optional<ShiftedExp> summed_shifted_exp(const Node& sum, const NodePtr& e) {
  if (sum.op != &kSum || sum.in[0] != e) return {};
  return shifted_exp(*e);
}

}  // namespace haliax::analysis
