// Matmuls that skip blocks which a mask makes 0, or which no op reads. An example is attention
// under a causal mask, which needs about half of the blocks of the scores.
#pragma once
#include "program/program.h"
#include "transforms/rewrite.h"

namespace haliax {

// The contraction of in[0] and in[1] without some blocks. in[2] has a flag per block along the axes
// `blocked`; blocks whose flag is false are skipped. If such an axis is contracted, a skipped block
// would add 0. Else a skipped block is a part of the result that is 0 (`zero`) or that no op reads.
extern const Op kMaskedMatmul;
struct MaskedMatmulAttr {
  struct BlockedAxis {
    Name axis;
    std::int64_t size = 1;  // positions of a block
  };
  std::vector<BlockedAxis> blocked = {};
  bool zero = false;  // if the result has the axes: it is 0 in skipped blocks, else unread there
  // true: one matmul whose kernel skips the blocks; false: a loop with one matmul per block
  bool in_kernel = true;
  Attr attr() const {
    Attr a{.ints = {zero, in_kernel}};
    for (auto& s : blocked) {
      a.names.push_back(s.axis);
      a.ints.push_back(s.size);
    }
    return a;
  }
  static MaskedMatmulAttr of(const Node& n) {
    MaskedMatmulAttr m{.zero = n.attr.ints[0] != 0, .in_kernel = n.attr.ints[1] != 0};
    for (std::size_t k = 0; k < n.attr.names.size(); ++k)
      m.blocked.push_back({n.attr.names[k], n.attr.ints[k + 2]});
    return m;
  }
};
// The axes of a contraction by their role: out[batch, m, n] = sum over k of a[batch, m, k] *
// b[batch, k, n]. For example, given axes [h, q, d] and [h, k, d] and the result [h, q, k], batch
// is [h], m is [q], n is [k] (keys), and k is [d].
struct MatmulAxes {
  Axes batch = {}, m = {}, n = {}, k = {};
  MatmulAxes(const Axes& a, const Axes& b, const Axes& out);
};
// Returns roots with the same values, in which contractions under a mask skip blocks. The axes that
// are split into blocks depend on the contraction:
//
// - In an iteration of a loop over tiles of scores: keys.
// - Outside of such loops, for matrices: keys and queries, if the machine's kernels skip blocks.
// - Outside of such loops, for one query: keys, under the same condition.
Nodes masked_matmuls(const Nodes& roots, const program::Machine& machine);

}  // namespace haliax
