// The axes along which the regions of a call can be tiled, besides the axes that the call requests.
#pragma once
#include "compile/chunk/region.h"

namespace haliax {

// The regions of a call in an isolated subgraph with these roots.
class RegionAxes {
 public:
  RegionAxes(const ChunkKey& call, const Nodes& roots);
  // Returns the region along this axis, if the regions are tiled along it as well. None: they
  // cannot be tiled along the axis.
  std::optional<Region> along(const ChunkKey& axis) const;
  // Returns the longest axis of the largest value of the regions, other than the tiled axes of the
  // call. For example, given logits (tokens, vocab) in chunks of tokens, returns vocab. None if the
  // regions contain a loop.
  std::optional<ChunkKey> longest_untiled_axis() const;
  // Returns the longest axis of the keys of scores that is divisible by `blocks`. None if there is
  // none, or if the regions cannot be tiled along it.
  std::optional<ChunkKey> longest_keys(int blocks) const;
  // Returns the axes along which positions of scores are independent, such as heads and the
  // examples of a batch, except the tiled axes of the call.
  std::vector<ChunkKey> independent() const;
  // Returns the largest value of the regions, such as the scores. Null: there is none.
  const Node* widest() const;

 private:
  ChunkKey key(const Axis&, int blocks) const;
  // Returns the axes of keys: those along which a query takes the maximum of its scores.
  Axes key_axes() const;

  ChunkKey call_;
  Nodes roots_, level_;
  Regions regions_;
};

}  // namespace haliax
