// Moves the normalization of a query out of the sums over its keys.
#include "compile/chunk/defer_normalization.h"

#include <algorithm>

#include "compile/analysis/softmax.h"
#include "ops/prim.h"

namespace haliax {
namespace {

// A factor of a value: a node that is multiplied, a divisor, or a mask (a select with 0). For
// example, `where(m, a * b / s, 0)` has the factors times a, times b, over s, where m.
struct Factor {
  enum class Kind : std::uint8_t { times, over, where } kind;
  const Node* of;
  auto operator<=>(const Factor&) const = default;
};
struct Factors {
  std::vector<Factor> list;

  explicit Factors(const NodePtr& n) {
    add(n, false);
    std::sort(list.begin(), list.end());
  }
  bool contains(const Node* factor) const {
    return std::find(list.begin(), list.end(), Factor{Factor::Kind::times, factor}) != list.end();
  }
  // Returns true if the factors are those of `other` except `without`, which `other` has: true for
  // a / s, given a * b / s and b.
  bool is(const Factors& other, const Node* without) const {
    auto rest = other.list;
    rest.erase(std::find(rest.begin(), rest.end(), Factor{Factor::Kind::times, without}));
    return list == rest;
  }

 private:
  void add(const NodePtr& n, bool below) {
    auto op = n->op;
    bool floats = op == &prim::kCast && is_float(n->dtype) && is_float(n->in[0]->dtype);
    auto kind = below ? Factor::Kind::over : Factor::Kind::times;
    if (prim::is_number(n, 1)) return;
    if (op == &prim::kMul) {
      add(n->in[0], below);
      add(n->in[1], below);
    } else if (op == &prim::kDiv) {
      add(n->in[0], below);
      add(n->in[1], !below);
    } else if (op == &prim::kSelect && prim::is_number(n->in[2], 0) && !below) {
      list.push_back({Factor::Kind::where, n->in[0].get()});
      add(n->in[1], below);
    } else if (floats)
      add(n->in[0], below);
    else
      list.push_back({kind, analysis::same_values(n).get()});
  }
};

class DeferNormalization {
  using Set = std::unordered_set<const Node*>;

 public:
  DeferNormalization(Nodes all, const Node* index, bool creates_values)
      : all_(std::move(all)), index_(index), creates_values_(creates_values) {
    for (auto& n : all_)
      if (n->op == &prim::kContract && n->in[0] != n->in[1]) matmuls_.push_back(n);
  }
  template <class Inside> Nodes run(const Nodes& roots, const Inside& inside) const {
    Rewrite created;
    Set summed;  // matmuls of g and v whose weighted sum from_weighted_values replaces
    OriginScope follow;
    for (auto& n : all_) {
      if (!inside(n)) continue;
      follow(n->origin);
      auto y = n->op == &prim::kContract ? divide_after_sum(*n)
               : n->op == &prim::kSum    ? from_weighted_values(*n, summed)
                                         : nullptr;
      if (y) created[n.get()] = y;
    }
    // The gradient of the scores is the difference of these matmuls and that sum. The replaced sum
    // does not contain the bf16 rounding of the matmuls, so the rounding error would remain in the
    // difference. For example, the gradient of a query that sees one key would not be 0. Therefore
    // the difference reads the matmuls in f32.
    Rewrite wide;
    for (auto& n : all_)
      if (n->op == &prim::kCast && n->dtype == DType::f32 && bytes_of(n->in[0]->dtype) < 4)
        if (auto y = in_f32(n->in[0], summed, wide)) created[n.get()] = y;
    Rewrite all;
    for (auto& n : all_)  // operands first, since later nodes are computed from them
      if (auto y = created.find(n.get()); y != created.end())
        all[n.get()] = substitute(Nodes{y->second}, all, index_)[0];
    return all.empty() ? roots : substitute(roots, all, index_);
  }

 private:
  // Returns x without its division by s, the sum of its factor e over `keys`, and sets `by` to s.
  // For example, given (e / s) * 2, returns e * 2. Null: x has no such division.
  //
  // under_select: a select may hide x, and with it the NaN of a row without visible keys. A
  // division after the sum must not expose the NaN. If e is 0 in such a row (guarded), s is 0 as
  // well, and the result is null. Otherwise e and s are NaN, and `by` is 1 instead of NaN.
  static NodePtr without_division(const NodePtr& x, const Axes& keys, NodePtr& by,
                                  bool under_select = false) {
    bool masks = x->op == &prim::kSelect && prim::is_number(x->in[2], 0);
    auto rebuilt_with = [&](std::size_t k) {
      auto in = x->in;
      in[k] = without_division(in[k], keys, by, under_select || masks);
      return in[k] ? prim::rebuilt(*x, std::move(in), x->axes) : nullptr;
    };
    auto is_row_sum = [&](const NodePtr& s, const NodePtr& e) {
      auto shifted = analysis::summed_shifted_exp(*analysis::same_values(s), e);
      return shifted && !(under_select && shifted->guarded) && common(s->axes, keys).empty();
    };
    auto divisor = [&](const NodePtr& s) {
      return under_select ? prim::select(prim::map(prim::kIsFinite, {s}, DType::boolean), s,
                                         prim::number(1, s->dtype))
                          : s;
    };
    if (x->op == &prim::kDiv && is_row_sum(x->in[1], x->in[0])) {
      by = divisor(x->in[1]);
      return x->in[0];
    }

    if (x->op == &prim::kMul)
      for (std::size_t side : {0u, 1u}) {
        auto &e = x->in[side], &f = x->in[1 - side];
        if (f->op == &prim::kDiv && prim::is_number(f->in[0], 1) && is_row_sum(f->in[1], e)) {
          by = divisor(f->in[1]);
          return e;
        }

        if (prim::is_number(f))
          if (auto y = rebuilt_with(side)) return y;
      }
    bool scales = (x->op == &prim::kDiv && prim::is_number(x->in[1])) ||
                  (x->op == &prim::kCast && is_float(x->in[0]->dtype));
    return masks ? rebuilt_with(1) : scales ? rebuilt_with(0) : nullptr;
  }
  // Returns x in f32 if it is one of these matmuls, or has one of them as a factor. Null otherwise.
  static NodePtr in_f32(const NodePtr& x, const Set& matmuls, Rewrite& known) {
    if (auto y = known.find(x.get()); y != known.end()) return y->second;
    auto& y = known[x.get()];
    OriginScope here(x->origin);
    if (matmuls.count(x.get())) return y = widened(x);
    if (x->op != &prim::kSelect && x->op != &prim::kMul && x->op != &prim::kDiv) return y;
    Nodes in = x->in;
    bool some = false;
    for (auto& operand : in)
      if (auto wide = in_f32(operand, matmuls, known)) {
        operand = wide;
        some = true;
      } else if (is_float(operand->dtype))
        operand = prim::cast(operand, DType::f32);
    if (some) y = prim::build(*x->op, std::move(in), x->axes, DType::f32);
    return y;
  }
  static Axes contracted_axes(const Node& n) {
    return without_axes(common(n.in[0]->axes, n.in[1]->axes), n.axes);
  }
  // Returns the contraction with the division of an operand moved after the sum. Null: no operand
  // has such a division.
  static NodePtr divide_after_sum(const Node& n) {
    for (std::size_t side : {0u, 1u}) {
      NodePtr by;
      auto e = without_division(n.in[side], contracted_axes(n), by);
      if (!e || !without_axes(by->axes, n.axes).empty()) continue;
      auto sum = side == 0 ? prim::contract(e, n.in[1], n.axes, by->dtype)
                           : prim::contract(n.in[0], e, n.axes, by->dtype);
      return prim::cast(prim::build(prim::kDiv, {sum, by}, n.axes, by->dtype), n.dtype);
    }
    return nullptr;
  }
  // Returns x without one of its factors. Null: x lacks the factor.
  static NodePtr without(const NodePtr& x, const Node* factor) {
    auto contains = [&](const NodePtr& y) { return Factors(y).contains(factor); };
    auto rest = [&](std::size_t k) {
      auto in = x->in;
      const bool all = Factors(in[k]).list.size() == 1;
      if (all && x->op == &prim::kMul) return prim::cast(prim::fit(in[1 - k], x->axes), x->dtype);
      in[k] = all ? prim::number(1, in[k]->dtype) : without(in[k], factor);
      return in[k] ? prim::build(*x->op, std::move(in), x->axes, x->dtype) : nullptr;
    };
    if (x->op == &prim::kMul)
      return contains(x->in[0]) ? rest(0) : contains(x->in[1]) ? rest(1) : nullptr;
    if (x->op == &prim::kSelect) return contains(x->in[1]) ? rest(1) : nullptr;
    return (x->op == &prim::kDiv || x->op == &prim::kCast) && contains(x->in[0]) ? rest(0)
                                                                                 : nullptr;
  }
  // Returns true if a select hides a NaN of this factor of x. Weighted values would expose the NaN.
  // False for a factor of the backward pass: the weighted values of its forward pass are already
  // NaN.
  static bool hides_nan(const NodePtr& x, const Node* factor, bool under_select = false) {
    if (analysis::same_values(x).get() == factor) return under_select && !factor->origin.backward;
    const bool is_select = x->op == &prim::kSelect;
    if (!is_select && x->op != &prim::kMul && x->op != &prim::kDiv && x->op != &prim::kCast)
      return false;
    return std::any_of(x->in.begin(), x->in.end(),
                       [&](auto& y) { return hides_nan(y, factor, under_select || is_select); });
  }
  // Returns a sum over keys of weights times the matmul of g and v, computed from the weighted
  // values, and adds the matmul to `summed`. Null: the sum does not have this form. For example,
  // n_q = sum_k w_qk (sum_d g_qd v_kd) becomes sum_d g_qd o_qd, where o = sum_k w_qk v_kd is in the
  // graph (first loop) or is created (below).
  NodePtr from_weighted_values(const Node& n, Set& summed) const {
    const auto keys = without_axes(n.in[0]->axes, n.axes);
    Factors terms(n.in[0]);
    for (auto& f : terms.list) {
      if (f.kind != Factor::Kind::times || f.of->op != &prim::kContract || hides_nan(n.in[0], f.of))
        continue;
      for (std::size_t side : {0u, 1u}) {
        auto &v = f.of->in[side], &g = f.of->in[1 - side];
        if (common(v->axes, keys).size() != keys.size() || !common(g->axes, keys).empty()) continue;
        // g must have a row per query; the cotangent of a sum over rows has none
        if (!without_axes(n.axes, g->axes).empty()) continue;
        for (auto& o : matmuls_)
          for (std::size_t k : {0u, 1u}) {
            bool is_weighted_values =
                o->in[k] == v && same_set(contracted_axes(*o), keys) &&
                same_set(contracted_axes(*f.of), without_axes(g->axes, n.axes));
            if (!is_weighted_values || !same_set(o->axes, g->axes) ||
                !Factors(o->in[1 - k]).is(terms, f.of))
              continue;
            summed.insert(f.of);
            return prim::contract(g, o, n.axes, n.dtype);
          }
        bool may_create =
            creates_values_ && same_set(contracted_axes(*f.of), without_axes(g->axes, n.axes));
        if (auto w = may_create ? without(n.in[0], f.of) : nullptr) {
          summed.insert(f.of);
          const auto wide = n.dtype == DType::f64 ? n.dtype : DType::f32;
          auto o = prim::contract(prim::cast(w, v->dtype), v, g->axes, wide);
          // prim::contract simplifies a contraction with constant values
          auto divided = o->op == &prim::kContract ? divide_after_sum(*o) : nullptr;
          return prim::cast(
              prim::contract(prim::cast(g, wide), divided ? divided : o, n.axes, wide), n.dtype);
        }
      }
    }
    return nullptr;
  }

  Nodes all_, matmuls_;
  const Node* index_;
  bool creates_values_;  // computes weighted values that the graph lacks
};

}  // namespace

Nodes defer_normalization(const Nodes& roots) {
  auto all = all_nodes(roots);
  auto inside = inside_regions(all);
  return DeferNormalization(std::move(all), nullptr, false).run(roots, [&](const NodePtr& n) {
    return inside.count(n.get()) > 0;
  });
}
Nodes defer_normalization(const Nodes& roots, const Nodes& level, const Node* index,
                          const Regions& regions) {
  return DeferNormalization(level, index, true).run(roots, [&](const NodePtr& n) {
    return regions.contain(n);
  });
}

}  // namespace haliax
