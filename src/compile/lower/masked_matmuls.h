// Products of which masks leave blocks out.
#pragma once
#include "program/program.h"
#include "transforms/rewrite.h"

namespace haliax {

// in[0] x in[1], as a contraction, but for the blocks along these axes whose flag in in[2] is
// false: what they would add is 0, or where the result has all of the axes nobody reads them.
extern const Op kMaskedMatmul;
struct MaskedMatmulAttr {
  struct Grain {
    Name axis;
    std::int64_t size = 1;  // positions of a block
  };
  std::vector<Grain> sides = {};
  bool zero = false;      // where the result has the axes: it is 0 in those blocks
  bool in_kernel = true;  // one product that leaves them out itself; else one for each block
  Attr attr() const {
    Attr a{.ints = {zero, in_kernel}};
    for (auto& s : sides) {
      a.names.push_back(s.axis);
      a.ints.push_back(s.size);
    }

    return a;
  }
  static MaskedMatmulAttr of(const Node& n) {
    MaskedMatmulAttr m{.zero = n.attr.ints[0] != 0, .in_kernel = n.attr.ints[1] != 0};
    for (std::size_t k = 0; k < n.attr.names.size(); ++k)
      m.sides.push_back({n.attr.names[k], n.attr.ints[k + 2]});
    return m;
  }
};
// The axes of a product by what they are to its matrices: of each of a batch (m, n) = sum over k of
// (m, k) (k, n).
struct MatmulAxes {
  Axes batch = {}, m = {}, n = {}, k = {};
  MatmulAxes(const Axes& a, const Axes& b, const Axes& out);
};
// The same values, from such products: of the scores of attention under a causal mask, say. In
// turns over chunks of scores keys go in blocks; of products of whole arrays queries, too, if the
// machine's leave out blocks themselves; keys alone, where there is one query.
Nodes masked_matmuls(const Nodes& roots, const program::Machine& machine);

}  // namespace haliax
