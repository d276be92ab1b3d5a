#include "compile/analysis/flags.h"

#include "compile/analysis/masks.h"

namespace haliax::analysis {

using namespace prim;

NodePtr flag_or_not_all(const NodePtr& flag, const Nodes& conditions) {
  auto out = flag;
  for (auto& c : conditions)
    if (!is_number(c, 1)) out = either(out, logical_not(reduce(Monoid::min, c, {})));
  return out;
}
NodePtr both_flags(const NodePtr& flag, const NodePtr& more) {
  return flag ? both(flag, more) : more;
}

namespace {

NodePtr equals(const NodePtr& x, double value) {
  return is_number(x, value) ? number(1, DType::boolean) : equal(x, number(value, x->dtype));
}
// Null: not known from the ops that compute `next`.
NodePtr unchanged_by_ops(const NodePtr& next, const NodePtr& before) {
  auto& n = *next;
  if (next == before) return number(1, DType::boolean);
  if (selects_operand(n))
    if (auto other = unchanged_by_ops(n.in[2], before)) return both(other, logical_not(n.in[0]));
  if (n.op->kind != Kind::map || n.in.size() != 2 || n.dtype != before->dtype) return nullptr;
  for (std::size_t k : {0u, 1u}) {
    auto& other = n.in[1 - k];
    auto unchanged = unchanged_by_ops(n.in[k], before);
    if (unchanged && n.op->code == Code::add) return both(unchanged, equals(other, 0));
    if (unchanged && n.op->code == Code::mul) return both(unchanged, equals(other, 1));
    if (unchanged && n.op->code == Code::max) return both(unchanged, less_equal(other, before));
  }
  return nullptr;
}

}  // namespace

NodePtr unchanged_flag(const NodePtr& next, const NodePtr& before) {
  auto unchanged = unchanged_by_ops(next, before);
  return unchanged ? unchanged : equal(next, before);
}

}  // namespace haliax::analysis
