#include "compile/analysis/masks.h"

#include <algorithm>
#include <cmath>

#include "compile/analysis/softmax.h"
#include "graph/traversal.h"
#include "ops/attr.h"

namespace haliax::analysis {
namespace {

using namespace prim;

// The largest integer up to which f64 represents every integer.
constexpr double kMaxExactInteger = double(std::int64_t(1) << 53);

bool is_mask_cast(const Node& n) {
  return n.op->kind == Kind::map && n.op->code == Code::cast && n.in[0]->dtype == DType::boolean &&
         n.dtype != DType::boolean;
}
std::optional<bool> compare(Code how, const NodePtr& a, const NodePtr& b) {
  if (!is_number(a) || !is_number(b)) return {};
  const double x = real_of(*stripped(a)), y = real_of(*stripped(b));
  if (!is_float(a->dtype) && std::max(std::abs(x), std::abs(y)) > kMaxExactInteger) return {};
  switch (how) {
    case Code::less:
      return x < y;
    case Code::less_equal:
      return x <= y;
    case Code::equal:
      return x == y;
    case Code::not_equal:
      return x != y;
    default:
      return {};
  }
}

}  // namespace

bool selects_operand(const Node& n) {
  return n.op->kind == Kind::map && n.op->code == Code::select;
}
bool reads_mask(const Node& n) { return selects_operand(n) || is_mask_cast(n); }
bool is_elementwise(const Node& n) { return n.op->kind == Kind::map || keeps_names(n); }

Nodes masks_of(const NodePtr& x, Name axis) {
  Nodes out;
  auto has_axis = [&](const Node& n) { return has(n.axes, axis) && is_elementwise(n); };
  traverse({x}, has_axis, [&](const NodePtr& n, PendingNodes& todo) {
    if (reads_mask(*n) && has(n->in[0]->axes, axis)) {
      auto& mask = n->in[0];
      out.push_back(mask);
      // As in `where(hidden, -1e9, scores)`.
      out.push_back(mask->op->code == Code::logical_not ? mask->in[0] : logical_not(mask));
    }
    append(todo, n->in);
  });
  return out;
}

std::optional<EqualMask> equal_mask(const Node& c) {
  if (c.op->kind != Kind::map || c.in.size() != 2) return {};
  for (std::size_t side : {0u, 1u}) {
    auto& x = same_values(c.in[side]);
    const bool is_cast = is_mask_cast(*x);
    if (!is_cast && !selects_operand(*x)) continue;
    auto with = [&](const NodePtr& value) {
      return side == 0 ? compare(c.op->code, value, c.in[1]) : compare(c.op->code, c.in[0], value);
    };
    auto if_true = with(is_cast ? number(1, x->dtype) : x->in[1]);
    auto if_false = with(is_cast ? number(0, x->dtype) : x->in[2]);
    if (if_true && if_false && *if_true != *if_false) return EqualMask{x->in[0], *if_false};
  }
  return {};
}
std::optional<bool> constant_mask(const Node& n, const Nodes& in) {
  if (n.dtype != DType::boolean || n.op->kind != Kind::map || in.empty() || !in[0]) return {};
  if (in.size() == 2) return in[1] ? compare(n.op->code, in[0], in[1]) : std::nullopt;
  const bool negates = n.op->code == Code::logical_not ||
                       (n.op->code == Code::bit_not && in[0]->dtype == DType::boolean);
  return negates && is_number(in[0]) ? std::optional(is_number(in[0], 0)) : std::nullopt;
}

}  // namespace haliax::analysis
