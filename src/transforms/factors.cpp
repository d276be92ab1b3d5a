// Products of a softmax and of its gradients. What multiplies whole rows of an operand is taken out of the product, and what that operand has
// at one point of a row (a label's -1) is picked out of the other one:
//
//     sum_v (e_nv r_n + [v = id_n] c_n) w_vd  =  r_n sum_v e_nv w_vd + c_n w_(id_n)d
//     sum_n (e_nv r_n + [v = id_n] c_n) x_nd  =  sum_n e_nv (r_n x_nd), with c_n x_nd added at id_n
//
// So e, which is made while its rows are summed, is what the products read, and the rows are not walked again once their sums are known.
// Only for e = exp(x - max x), which is in [0, 1] as the softmax is: a product of it leaves the range no sooner than the sum of y along a row.
#include <algorithm>

#include "ops/prim.h"
#include "transforms/optimise.h"

namespace haliax {
namespace {

struct Factored {                                // e * factor + select(id == position along `along`, weight, 0)
  NodePtr e, factor, id = {}, weight = {};       // id, weight: null where there is no such point
  Name along = {};
};

bool is_bounded(const Node& e) {                 // exp(x - max x)
  if (e.op != &prim::kExp || e.in[0]->op != &prim::kSub) return false;
  const Node* top = e.in[0]->in[1].get();
  while (top->op == &prim::kStop || top->op == &prim::kFit || top->op == &prim::kSelect) top = top->in[top->op == &prim::kSelect ? 1 : 0].get();
  return top->op == &prim::kMax && top->in[0] == e.in[0]->in[0];
}

bool is_smaller(const NodePtr& a, const NodePtr& b) { return a->size() < b->size(); }
// Next to that array, does this one take no time and no memory to speak of?
bool is_slight(const NodePtr& a, const NodePtr& b) { return 32 * a->size() <= b->size(); }

class Taking {
 public:
  explicit Taking(const Nodes& roots) : all_(everything(roots)), users_(users_of(all_, roots)) {}
  Nodes run(const Nodes& roots) {
    std::unordered_map<const Node*, Nodes> products;   // that read it
    for (auto& n : all_)
      if (n->op == &prim::kContract && n->in[0] != n->in[1])
        for (auto& x : n->in) products[x.get()].push_back(n);
    Rewrite to;
    Following follow;
    for (auto& x : all_) {                       // in the same order each time
      auto read = products.find(x.get());
      if (read == products.end() || int(read->second.size()) < users_.at(x.get())) continue;   // it has to be made after all
      follow(x->origin);
      auto f = factored(x);
      if (!f) continue;
      Rewrite made;
      for (auto& n : read->second) {
        follow(n->origin);
        if (auto y = without(*n, *f, n->in[n->in[0] == x ? 1 : 0])) made[n.get()] = y;
      }
      if (made.size() == read->second.size()) to.insert(made.begin(), made.end());
    }
    if (to.empty()) return roots;
    Rewrite all;
    for (auto& n : all_)                         // the older ones first: others are made of them
      if (auto y = to.find(n.get()); y != to.end()) all[n.get()] = substitute(y->second, all);
    return substitute(roots, all);
  }

 private:
  std::optional<Factored> factored(const NodePtr& x, int depth = 0) const {
    auto *op = x->op;
    if ((x->dtype != DType::f32 && x->dtype != DType::f64) || depth > 3) return {};
    auto fills = [&](const NodePtr& part) { return part->axes.size() == x->axes.size(); };   // it is not broadcast
    auto alone = [&](const NodePtr& part) { return users_.at(part.get()) == 1 && fills(part) ? factored(part, depth + 1) : std::nullopt; };
    if (op == &prim::kMul || op == &prim::kDiv)
      for (std::size_t side = 0; side < (op == &prim::kMul ? 2 : 1); ++side) {
        auto &part = x->in[side], &other = x->in[1 - side];
        if (!is_smaller(other, x)) continue;
        auto factor = op == &prim::kMul ? other : prim::reciprocal(other);
        if (is_bounded(*part) && fills(part)) return Factored{part, factor};
        auto f = alone(part);
        if (!f || (f->id && has(factor->axes, f->along))) continue;
        f->factor = prim::mul(f->factor, factor);
        if (f->id) f->weight = prim::mul(f->weight, factor);
        return f;
      }
    if (op == &prim::kAdd)
      for (std::size_t side : {0u, 1u})
        if (auto f = alone(x->in[side]); f && !f->id && at_point(x->in[1 - side], *f)) return f;
    return {};
  }
  // select(id == position, weight, 0), where id and weight are the same along that axis. No position is negative, but ids are counted from
  // the end then.
  static bool at_point(const NodePtr& x, Factored& f) {
    if (x->op != &prim::kSelect || x->in[0]->op != &prim::kEqual || !prim::is_number(x->in[2], 0)) return false;
    for (std::size_t side : {0u, 1u}) {
      auto &id = x->in[0]->in[side], &position = x->in[0]->in[1 - side];
      auto& iota = position->op == &prim::kCast ? position->in[0] : position;
      if (iota->op != &prim::kIota || (id->dtype != DType::i32 && id->dtype != DType::i64)) continue;
      auto none = prim::integer(iota->axes[0].size, id->dtype);
      f.id = prim::select(prim::less(id, prim::integer(0, id->dtype)), none, id), f.weight = x->in[1], f.along = iota->axes[0].name;
      return !has(id->axes, f.along) && !has(f.weight->axes, f.along);
    }
    return false;
  }
  // The product of such an operand and y, made of e. Null where that is no less work, or takes memory.
  static NodePtr without(const Node& n, const Factored& f, const NodePtr& y) {
    auto inside = [](const Axes& some, const Axes& of) { return std::all_of(some.begin(), some.end(), [&](auto& a) { return has(of, a.name); }); };
    if (y->dtype != f.e->dtype || n.dtype != f.e->dtype) return nullptr;
    Axes summed;
    for (auto& a : y->axes) if (!has(n.axes, a.name)) summed.push_back(a);
    for (auto& a : f.e->axes) if (!has(n.axes, a.name) && !has(summed, a.name)) return nullptr;
    bool after = inside(f.factor->axes, n.axes);
    if (!after && !inside(f.factor->axes, y->axes)) return nullptr;
    auto product = prim::contract(f.e, after ? y : prim::mul(y, f.factor), n.axes, n.dtype);
    if (!is_slight(after ? product : y, f.e)) return nullptr;
    if (after) product = prim::map(prim::kMul, {product, f.factor}, n.dtype, &n.axes);
    if (!f.id) return product;
    auto is_apart = [&](const Axes& axes) { return std::none_of(f.id->axes.begin(), f.id->axes.end(), [&](auto& a) { return has(axes, a.name); }); };
    if (has(summed, f.along)) {
      if (summed.size() > 1 || !is_apart(y->axes)) return nullptr;
      auto axes = f.id->axes;
      for (auto& a : y->axes) if (a.name != f.along) axes.push_back(a);
      auto picked = prim::gather(y, {{f.along, f.id}}, axes, program::Outside::zero);
      return prim::map(prim::kAdd, {product, prim::mul(picked, f.weight)}, n.dtype, &n.axes);
    }
    if (!inside(summed, f.id->axes) || !is_apart(n.axes) || !has(n.axes, f.along) || has(y->axes, f.along)) return nullptr;
    return prim::scatter(product, prim::mul(y, f.weight), {{f.along, f.id}}, program::Update::add, false);
  }

  Nodes all_;
  std::unordered_map<const Node*, int> users_;
};

}  // namespace

Nodes take_out_factors(const Nodes& roots) { return Taking(roots).run(roots); }

}  // namespace haliax
