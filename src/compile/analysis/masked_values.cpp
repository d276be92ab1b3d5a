#include "compile/analysis/masked_values.h"

#include <algorithm>
#include <optional>

#include "compile/analysis/masks.h"
#include "compile/analysis/ranges.h"
#include "compile/analysis/softmax.h"
#include "graph/traversal.h"
#include "ops/attr.h"

namespace haliax::analysis {
namespace {

using namespace prim;

// The most terms of a sum of squares whose rounding error in f32 is less than 1 %.
constexpr std::int64_t kMaxSquares = 1 << 16;
// exp(x) and sigmoid(x) are 0 below the logarithm of half the least positive number.
constexpr double kExpUnderflow = -104, kExpUnderflowF64 = -746;

// Limits of a value where a mask is false. They lack the axis of the mask.
struct Limits {
  NodePtr low, high;
  bool masked = false;  // the value is computed from the mask
};

// Computes values at the positions of an axis where a mask is false.
class MaskedValue {
 public:
  // `index`: only in iterations in which the mask is false everywhere, see value_if_never_true.
  MaskedValue(const Node* mask, Name axis, Nodes& if_zero, const Node* index = nullptr)
      : mask_(mask), axis_(axis), index_(index), if_zero_(if_zero) {}

  NodePtr of(const NodePtr& n) {
    if (n.get() == mask_) return number(0, DType::boolean);
    const bool has_axis = has(n->axes, axis_);
    if (!has_axis && !(index_ && n->varies_with(index_))) return n;
    if (auto found = values_.find(n.get()); found != values_.end()) return found->second;
    return values_[n.get()] = has_axis ? with_axis(n) : without_axis(n);
  }
  // Returns the operand that a select reads where the mask is false. Null: not known.
  const NodePtr* selected(const Node& n) {
    if (!selects_operand(n)) return nullptr;
    auto condition = of(n.in[0]);
    return condition && is_number(condition) ? &n.in[is_number(condition, 0) ? 2 : 1] : nullptr;
  }

 private:
  void require_zero(const NodePtr& x) {
    if (!is_number(x, 0) && !holds(if_zero_, x)) if_zero_.push_back(x);
  }
  // Returns the result of n, which is 0 if x is.
  NodePtr zero_if(const Node& n, const NodePtr& x) {
    require_zero(x);
    return number(0, n.dtype);
  }

  // ---- values with the axis ----
  NodePtr with_axis(const NodePtr& node) {
    auto& n = *node;
    if (index_ && n.op->kind == Kind::contract) return batched_matmul(n);
    if (!is_elementwise(n)) return nullptr;
    if (is_mask(node)) return number(1, DType::boolean);  // the negation of the mask
    if (n.op->kind != Kind::map) return of(n.in[0]);
    if (auto* operand = selected(n)) return of(*operand);
    Nodes in;
    Axes axes;
    bool zeros = !n.in.empty();
    for (std::size_t k = 0; k < n.in.size(); ++k) {
      auto x = of(n.in[k]);
      const bool zero = x && is_number(x, 0);
      auto how = zero_in(n, k);
      if (zero && how != Linear::no && how != Linear::all) return number(0, n.dtype);
      zeros &= zero && how == Linear::all;
      in.push_back(x);
    }
    if (zeros) return number(0, n.dtype);
    for (auto& x : in) {
      if (!x) return underflow(node);
      axes = joined(axes, x->axes);
    }
    if (auto constant = constant_mask(n, in)) return number(*constant, DType::boolean);
    if (underflows(n) && !is_number(in[0]))
      if (auto zero = underflow(node)) return zero;
    return rebuilt(n, std::move(in), axes);
  }
  // A matmul that keeps the axis is 0 if an operand is 0 along the entire axis. Prefers an operand
  // that is the number 0; otherwise the caller tests one at run time (`if_zero`).
  NodePtr batched_matmul(const Node& n) {
    NodePtr operand;
    for (auto& x : n.in) {
      auto value = has(x->axes, axis_) ? of(x) : nullptr;
      if (value && (!operand || is_number(value, 0))) operand = value;
    }
    return operand ? zero_if(n, operand) : nullptr;
  }
  // Returns true for ops whose result is 0 if their operand is low.
  static bool underflows(const Node& n) {
    return (n.op->code == Code::exp || n.op->code == Code::sigmoid) && is_float(n.dtype);
  }
  // Returns 0 for exp of a low operand, such as scores to which -1e9 is added.
  NodePtr underflow(const NodePtr& n) {
    if (!underflows(*n)) return nullptr;
    auto x = limits(n->in[0]);
    if (!x || !x->masked) return nullptr;
    // Compares the operand: exp of a limit that is not low may be inf.
    const double least = n->dtype == DType::f64 ? kExpUnderflowF64 : kExpUnderflow;
    require_zero(logical_not(less_equal(x->high, number(least, n->dtype))));
    return number(0, n->dtype);
  }
  bool is_mask(const NodePtr& n) const {  // the mask or its negation
    return n.get() == mask_ || (mask_->op->code == Code::logical_not && mask_->in[0] == n);
  }
  bool depends_on_mask(const NodePtr& n) {
    if (is_mask(n)) return true;
    if (!has(n->axes, axis_) || !is_elementwise(*n)) return false;
    if (auto found = depends_.find(n.get()); found != depends_.end()) return found->second;
    const bool depends =
        std::any_of(n->in.begin(), n->in.end(), [&](auto& x) { return depends_on_mask(x); });
    return depends_[n.get()] = depends;
  }

  // ---- limits of values with the axis ----
  std::optional<Limits> limits(const NodePtr& n) {
    if (auto found = limits_.find(n.get()); found != limits_.end()) return found->second;
    auto computed = compute_limits(n);
    return limits_[n.get()] = computed;
  }
  std::optional<Limits> compute_limits(const NodePtr& n) {
    if (auto value = of(n)) return Limits{value, value, depends_on_mask(n)};
    if (n->op->kind == Kind::contract) return matmul_limits(*n);
    if (!is_float(n->dtype)) return integer_limits(n);
    if (!is_elementwise(*n) || !has(n->axes, axis_)) return {};
    if (n->op->kind != Kind::map) return limits(n->in[0]);
    std::vector<Limits> in;
    for (std::size_t k = selects_operand(*n) ? 1 : 0; k < n->in.size(); ++k) {
      auto x = limits(n->in[k]);
      if (!x) return {};
      in.push_back(*x);
    }
    auto out = op_limits(*n, in);
    if (out) out->masked = std::any_of(in.begin(), in.end(), [](auto& x) { return x.masked; });
    return out;
  }
  std::optional<Limits> integer_limits(const NodePtr& n) {
    auto& axis = *find(*n, axis_);
    auto range = integer_range(n, {{axis, axis.size}});
    if (!range) return {};
    auto scalar = [&](const NodePtr& x) { return cast(reduce(Monoid::max, x, {}), n->dtype); };
    return Limits{scalar(range->low), scalar(range->high), depends_on_mask(n)};
  }
  // The op computes both limits in its own dtype. Rounding preserves their order.
  static std::optional<Limits> op_limits(const Node& n, const std::vector<Limits>& in) {
    auto computed = [&](Nodes operands) { return map(*n.op, std::move(operands), n.dtype); };
    switch (n.op->code) {
      case Code::select:
        return Limits{min(in[0].low, in[1].low), max(in[0].high, in[1].high)};
      case Code::cast:
      case Code::tanh:
      case Code::sigmoid:
      case Code::exp:
        return Limits{computed({in[0].low}), computed({in[0].high})};
      case Code::abs:
        return Limits{number(0, n.dtype), max(neg(in[0].low), in[0].high)};
      case Code::neg:
        return Limits{computed({in[0].high}), computed({in[0].low})};
      case Code::add:
      case Code::max:
      case Code::min:
        return Limits{computed({in[0].low, in[1].low}), computed({in[0].high, in[1].high})};
      case Code::sub:
        return Limits{computed({in[0].low, in[1].high}), computed({in[0].high, in[1].low})};
      case Code::mul:
      case Code::div:
        for (std::size_t k : {0u, 1u}) {  // a factor or divisor that is constant along the axis
          if (in[k].low != in[k].high || (k == 0 && n.op->code == Code::div)) continue;
          auto with = [&](const NodePtr& x) {
            return k == 1 ? computed({x, in[1].low}) : computed({in[0].low, x});
          };
          auto a = with(in[1 - k].low), b = with(in[1 - k].high);
          return Limits{min(a, b), max(a, b)};
        }
        return {};
      default:
        return {};
    }
  }
  // The absolute value of a dot product is at most the product of the lengths of both vectors
  // (Cauchy-Schwarz inequality). One operand has the axis.
  std::optional<Limits> matmul_limits(const Node& n) {
    if (n.in.size() != 2 || !is_float(n.dtype) ||
        has(n.in[0]->axes, axis_) == has(n.in[1]->axes, axis_))
      return {};
    const auto summed = haliax::without(joined(n.in[0]->axes, n.in[1]->axes), n.axes);
    const bool in_both = haliax::without(summed, common(n.in[0]->axes, n.in[1]->axes)).empty();
    if (!in_both || axis_size(summed) > kMaxSquares) return {};
    NodePtr squares;
    for (auto x : n.in) {
      // The full axis, so that the squares are computed once for all iterations.
      for (auto part = slice_of(*x); part && part->axis == axis_ && !part->drop;
           part = slice_of(*x))
        x = x->in[0];
      auto wide = bytes_of(x->dtype) < 4 ? cast(x, DType::f32) : x;
      auto lengths = reduce(Monoid::sum, square(wide), haliax::without(x->axes, summed));
      if (auto* a = find(*lengths, axis_))
        lengths = reduce(Monoid::max, lengths, haliax::without(lengths->axes, {*a}));
      squares = squares ? mul(squares, lengths) : lengths;
    }
    auto length = cast(scale(sqrt(squares), 1.02), n.dtype);
    return Limits{neg(length), length};
  }

  // ---- values without the axis that are computed from values with the axis ----
  NodePtr without_axis(const NodePtr& n) {
    const auto kind = n->op->kind;
    if (kind != Kind::map && is_elementwise(*n)) {
      auto x = of(n->in[0]);
      return x == n->in[0] ? n : x;
    }
    if (kind == Kind::map) return map_without_axis(n);
    if (kind == Kind::reduce && has(n->in[0]->axes, axis_)) return reduced(*n);
    if (kind == Kind::contract && has(n->in[0]->axes, axis_) && has(n->in[1]->axes, axis_)) {
      for (auto& operand : n->in)
        if (auto x = of(operand)) return zero_if(*n, x);
      return nullptr;
    }
    for (auto& x : n->in)
      if (x && of(x) != x) return nullptr;
    return n;
  }
  NodePtr map_without_axis(const NodePtr& n) {
    Nodes in;
    for (auto& x : n->in) in.push_back(of(x));
    if (in == n->in) return n;
    if (auto operand = larger_operand(*n, in)) return operand;
    const bool known = std::find(in.begin(), in.end(), nullptr) == in.end();
    return known ? rebuilt(*n, std::move(in), n->axes) : nullptr;
  }
  NodePtr reduced(const Node& n) {
    auto& operand = *n.in[0];
    auto x = of(n.in[0]);
    auto rule = along(n, 0, axis_);
    if (!x || rule.way != Along::Way::fold) return nullptr;
    if (rule.monoid == Monoid::sum) return zero_if(n, x);
    if (rule.monoid != Monoid::max && rule.monoid != Monoid::min) return nullptr;
    auto axes = haliax::without(operand.axes, {*find(operand, axis_)});
    return reduce(rule.monoid, fit(x, axes), n.axes);
  }
  // The maximum of a known value and of a maximum along the axis is the known value, if masked
  // values are at most as large.
  NodePtr larger_operand(const Node& n, const Nodes& in) {
    if (n.op->code != Code::max) return nullptr;
    for (std::size_t k : {0u, 1u}) {
      auto& largest = same_values(n.in[k]);
      if (in[k] || !in[1 - k] || largest->op != &kMax || !has(largest->in[0]->axes, axis_))
        continue;
      auto x = limits(largest->in[0]);
      if (!x || !x->masked) continue;
      auto high = reduce(Monoid::max, x->high, common(x->high->axes, largest->axes));
      require_zero(logical_not(less_equal(high, in[1 - k])));
      return fit(in[1 - k], n.axes);
    }
    return nullptr;
  }

  const Node* mask_;
  Name axis_;
  const Node* index_;
  Nodes& if_zero_;
  std::unordered_map<const Node*, NodePtr> values_;  // null: not known
  std::unordered_map<const Node*, std::optional<Limits>> limits_;
  std::unordered_map<const Node*, bool> depends_;
};

// Finds how an elementwise value reads a node where a mask is false.
class ReadsWhereFalse {
 public:
  ReadsWhereFalse(const Node* read, const Node* mask, Name axis, Nodes& if_zero)
      : read_(read), axis_(axis), if_zero_(if_zero), value_(mask, axis, if_zero) {}

  MaskedReads of(const NodePtr& n) {
    if (n.get() == read_) return MaskedReads::all;
    if (!has(n->axes, axis_) || !is_elementwise(*n)) return MaskedReads::nothing;
    if (auto found = reads_.find(n.get()); found != reads_.end()) return found->second;
    if (auto* operand = value_.selected(*n)) return reads_[n.get()] = of(*operand);
    auto out = MaskedReads::nothing;
    for (std::size_t k = 0; k < n->in.size(); ++k) out = std::max(out, by_operand(*n, k));
    // The value where the mask is false is known. The op still reads an element there, which is 0
    // if its block is skipped.
    if (out == MaskedReads::all && value_.of(n)) out = MaskedReads::zero;
    return reads_[n.get()] = out;
  }

 private:
  MaskedReads by_operand(const Node& n, std::size_t k) {
    auto out = of(n.in[k]);
    for (std::size_t o = 0; out == MaskedReads::all && o < n.in.size(); ++o) {
      const bool multiplies =
          o != k && zero_in(n, o) == Linear::one && zero_in(n, k) == Linear::one;
      if (!multiplies || !has(n.in[o]->axes, axis_)) continue;
      auto factor = value_.of(n.in[o]);
      if (!factor) continue;
      out = MaskedReads::zero;
      if (!is_number(factor, 0)) if_zero_.push_back(factor);
    }
    return out;
  }

  const Node* read_;
  Name axis_;
  Nodes& if_zero_;
  MaskedValue value_;
  std::unordered_map<const Node*, MaskedReads> reads_;
};

}  // namespace

NodePtr value_where_false(const NodePtr& x, const Node* mask, Name axis, Nodes& if_zero) {
  return MaskedValue(mask, axis, if_zero).of(x);
}
NodePtr value_if_never_true(const NodePtr& x, const Node* mask, Name axis, const Node* index,
                            Nodes& if_zero) {
  return MaskedValue(mask, axis, if_zero, index).of(x);
}
MaskedReads reads_where_false(const NodePtr& x, const Node* s, const Node* mask, Name axis,
                              Nodes& if_zero) {
  return ReadsWhereFalse(s, mask, axis, if_zero).of(x);
}

}  // namespace haliax::analysis
