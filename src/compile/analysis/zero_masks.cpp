#include "compile/analysis/zero_masks.h"

#include <algorithm>
#include <utility>

#include "graph/loop.h"
#include "graph/traversal.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::analysis {
namespace {

// The most masks of one value, which bounds the cost of the analysis.
constexpr std::size_t kMaxMasks = 8;

// Returns the masks of an elementwise product of two values that have these masks.
Nodes masks_of_product(Nodes a, const Nodes& b) {
  for (auto& m : b)
    if (!holds(a, m) && a.size() < kMaxMasks) a.push_back(m);
  return a;
}

}  // namespace

const NodePtr& smallest(const Nodes& masks) {
  return *std::min_element(masks.begin(), masks.end(),
                           [](auto& a, auto& b) { return a->size() < b->size(); });
}
Nodes masks_of_sum(const Nodes& a, const Nodes& b) {
  Nodes shared;
  for (auto& m : a)
    if (holds(b, m)) shared.push_back(m);
  if (!shared.empty() || a.empty() || b.empty()) return shared;
  auto &x = smallest(a), &y = smallest(b);
  // A mask and its slice have different sizes of one axis.
  for (auto& axis : x->axes)
    if (auto* other = haliax::find(*y, axis.name); other && other->size != axis.size) return {};
  return {prim::map(prim::kBitOr, {x, y}, DType::boolean)};
}

ZeroMasks::ZeroMasks(const Nodes& level) {
  for (auto& n : level) of_[n.get()] = find(n);
}
const Nodes& ZeroMasks::of(const NodePtr& n) const {
  static const Nodes none;
  auto found = of_.find(n.get());
  return found == of_.end() ? none : found->second;
}
Nodes ZeroMasks::by_operands(const Node& n) const {
  Nodes out;
  bool adds = false;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    auto how = zero_in(n, k);
    if (how == Linear::no) continue;
    out = how == Linear::all && std::exchange(adds, true)
              ? masks_of_sum(out, of(n.in[k]))
              : masks_of_product(std::move(out), of(n.in[k]));
  }
  return out;
}
Nodes ZeroMasks::find(const NodePtr& n) const {
  const auto kind = n->op->kind;
  const bool has_rule = kind == Kind::view || kind == Kind::map || kind == Kind::contract ||
                        kind == Kind::reduce || n->op->zero_in;
  auto masks = has_rule ? by_operands(*n) : Nodes();
  if (n->dtype == DType::boolean)
    return kind == Kind::view && !masks.empty() ? masks : masks_of_product({n}, masks);
  if (has_rule || !is_loop_result(*n)) return masks;
  // A sum over an inner loop has the masks of its terms that do not vary with the iteration.
  auto& r = result_of(*n);
  if (r.carry || r.start || r.monoid != Monoid::sum) return {};
  masks = of(r.value[0]);
  for (auto& v : r.value) masks = masks_of_sum(masks, of(v));
  for (auto& i : loop_of(*n).index)
    std::erase_if(masks, [&](auto& m) { return m->varies_with(i.get()); });
  return masks;
}

}  // namespace haliax::analysis
