// Depthwise convolutions: contractions of windows with a weight that has one number per kernel
// position and channel,
//
//     y_ct = sum over k of x_c[t + k] w_ck
//
// The matmuls of these contractions have one row or one column. They are rewritten as a sum of
// elementwise products of slices, which fuses with its readers.
#include "compile/lower/rewrites.h"
#include "ops/window.h"
#include "transforms/rewrite.h"

namespace haliax {

Nodes window_sums(const Nodes& roots) {
  Rewrite to;
  OriginScope follow;
  for (auto& n : all_nodes(roots)) {  // older nodes first: newer ones depend on them
    if (n->op->kind != Kind::contract) continue;
    follow(n->origin);
    if (auto sum = prim::sum_over_positions(*n)) to[n.get()] = substitute(sum, to);
  }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace haliax
