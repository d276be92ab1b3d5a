// From one sharding of a value to another. Out: hops, each from where the one before has led, the
// last to what is wanted; none if they are the same. Always: on all devices alike.
#pragma once
#include "compile/sharding/exchange.h"

namespace haliax {

struct ReshardStep {
  // The first two are free: a device's part of what it has, and the identity on all ranks but the
  // first.
  enum class Kind : std::uint8_t {
    slice,
    make_partial,
    reduce_scatter,
    exchange,
    all_reduce,
    all_gather
  } kind = Kind::slice;
  Sharding to;
  MeshAxes over;     // the mesh axes that talk
  Name axis = {};    // cut by a reduce-scatter, joined by an all-gather
  double bytes = 0;  // sent per device on a ring
};
// First what is free, then what shrinks the data, then what grows it.
std::vector<ReshardStep> reshard(const Mesh&, const Axes&, DType, Sharding from,
                                 const Sharding& to);

}  // namespace haliax
