// One mapping shards everything: from the graph of the whole to the graph of one device, with collectives.
#pragma once
#include <map>

#include "transforms/rewrite.h"

namespace haliax {

// Which mesh axes (by number, major to minor) cut each axis, and over which a sum (or max, ...) is still pending.
struct Sharding {
  std::vector<std::pair<Name, std::vector<int>>> dims;   // by public name; an axis that is not cut is not listed
  std::map<int, Monoid> partial;
  const std::vector<int>* cut(Name) const;
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

// What moves, for reports: bytes are sent per device on a ring, for one turn of the loop it is in.
struct Move {
  const char* kind;
  std::string axes, where, loop;
  double bytes = 0, turns = 1;
};
struct Partitioned {
  Nodes roots;                       // on this device
  std::vector<Sharding> results;     // how each root is cut
  std::vector<Move> moves;
};
struct PartitionInput {
  NodePtr whole, local;
  Sharding at;
};

// `wanted`: the sharding of each root. `inputs`: the placeholders, with local ones of this device's size.
Partitioned partition(const Nodes& roots, const std::vector<Sharding>& wanted, const std::vector<PartitionInput>& inputs, const Mesh&, int device);

// The sharding that a mapping gives to axes; raises if two axes of one array are on the same mesh axis, or for an unknown mesh axis.
Sharding sharding_for(const Axes&, const Mapping&, const Mesh&, const std::string& what);
Axes local_axes(const Axes&, const Sharding&, const Mesh&, int device);
// First position and length of this device's block of an axis: ceil blocks, the last may be short.
std::pair<std::int64_t, std::int64_t> block_of(const Axis&, const std::vector<int>& cut, const Mesh&, int device);
int coordinate(const Mesh&, int device, int mesh_axis);

extern const Op kCollective;

}  // namespace haliax
