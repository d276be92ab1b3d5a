// Products of which masks leave blocks out.
#pragma once
#include "transforms/rewrite.h"

namespace haliax {

// in[0] x in[1], as a contraction, but for the blocks along an axis whose flag in in[2] is false: what they would add is
// 0, or where the result has that axis nobody reads them.
extern const Op kMaskedProduct;
struct MaskedAttr {
  Name axis;
  std::int64_t block = 1;   // positions
  bool zero = false;        // where the result has the axis: it is 0 in those blocks
  Attr attr() const { return {.names = {axis}, .ints = {block, zero}}; }
  static MaskedAttr of(const Node& n) { return {n.attr.names[0], n.attr.ints[0], n.attr.ints[1] != 0}; }
};
// The same values, from such products, in loops over chunks: of the scores of attention under a causal mask, say.
Nodes masked_products(const Nodes& roots);

}  // namespace haliax
