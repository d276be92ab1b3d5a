#include "transforms/skip.h"

#include <algorithm>

#include "ops/prim.h"
#include "transforms/collective.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// Masks of a node: arrays of bool, of each of which is known: if it is false throughout, the node is 0 throughout.
class Masks {
 public:
  explicit Masks(const Nodes& level) {
    for (auto& n : level) {
      auto m = learned(n);
      if (!m.empty()) of_[n.get()] = std::move(m);
    }
  }
  const Nodes& of(const NodePtr& n) const {
    static const Nodes none;
    auto i = of_.find(n.get());
    return i == of_.end() ? none : i->second;
  }
  // Of a sum of two, or of one or the other.
  static Nodes merged(const Nodes& a, const Nodes& b) {
    Nodes both;
    for (auto& m : a) if (std::find(b.begin(), b.end(), m) != b.end()) both.push_back(m);
    if (!both.empty() || a.empty() || b.empty()) return both;
    return {prim::map(prim::kBitOr, {smallest(a), smallest(b)}, DType::boolean)};
  }
  static const NodePtr& smallest(const Nodes& masks) {
    return *std::min_element(masks.begin(), masks.end(), [](auto& a, auto& b) { return a->size() < b->size(); });
  }

 private:
  static Nodes joined(Nodes a, const Nodes& b) {   // of a product
    for (auto& m : b) if (std::find(a.begin(), a.end(), m) == a.end() && a.size() < 8) a.push_back(m);
    return a;
  }
  Nodes learned(const NodePtr& n) const {
    auto* op = n->op;
    auto in = [&](std::size_t k) -> const Nodes& { return of(n->in[k]); };
    auto zero = [&](std::size_t k) { return prim::is_number(n->in[k], 0); };
    bool moves = op == &prim::kFit || op->kind == Kind::view;
    if (n->dtype == DType::boolean) {
      if (op == &prim::kBitAnd) return joined(joined({n}, in(0)), in(1));
      return moves && !in(0).empty() ? in(0) : Nodes{n};
    }
    if (op == &prim::kMul || op == &prim::kContract) return joined(in(0), in(1));
    if (op == &prim::kSelect) return zero(2) ? joined(in(0), in(1)) : zero(1) ? in(2) : merged(in(1), in(2));
    if (op == &prim::kAdd || op == &prim::kSub) return merged(in(0), in(1));
    if (op == &prim::kScatter && n->attr.ints[0] == std::int64_t(program::Update::add)) return zero(0) ? in(1) : merged(in(0), in(1));
    if (moves || op == &prim::kDiv || op == &prim::kNeg || op == &prim::kCast || op == &prim::kSum) return in(0);
    if (op != &kResult || n->in[0]->op != &kLoop) return {};
    auto& l = loop_of(*n);                         // of a loop inside: what does not change with its turns
    auto& r = l.results[std::size_t(n->attr.ints[0])];
    if (r.carry || r.start || r.monoid != Monoid::sum) return {};
    Nodes out = of(r.value[0]);
    for (auto& v : r.value) out = merged(out, of(v));
    for (auto& i : l.index) std::erase_if(out, [&](auto& m) { return m->varies_with(i.get()); });
    return out;
  }
  std::unordered_map<const Node*, Nodes> of_;
};

}  // namespace

NodePtr turn_flag(const Loop& l, std::size_t body) {
  Nodes values;
  for (auto& r : l.results) {
    if (r.carry || (r.fold == Fold::fold && r.monoid != Monoid::sum)) return nullptr;
    values.push_back(r.value[body]);
  }
  auto level = everything(values);
  std::erase_if(level, [&](auto& n) { return !n->varies_with(l.index[body].get()); });
  std::int64_t largest = 1;
  for (auto& n : level) {
    if (n->op == &kCollective) return nullptr;     // others wait for it
    largest = std::max(largest, n->size());
  }
  Masks masks(level);
  auto common = masks.of(values[0]);
  for (auto& v : values) common = Masks::merged(common, masks.of(v));
  if (common.empty()) return nullptr;
  auto mask = Masks::smallest(common);
  return 8 * mask->size() <= largest ? prim::reduce(Monoid::max, mask, {}) : nullptr;
}

}  // namespace haliax
