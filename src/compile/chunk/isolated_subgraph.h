// Copies the regions of one call into a graph of their own, in which the search for tile sizes
// compiles candidates.
#pragma once
#include "compile/chunk/region.h"

namespace haliax {

// The inputs are the values that the regions read. The roots are the values of the regions that
// other nodes read.
struct IsolatedSubgraph {
  Nodes roots, inputs;
  std::int64_t input_bytes = 0;  // bytes of the inputs, without values between regions
  // Bytes of the roots that later nodes read. Results of the level do not count, nor do values that
  // may be gradients, which have the axes of an input.
  std::int64_t root_bytes = 0;
};
// Returns the subgraph of these regions. Nodes between a leave and an enter are computed between
// regions of the call, such as the forward and the backward one. The subgraph of a chunked_reduce
// contains them. The nodes between regions of scores are the layers after attention, which do not
// count against the budget. Their values are inputs, which are only available once the values that
// they are computed from have been computed.
IsolatedSubgraph isolated(const Nodes& roots, const Nodes& level, const Regions& regions,
                          bool of_scores);
// Returns the roots of a subgraph, tiled or not, in a form that can be lowered: an input that is
// only available after other values becomes a barrier on these values.
Nodes with_barriers(const Nodes& roots);

}  // namespace haliax
