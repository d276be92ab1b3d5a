// Expert parallelism: how tokens and experts are split over the devices of a mesh.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "haliax/mesh.h"
#include "haliax/array.h"

namespace haliax::nn {

// The axes of tokens, split so that each device has tokens of its own. An axis is split into a part
// for the mesh axes that shard it, a part for the devices of the experts, and the rest.
struct ExpertParallel {
  Axis sender, receiver;    // the devices of the experts, as axes of sent and received arrays
  Axis experts;             // the experts of one device
  std::vector<Axes> parts;  // per axis of tokens: its parts, in order
  Axes local;               // parts that are not sharded
  Mapping sent, received;   // with the sender and with the receiver; neither has the experts

  // Splits the axes of tokens of x. The parts that are not sharded become the axis Token.
  NamedArray split(const NamedArray& x, const Axes& tokens, const Axis& Token) const;
  NamedArray joined(const NamedArray& x, const Axes& tokens, const Axis& Token) const;
  std::int64_t local_tokens() const;
};
// Returns the split by the mapping in scope. Empty: the mapping does not shard the experts, the
// devices do not divide the experts or the tokens, or the features are on the same mesh axes.
std::optional<ExpertParallel> expert_parallel(const Axis& Experts, const Axes& tokens,
                                              const Axes& features);

}  // namespace haliax::nn
