// What belongs to a query alone, taken out of sums over its keys, so that these are walked once forward and once backward:
//
//     sum_k (e_qk / s_q) v_kd                     =  sum_k e_qk v_kd  /  s_q             (w = e / s, o_qd: weighted values)
//     sum_k w_qk (sum_d g_qd v_kd)                =  sum_d g_qd o_qd
//
// where e = exp(x - max x) of which s is the sum. Masks and dropout are factors of w like others.
#include <algorithm>

#include "compile/chunk/chunk.h"
#include "ops/prim.h"
#include "ops/shifted_exp.h"

namespace haliax {
namespace {

// A value as a product: of nodes, of what divides it, and of masks (a select of 0).
struct Factor {
  enum class Kind : std::uint8_t { times, over, where } kind;
  const Node* of;
  auto operator<=>(const Factor&) const = default;
};
struct Product {
  std::vector<Factor> factors;

  explicit Product(const NodePtr& n) {
    add(n, false);
    std::sort(factors.begin(), factors.end());
  }
  // The rest of it, without a factor that it has; as one to compare with.
  bool is(const Product& other, const Node* without) const {
    auto rest = other.factors;
    rest.erase(std::find(rest.begin(), rest.end(), Factor{Factor::Kind::times, without}));
    return factors == rest;
  }

 private:
  void add(const NodePtr& n, bool below) {
    auto op = n->op;
    bool floats = op == &prim::kCast && is_float(n->dtype) && is_float(n->in[0]->dtype);
    auto kind = below ? Factor::Kind::over : Factor::Kind::times;
    if (prim::is_number(n, 1)) return;
    if (op == &prim::kMul) add(n->in[0], below), add(n->in[1], below);
    else if (op == &prim::kDiv) add(n->in[0], below), add(n->in[1], !below);
    else if (op == &prim::kSelect && prim::is_number(n->in[2], 0) && !below)
      factors.push_back({Factor::Kind::where, n->in[0].get()}), add(n->in[1], below);
    else if (floats) add(n->in[0], below);
    else factors.push_back({kind, prim::same_values(n).get()});
  }
};

class LateRows {
 public:
  explicit LateRows(const Nodes& roots) : all_(everything(roots)) {
    for (auto& n : all_)
      if (n->op == &prim::kContract && n->in[0] != n->in[1]) products_.push_back(n);
  }
  Nodes run(const Nodes& roots) {
    auto inside = between_borders(all_);
    Rewrite made;
    At follow;
    for (auto& n : all_) {
      if (!inside.count(n.get())) continue;
      follow(n->origin);
      auto y = n->op == &prim::kContract ? divided_late(*n) : n->op == &prim::kSum ? by_values(*n) : nullptr;
      if (y) made[n.get()] = y;
    }
    Rewrite all;
    for (auto& n : all_)                         // the older ones first: others are made of them
      if (auto y = made.find(n.get()); y != made.end()) all[n.get()] = substitute(Nodes{y->second}, all)[0];
    return all.empty() ? roots : substitute(roots, all);
  }

 private:
  // x without its division by s, the sum of one of its factors e over `keys`: then `by` is s. Null: it has none.
  static NodePtr undivided(const NodePtr& x, const Axes& keys, NodePtr& by) {
    auto again = [&](std::size_t k) {
      auto in = x->in;
      in[k] = undivided(in[k], keys, by);
      return in[k] ? make(*x->op, std::move(in), x->axes, x->dtype, x->attr) : nullptr;
    };
    auto sums = [&](const NodePtr& s, const NodePtr& e) {
      auto& of = prim::same_values(s);
      return of->op == &prim::kSum && of->in[0] == e && prim::shifted_exp(*e) && common(s->axes, keys).empty();
    };
    if (x->op == &prim::kDiv && sums(x->in[1], x->in[0])) return by = x->in[1], x->in[0];
    if (x->op == &prim::kMul)
      for (std::size_t side : {0u, 1u}) {
        auto &e = x->in[side], &f = x->in[1 - side];
        if (f->op == &prim::kDiv && prim::is_number(f->in[0], 1) && sums(f->in[1], e)) return by = f->in[1], e;
        if (prim::is_number(f))
          if (auto y = again(side)) return y;
      }
    bool masks = x->op == &prim::kSelect && prim::is_number(x->in[2], 0);
    bool scales = (x->op == &prim::kDiv && prim::is_number(x->in[1])) || (x->op == &prim::kCast && is_float(x->in[0]->dtype));
    return masks ? again(1) : scales ? again(0) : nullptr;
  }
  static Axes folded(const Node& n) { return without_axes(common(n.in[0]->axes, n.in[1]->axes), n.axes); }
  static NodePtr divided_late(const Node& n) {
    for (std::size_t side : {0u, 1u}) {
      NodePtr by;
      auto e = undivided(n.in[side], folded(n), by);
      if (!e || !without_axes(by->axes, n.axes).empty()) continue;
      auto sum = side == 0 ? prim::contract(e, n.in[1], n.axes, by->dtype) : prim::contract(n.in[0], e, n.axes, by->dtype);
      return prim::cast(prim::map(prim::kDiv, {sum, by}, by->dtype, &n.axes), n.dtype);
    }
    return nullptr;
  }
  // A sum over keys of weights times g v, if the weighted values are there.
  NodePtr by_values(const Node& n) const {
    const auto keys = without_axes(n.in[0]->axes, n.axes);
    Product terms(n.in[0]);
    for (auto& f : terms.factors) {
      if (f.kind != Factor::Kind::times || f.of->op != &prim::kContract) continue;
      for (std::size_t side : {0u, 1u}) {
        auto &v = f.of->in[side], &g = f.of->in[1 - side];
        if (common(v->axes, keys).size() != keys.size() || !common(g->axes, keys).empty()) continue;
        for (auto& o : products_)
          for (std::size_t k : {0u, 1u}) {
            bool values = o->in[k] == v && same_set(folded(*o), keys) && same_set(folded(*f.of), without_axes(g->axes, n.axes));
            if (values && same_set(o->axes, g->axes) && Product(o->in[1 - k]).is(terms, f.of))
              return prim::contract(g, o, n.axes, n.dtype);
          }
      }
    }
    return nullptr;
  }

  Nodes all_, products_;
};

}  // namespace

Nodes late_rows(const Nodes& roots) { return LateRows(roots).run(roots); }

}  // namespace haliax
