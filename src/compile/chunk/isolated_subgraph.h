// The regions of one call by themselves, to plan how they are cut.
#pragma once
#include "compile/chunk/region.h"

namespace haliax {

// The inputs are what the regions read, the roots what others read of them.
struct IsolatedSubgraph {
  Nodes roots, inputs;
  std::int64_t read = 0;  // bytes of the inputs, but for those that lie between
  // Bytes of the values that what follows reads, less those that may be gradients: they have an
  // input's axes.
  std::int64_t outside = 0;
};
// What lies between a leave and an enter of a chunked_reduce is planned with it. Between those of
// scores lie the layers behind them, which are nobody's budget: their values are given, but not
// before what they are made of is there.
IsolatedSubgraph isolated(const Nodes& roots, const Nodes& level, const Regions& regions,
                          bool of_scores);
// The roots, cut or not, of which a Program can be made: with barriers where given values wait.
Nodes waiting(const Nodes& roots);

}  // namespace haliax
