// The op that communicates between the devices of a mesh. It has no rule along axes: it only occurs
// in the graph of one device, which has no mesh.
#pragma once
#include "graph/loop.h"

namespace haliax {

// The communication that a collective node performs. Each device has a node of its own; no two
// nodes are equal.
struct CollectiveSpec : Payload {
  int number = 0;                       // number in the plan, equal on all devices; the first is 1
  program::Collective collective = {};  // complete but for dims and views, which lowering fills in
  std::vector<Axes> out = {};           // axes of the results on this device
  std::vector<Name> along = {};         // per array: the axis that is split or joined
  // A ring of `ranks` devices (0: no ring). The operands are an array and this rank's block of
  // another array, which is sharded along along[0]. The result is their contraction in `dtype`,
  // computed block by block: `collective` (CollectiveKind::exchange) sends each block to the rank
  // before.
  int ranks = 0, rank = 0;
  DType dtype = DType::f32;
  // Other collectives only communicate.
  bool is_ring() const { return ranks > 0; }
};
extern const Op kCollective;
// `n` is a collective.
inline const CollectiveSpec& collective_spec_of(const Node& n) {
  return static_cast<const CollectiveSpec&>(*n.attr.payload);
}
NodePtr make_collective(Nodes x, CollectiveSpec);
NodePtr collective_result(NodeRef collective, std::size_t k);

}  // namespace haliax
