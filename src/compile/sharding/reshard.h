// Resharding: the steps from one sharding of a value to another.
//
// Out     steps. Each step starts from the result of the step before, and the last step ends at the
//         requested sharding. There are no steps if the shardings are equal.
// Always  the steps are the same on all devices.
#pragma once
#include "compile/sharding/exchange.h"

namespace haliax {

struct ReshardStep {
  // `slice` and `make_partial` communicate nothing. A slice is a device's part of the data that it
  // holds. `make_partial` retains the value on the first rank and stores the identity on all
  // others.
  enum class Kind : std::uint8_t {
    slice,
    make_partial,
    reduce_scatter,
    exchange,
    all_reduce,
    all_gather
  } kind = Kind::slice;
  Sharding to;
  MeshAxes over;     // mesh axes along which data is communicated
  Name axis = {};    // sharded by a reduce-scatter, joined by an all-gather
  double bytes = 0;  // sent per device, on a ring

  program::CollectiveKind collective() const;
};
// Returns the all-to-all that yields a value with this sharding from boxes of others.
ReshardStep exchange_step(const Mesh&, const std::vector<CopyBox>&, const Axes&, DType,
                          const Sharding& sharding, Name axis = {});
// Orders the steps: steps without communication, then steps that shrink the data, then steps that
// grow the data. [a: x] is an array with axis a sharded along mesh axis x:
//
// from                   to           steps
// [a]                    [a: x]       slice
// [a], partial over x    [a: x]       reduce-scatter along a
// [a], partial over x    [a]          all-reduce
// [a: x]                 [a]          all-gather along a
// [a: x+y]               [a: x]       all-gather along a over y
// [a: x, b]              [a, b: x]    all-to-all
// [a: x, b], partial y   [a, b: y]    reduce-scatter along b, then all-gather along a
std::vector<ReshardStep> reshard(const Mesh&, const Axes&, DType, Sharding from,
                                 const Sharding& to);

}  // namespace haliax
