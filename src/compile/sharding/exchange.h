// All-to-all communication: the boxes that a device sends and receives when positions of an axis
// move between the devices of a mesh.
//
// In      the boxes that a result consists of.
// Out     the sends and receives of one device.
// Always  a sender and its receiver list their common boxes in the same order.
#pragma once
#include "ops/collective.h"
#include "transforms/sharding.h"

namespace haliax {

// Makes a collective a ring along the mesh axes in `over`, and fills in its sends and receives.
void set_ring(CollectiveSpec&, const Axes& block, const MeshAxes& over, const Mesh&, int device);

// The layout of one axis on a mesh. The axis is the row-major combination of `parts`, and each part
// is sharded by mesh axes of its own. Most axes have one part, which is the axis itself.
struct AxisLayout {
  Axes parts = {};
  std::vector<MeshAxes> mesh_axes = {};              // mesh axes of each part
  MeshAxes over() const;                             // mesh axes of all parts
  std::int64_t size(const Mesh&, int device) const;  // positions in the block of a device
};

// A part of the result of an all-to-all: positions [to, to + size) of `axis` are positions from,
// from + step, ... of one of its arrays, with this `sharding`. Positions along other axes do not
// change; without `axis`, no position changes.
struct CopyBox {
  int array = 0;
  Axes axes = {};  // axes of the unsharded array, in the order of the result
  Sharding sharding = {};
  Name axis = {};
  std::int64_t from = 0, to = 0, size = 0, step = 1;
  // Layouts of `axis` in the array and in the result, if it has several parts. Its positions then
  // do not change.
  AxisLayout source_layout = {}, result_layout = {};
};
// Appends the sends and receives of one device for a result that is stored in out[k]. `axes`: axes
// of the unsharded result; `sharding`: its sharding.
void pack(program::Collective&, const std::vector<CopyBox>&, int first_array, int out,
          const Axes& axes, const Sharding& sharding, const Mesh&, int device);
// Returns (offset in the block of the source, number of positions) of each run of positions, in the
// order of the result. For a box with parts of which a device needs only its own data.
std::vector<std::pair<std::int64_t, std::int64_t>> own_runs(const CopyBox&,
                                                            const Sharding& sharding, const Mesh&,
                                                            int device);
// Returns the bytes that a device sends to others, on average.
double exchange_bytes(const std::vector<CopyBox>&, const Axes& axes, const Sharding& sharding,
                      int width, const Mesh&);
// Returns the mesh axes along which data moves.
MeshAxes exchange_over(const std::vector<CopyBox>&, const Axes& axes, const Sharding& sharding);

}  // namespace haliax
