// The op that moves values between the devices of a mesh. It has no rule along axes: the graph of
// one device knows no mesh.
#pragma once
#include "graph/loop.h"

namespace haliax {

// What a collective node does. Each device has a node of its own; no two are equal.
struct CollectiveSpec : Payload {
  int number = 0;  // of the call, as planned: the same on all devices; 1 is the first
  program::Collective collective = {};  // all but dims and views, which lowering knows
  std::vector<Axes> out = {};           // of the results, on this device
  std::vector<Name> along = {};         // for each array: the axis that is cut or joined
  // A ring of so many ranks (0: none): the operands are an array and this rank's block of another,
  // cut along along[0]. The result is their contraction, in `dtype`, a block at a time: `how`, an
  // exchange, hands each on to the rank before.
  int ranks = 0, rank = 0;
  DType dtype = DType::f32;
};
extern const Op kCollective;
// of a collective
inline const CollectiveSpec& collective_spec_of(const Node& n) {
  return static_cast<const CollectiveSpec&>(*n.attr.payload);
}
NodePtr make_collective(Nodes x, CollectiveSpec);
NodePtr collective_result(const NodePtr& collective, std::size_t k);

}  // namespace haliax
