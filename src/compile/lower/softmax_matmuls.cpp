// Matmuls of a softmax and of the gradient of a cross entropy, computed from e = exp(x - max x).
// Here s is the sum of a row of e, which is computed while e is written once:
//
//     sum_v (e_nv / s_n g_n) w_vd                 =  g_n / s_n sum_v e_nv w_vd
//     sum_n (e_nv / s_n g_n) y_nd                 =  sum_n e_nv (g_n / s_n y_nd)
//     e_nv / s_n g_n - [v = id_n] g_n             =  (e_nv - [v = id_n] s_n) g_n / s_n
//
// The rows need no second pass once their sums are known. The label term is subtracted from e
// before any matmul, so the difference is exactly 0 where e / s is 1. Since e and s belong to a
// softmax, s >= 1, and a matmul of e is at most s times the matmul of the softmax.
#include <algorithm>

#include "compile/analysis/softmax.h"
#include "ops/prim.h"
#include "compile/lower/rewrites.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// most ops between the softmax and the matmul, such as factors and the gradient at the label
constexpr int kMaxFactoredOps = 3;

// A value that equals e * factor.
struct Factored {
  NodePtr e, factor;
};

// Returns true for the sum of e = exp(x - max x) along its rows, or of the `select` that
// replaces a sum of 0.
bool is_sum_of(const NodePtr& n, const NodePtr& e) {
  const Node* sum = n.get();
  if (sum->op == &prim::kSelect && prim::is_number(sum->in[1], 1)) sum = sum->in[2].get();
  auto shifted = analysis::summed_shifted_exp(*sum, e);
  return shifted && shifted->top->axes == sum->axes;
}

bool is_smaller(const NodePtr& a, const NodePtr& b) { return a->size() < b->size(); }
// Returns true if a costs little time and memory relative to b.
bool is_negligible(const NodePtr& a, const NodePtr& b) {
  constexpr std::int64_t times_smaller = 32;
  return times_smaller * a->size() <= b->size();
}

class Factoring {
 public:
  explicit Factoring(const Nodes& roots) : all_(all_nodes(roots)), users_(users_of(all_, roots)) {}
  Nodes run(const Nodes& roots) {
    std::unordered_map<const Node*, Nodes> matmuls;  // node -> contractions that read it
    for (auto& n : all_)
      if (n->op == &prim::kContract && n->in[0] != n->in[1])
        for (auto& x : n->in) matmuls[x.get()].push_back(n);
    Rewrite to;
    OriginScope follow;
    for (auto& x : all_) {  // in a deterministic order
      auto read = matmuls.find(x.get());
      // Another reader needs x in any case.
      if (read == matmuls.end() || int(read->second.size()) < users_.at(x.get())) continue;
      follow(x->origin);
      auto f = factored(x);
      if (!f) continue;
      Rewrite created;
      for (auto& n : read->second) {
        follow(n->origin);
        if (auto y = matmul_of_exp(*n, *f, n->in[n->in[0] == x ? 1 : 0])) created[n.get()] = y;
      }
      if (created.size() == read->second.size()) to.insert(created.begin(), created.end());
    }
    if (to.empty()) return roots;
    Rewrite all;
    for (auto& n : all_)  // older nodes first: newer ones depend on them
      if (auto y = to.find(n.get()); y != to.end()) all[n.get()] = substitute(y->second, all);
    return substitute(roots, all);
  }

 private:
  std::optional<Factored> factored(const NodePtr& x, int depth = 0) const {
    auto* op = x->op;
    if ((x->dtype != DType::f32 && x->dtype != DType::f64) || depth > kMaxFactoredOps) return {};
    auto has_all_axes = [&](const NodePtr& part) { return part->axes.size() == x->axes.size(); };
    auto factored_operand = [&](const NodePtr& part) -> std::optional<Factored> {
      if (users_.at(part.get()) > 1 || !has_all_axes(part)) return {};
      return factored(part, depth + 1);
    };
    auto is_normalized = [&](const NodePtr& part, const NodePtr& sum) {
      return has_all_axes(part) && is_sum_of(sum, part);
    };
    bool is_mul = op == &prim::kMul;
    if (op == &prim::kDiv && is_normalized(x->in[0], x->in[1]))
      return Factored{x->in[0], prim::reciprocal(x->in[1])};
    if (is_mul || op == &prim::kDiv)
      for (std::size_t side = 0; side < (is_mul ? 2 : 1); ++side) {
        auto &part = x->in[side], &other = x->in[1 - side];
        if (!is_smaller(other, x)) continue;
        if (is_mul && other->op == &prim::kDiv && is_normalized(part, other->in[1]))
          return Factored{part, other};
        if (auto f = factored_operand(part))
          return Factored{f->e, is_mul ? prim::mul(f->factor, other) : prim::div(f->factor, other)};
      }
    if (op == &prim::kAdd)
      for (std::size_t side : {0u, 1u})
        if (auto f = factored_operand(x->in[side]))
          if (auto e = minus_label(*f, x->in[1 - side])) return Factored{e, f->factor};
    return {};
  }
  // Returns e minus its sum at the position of the label, if x is select(id == position, -g, 0) and
  // the factor is g / sum. Null otherwise.
  static NodePtr minus_label(const Factored& f, const NodePtr& x) {
    if (x->op != &prim::kSelect || x->in[0]->op != &prim::kEqual || !prim::is_number(x->in[2], 0))
      return nullptr;
    auto& weight = x->in[1];
    if (f.factor->op != &prim::kDiv || f.e->op != &prim::kExp) return nullptr;
    if (weight->op != &prim::kNeg || weight->in[0] != f.factor->in[0]) return nullptr;
    for (std::size_t side : {0u, 1u}) {
      auto &id = x->in[0]->in[side], &position = x->in[0]->in[1 - side];
      auto& iota = position->op == &prim::kCast ? position->in[0] : position;
      if (iota->op != &prim::kIota || (id->dtype != DType::i32 && id->dtype != DType::i64))
        continue;
      auto& along = iota->axes[0];
      auto& sum = f.factor->in[1];  // rows: all axes of e but one
      bool rows = sum->axes.size() + 1 == f.e->axes.size() && !has(sum->axes, along.name) &&
                  id->axes.size() == sum->axes.size();
      if (!rows || !has(f.e->axes, along.name)) return nullptr;
      // Positions are not negative, but a scatter counts negative ids from the end.
      auto number = [&](std::int64_t n) { return prim::integer(n, id->dtype); };
      auto there = prim::select(prim::less(id, number(0)), number(along.size), id);
      return prim::scatter(f.e, prim::neg(sum), {{along.name, there}}, program::Update::add);
    }
    return nullptr;
  }
  // Returns the matmul of the factored operand and y, computed from e. Null if the rewrite does not
  // reduce work or memory.
  static NodePtr matmul_of_exp(const Node& n, const Factored& f, const NodePtr& y) {
    auto contains_only = [](const Axes& some, const Axes& of) {
      return without_axes(some, of).empty();
    };
    if (y->dtype != f.e->dtype || n.dtype != f.e->dtype) return nullptr;
    if (!contains_only(without_axes(f.e->axes, n.axes), y->axes)) return nullptr;
    bool after = contains_only(f.factor->axes, n.axes);
    if (!after && !contains_only(f.factor->axes, y->axes)) return nullptr;
    auto matmul = prim::contract(f.e, after ? y : prim::mul(y, f.factor), n.axes, n.dtype);
    if (!is_negligible(after ? matmul : y, f.e)) return nullptr;
    return after ? prim::build(prim::kMul, {matmul, f.factor}, n.axes, n.dtype) : matmul;
  }

  Nodes all_;
  std::unordered_map<const Node*, int> users_;
};

}  // namespace

Nodes softmax_matmuls(const Nodes& roots) { return Factoring(roots).run(roots); }

}  // namespace haliax
