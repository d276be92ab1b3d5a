// Reductions over axes, and the contraction of two arrays. An axis of an operand that the result
// lacks is reduced.
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/block_scan.h"
#include "ops/prim.h"

namespace haliax::prim {
namespace {

// Distributes the cotangent evenly over the positions that have the extreme value, as JAX does.
Nodes extreme_grad(NodeRef o, NodeRef g) {
  auto x = o->in[0];
  auto hit = cast(equal(x, o), o->dtype);
  return {mul(div(g, sum_to(hit, o->axes)), hit)};
}
// The gradient is the product of the other elements, computed without a division by zero. If one
// other element is 0, the value is 0, in a form whose own derivative is correct. If several are 0,
// the value and its derivative are 0.
Nodes prod_grad(NodeRef o, NodeRef g) {
  auto x = o->in[0];
  auto none = number(0, x->dtype), zero = equal(x, none);
  auto is_zero = cast(zero, x->dtype), zeros = select(zero, x, none);
  auto rest = select(zero, number(1, x->dtype), x);
  auto of_all = [&](NodeRef reduced) { return fit(reduced, x->axes); };
  // number of zeros among the other elements
  auto others = sub(of_all(sum_to(is_zero, o->axes)), is_zero);
  // product of the nonzero elements among them
  auto product = div(of_all(reduce(Monoid::prod, rest, o->axes)), rest);
  auto vanishing = mul(sub(of_all(sum_to(zeros, o->axes)), zeros), product);
  return {mul(g, select(equal(others, none), product,
                        select(equal(others, number(1, x->dtype)), vanishing, none)))};
}

// A sum over axes that both factors of an elementwise product have, where each factor has axes that
// the other one lacks,
//
//     y_nm = sum_k a_nk b_mk
//
// may have far more terms than the factors have elements. Such a sum is computed as a contraction,
// if there are at least kFarMore terms per element of the factors, which 16 x 16 rows reach. Below
// this ratio a plain sum is as fast. Returns null for other sums, and for dtypes in which the terms
// would be rounded before the sum.
constexpr std::int64_t kFarMore = 8;
NodePtr as_contraction(NodeRef x, const Axes& remaining) {
  if (x->op != &kMul || (x->dtype != DType::f32 && x->dtype != DType::f64)) return nullptr;
  auto &a = x->in[0]->axes, &b = x->in[1]->axes;
  auto both = common(a, b);
  const bool larger = x->size() >= kFarMore * (x->in[0]->size() + x->in[1]->size());
  return larger && without(without(x->axes, remaining), both).empty()
             ? contract(x->in[0], x->in[1], remaining)
             : nullptr;
}

}  // namespace

const Op kSum{.name = "sum",
              .kind = Kind::reduce,
              .code = Code::reduce_sum,
              .linear = Linear::one,
              .grad = [](NodeRef, NodeRef g) { return Nodes{g}; }};
const Op kProd{.name = "prod", .kind = Kind::reduce, .code = Code::reduce_prod, .grad = prod_grad};
const Op kMax{.name = "max", .kind = Kind::reduce, .code = Code::reduce_max, .grad = extreme_grad};
const Op kMin{.name = "min", .kind = Kind::reduce, .code = Code::reduce_min, .grad = extreme_grad};
const Op kArgmax{.name = "argmax",
                 .kind = Kind::reduce,
                 .code = Code::reduce_argmax,
                 .blockwise = extreme_blockwise,
                 .block_scan = extreme_block_scan};
const Op kArgmin{.name = "argmin",
                 .kind = Kind::reduce,
                 .code = Code::reduce_argmin,
                 .blockwise = extreme_blockwise,
                 .block_scan = extreme_block_scan};
// The gradient requests the axis order of the primal. A contraction writes any order at no cost, so
// the gradient of a weight needs no transposed copy.
const Op kContract{
    .name = "dot", .kind = Kind::contract, .linear = Linear::one, .grad = [](NodeRef o, NodeRef g) {
      auto &a = o->in[0], &b = o->in[1];
      // For 16-bit operands of an f32 result, the cotangent is cast to 16 bits. The operands, such
      // as weights, are used without a copy.
      auto times = [&](NodeRef x) {
        return bytes_of(x->dtype) < bytes_of(g->dtype) ? std::pair{cast(g, x->dtype), x}
                                                       : std::pair{g, cast(x, g->dtype)};
      };
      auto [ga, y] = times(b);
      auto [gb, x] = times(a);
      return Nodes{contract(ga, y, a->axes, a->dtype), contract(gb, x, b->axes, b->dtype)};
    }};

static const Op& reduction(Monoid m) {
  return m == Monoid::sum ? kSum : m == Monoid::prod ? kProd : m == Monoid::max ? kMax : kMin;
}
bool reduces(const Node& n, Monoid m) { return n.op == &reduction(m); }
NodePtr reduce(Monoid m, NodeRef x, const Axes& remaining) {
  auto reduced = without(x->axes, remaining);
  if (reduced.empty()) return fit(x, remaining);
  if (auto contraction = m == Monoid::sum ? as_contraction(x, remaining) : nullptr)
    return contraction;
  const Op& op = reduction(m);
  auto& from = stripped(x);
  // Number of equal terms, if the sum includes axes along which x is broadcast. For example, the
  // sum over a and b (size 3) of an array (a) is 3 times its sum over a.
  auto times = axis_size(without(reduced, from->axes));
  if (times == 0 && m == Monoid::sum) return filled(0, x->dtype, remaining);
  if (from == x || (times != 1 && m == Monoid::prod)) return make(op, {x}, remaining, x->dtype);
  // Reduces the operand of a broadcast, so that the broadcast is never stored.
  auto once = m == Monoid::sum && times != 1 ? scale(from, double(times)) : from;
  return fit(reduce(m, once, common(remaining, from->axes)), remaining);
}
const Op& pairwise(Monoid m) {
  return m == Monoid::sum    ? kAdd
         : m == Monoid::prod ? kMul
         : m == Monoid::max  ? kMaximum
                             : kMinimum;
}
NodePtr sum(NodeRef x, const Axes& over) { return reduce(Monoid::sum, x, without(x->axes, over)); }
NodePtr argreduce(bool largest, NodeRef x, const Axes& remaining, const Axes& over) {
  return make(largest ? kArgmax : kArgmin, {x}, remaining, position_dtype(axis_size(over)),
              ReduceAttr{names_of(over)}.attr());
}

NodePtr contract(NodeRef a, NodeRef b, const Axes& remaining) {
  return contract(a, b, remaining, promote(a->dtype, b->dtype));
}
NodePtr contract(NodeRef a, NodeRef b, const Axes& remaining, DType out) {
  auto x = stripped(a), y = stripped(b);
  auto full = joined(a->axes, b->axes), rest = joined(x->axes, y->axes),
       inner = common(remaining, rest);
  // Number of times that a broadcast repeats each term.
  auto times = axis_size(without(without(full, remaining), rest));
  if (times == 0) return filled(0, out, remaining);
  if (times != 1) return fit(scale(contract(x, y, inner, out), double(times)), remaining);
  if (without(rest, inner).empty() && out == x->dtype && out == y->dtype)
    return fit(mul(x, y), remaining);
  // A scalar operand is a factor of the sum: only the other operand is summed.
  if (x->axes.empty() || y->axes.empty()) {
    auto &one = x->axes.empty() ? x : y, &other = x->axes.empty() ? y : x;
    return fit(mul(cast(one, out), reduce(Monoid::sum, cast(other, out), inner)), remaining);
  }
  return fit(make(kContract, {x, y}, inner, out), remaining);
}

NodePtr sum_to(NodeRef x, const Axes& axes) {
  return fit(reduce(Monoid::sum, x, common(axes, x->axes)), axes);
}

const bool folds_registered =
    register_ops({&kSum, &kProd, &kMax, &kMin, &kArgmax, &kArgmin, &kContract});

}  // namespace haliax::prim
