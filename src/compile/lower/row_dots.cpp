// Contractions of row with row: both operands have all axes, the result lacks the contracted ones,
//
//     y_n = sum_k a_nk b_nk
//
// This contraction is not a matrix multiplication. It is rewritten as an elementwise product and a
// sum, which fuse with the steps that compute the operands.
#include "compile/lower/rewrites.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

bool is_row_dot(const Node& n) {
  if (n.op->kind != Kind::contract || n.in.size() != 2 || n.size() == 1) return false;
  auto& a = n.in[0]->axes;
  return same_set(a, n.in[1]->axes) && without(n.axes, a).empty() && a.size() > n.axes.size();
}
NodePtr as_product_and_sum(const Node& n) {
  const bool is_16bit = is_float(n.dtype) && bytes_of(n.dtype) < 4;  // rounded once, after the sum
  const auto wide = is_16bit ? DType::f32 : n.dtype;
  auto product = prim::mul(prim::cast(n.in[0], wide), prim::cast(n.in[1], wide));
  return prim::fit(prim::cast(prim::reduce(Monoid::sum, product, n.axes), n.dtype), n.axes);
}

}  // namespace

Nodes row_dots(const Nodes& roots) {
  Rewrite to;
  OriginScope follow;
  for (auto& n : all_nodes(roots))  // older nodes first: newer ones depend on them
    if (is_row_dot(*n)) {
      follow(n->origin);
      to[n.get()] = substitute(as_product_and_sum(*n), to);
    }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace haliax
