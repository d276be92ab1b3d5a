// Folds over axes, and the product of two arrays summed over axes. An axis of an operand that the
// result lacks is folded away.
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/block_scan.h"
#include "ops/prim.h"

namespace haliax::prim {
namespace {

// Spreads the cotangent evenly over the positions that hold the extreme value, as JAX does.
Nodes extreme_grad(G o, G g) {
  auto x = o->in[0];
  auto hit = cast(equal(x, o), o->dtype);
  return {mul(div(g, sum_to(hit, o->axes)), hit)};
}
// The product of the others, without dividing by zero: with one zero among them it is 0, written so
// that its own derivative is right; with more, 0 twice over.
Nodes prod_grad(G o, G g) {
  auto x = o->in[0];
  auto none = number(0, x->dtype), zero = equal(x, none);
  auto is_zero = cast(zero, x->dtype), zeros = select(zero, x, none);
  auto rest = select(zero, number(1, x->dtype), x);
  auto others = sub(sum_to(is_zero, o->axes), is_zero);           // how many of them are zeros
  auto product = div(reduce(Monoid::prod, rest, o->axes), rest);  // of those that are not
  auto vanishing = mul(sub(sum_to(zeros, o->axes), zeros), product);
  return {mul(g, select(equal(others, none), product,
                        select(equal(others, number(1, x->dtype)), vanishing, none)))};
}

// Of a sum over axes that both factors of a product have, where each has axes that the other lacks,
//
//     y_nm = sum_k a_nk b_mk
//
// there may be far more products than factors: it is a contraction. Null: it is no such sum, or the
// products are rounded before they are summed.
constexpr std::int64_t kFarMore = 8;  // below that a sum is as fast: of some 16 rows by 16
NodePtr as_contraction(G x, const Axes& kept) {
  if (x->op != &kMul || (x->dtype != DType::f32 && x->dtype != DType::f64)) return nullptr;
  auto &a = x->in[0]->axes, &b = x->in[1]->axes;
  auto both = common(a, b);
  const bool larger = x->size() >= kFarMore * (x->in[0]->size() + x->in[1]->size());
  return larger && without(without(x->axes, kept), both).empty()
             ? contract(x->in[0], x->in[1], kept)
             : nullptr;
}

}  // namespace

const Op kSum{.name = "sum",
              .kind = Kind::reduce,
              .code = Code::reduce_sum,
              .linear = Linear::one,
              .grad = [](G, G g) { return Nodes{g}; }};
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
// Asking for the primal's axis order costs a contraction nothing: no transposed copy of a weight's
// gradient.
const Op kContract{
    .name = "dot", .kind = Kind::contract, .linear = Linear::one, .grad = [](G o, G g) {
      auto &a = o->in[0], &b = o->in[1];
      // Narrow operands of a wide result are multiplied as they are: the cotangent is cast, no copy
      // of a weight is.
      auto times = [&](G x) {
        return bytes_of(x->dtype) < bytes_of(g->dtype) ? std::pair{cast(g, x->dtype), x}
                                                       : std::pair{g, cast(x, g->dtype)};
      };
      auto [ga, y] = times(b);
      auto [gb, x] = times(a);
      return Nodes{contract(ga, y, a->axes, a->dtype), contract(gb, x, b->axes, b->dtype)};
    }};

NodePtr reduce(Monoid m, G x, const Axes& kept) {
  auto folded = without(x->axes, kept);
  if (folded.empty()) return fit(x, kept);
  if (auto product = m == Monoid::sum ? as_contraction(x, kept) : nullptr) return product;
  const Op& op = m == Monoid::sum    ? kSum
                 : m == Monoid::prod ? kProd
                 : m == Monoid::max  ? kMax
                                     : kMin;
  auto& from = stripped(x);
  // how many equal terms a sum over axes that a broadcast made has
  auto times = axis_size(without(folded, from->axes));
  if (times == 0 && m == Monoid::sum) return filled(0, x->dtype, kept);
  if (from == x || (times != 1 && m == Monoid::prod)) return make(op, {x}, kept, x->dtype);
  // Never store a broadcast in order to fold it.
  auto once = m == Monoid::sum && times != 1 ? scale(from, double(times)) : from;
  return fit(reduce(m, once, common(kept, from->axes)), kept);
}
const Op& pairwise(Monoid m) {
  return m == Monoid::sum    ? kAdd
         : m == Monoid::prod ? kMul
         : m == Monoid::max  ? kMaximum
                             : kMinimum;
}
NodePtr sum(G x, const Axes& over) { return reduce(Monoid::sum, x, without(x->axes, over)); }
NodePtr argreduce(bool largest, G x, const Axes& kept, const Axes& over) {
  return make(largest ? kArgmax : kArgmin, {x}, kept, position_dtype(axis_size(over)),
              ReduceAttr{names_of(over)}.attr());
}

NodePtr contract(G a, G b, const Axes& kept) {
  return contract(a, b, kept, promote(a->dtype, b->dtype));
}
NodePtr contract(G a, G b, const Axes& kept, DType out) {
  auto x = stripped(a), y = stripped(b);
  auto whole = joined(a->axes, b->axes), rest = joined(x->axes, y->axes),
       inner = common(kept, rest);
  // how often a broadcast repeats each term
  auto times = axis_size(without(without(whole, kept), rest));
  if (times == 0) return filled(0, out, kept);
  if (times != 1) return fit(scale(contract(x, y, inner, out), double(times)), kept);
  if (without(rest, inner).empty() && out == x->dtype && out == y->dtype)
    return fit(mul(x, y), kept);
  // A number, or an array that only some terms of the sum need, is a factor: sum the other one
  // alone.
  if (x->axes.empty() || y->axes.empty()) {
    auto &one = x->axes.empty() ? x : y, &other = x->axes.empty() ? y : x;
    return fit(mul(cast(one, out), reduce(Monoid::sum, cast(other, out), inner)), kept);
  }
  return fit(make(kContract, {x, y}, inner, out), kept);
}

NodePtr sum_to(G x, const Axes& axes) {
  return fit(reduce(Monoid::sum, x, common(axes, x->axes)), axes);
}

const bool folds_registered =
    register_ops({&kSum, &kProd, &kMax, &kMin, &kArgmax, &kArgmin, &kContract});

}  // namespace haliax::prim
