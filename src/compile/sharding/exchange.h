// Who sends what to whom, when positions of an axis move between the devices of a mesh.
//
// In: the pieces that a result is put together of. Out: the parcels of one device. Always: what one
// device sends is what the other receives, in the same order.
#pragma once
#include "ops/collective.h"
#include "transforms/sharding.h"

namespace haliax {

// makes a ring of it, and says who sends
void set_ring(CollectiveSpec&, const Axes& block, const MeshAxes& over, const Mesh&, int device);

// How the positions of an axis lie on a mesh: the axis is the row-major product of `parts`, each
// cut by mesh axes of its own. Mostly there is one part, the axis itself.
struct AxisLayout {
  Axes parts = {};
  std::vector<MeshAxes> cuts = {};                   // of each part
  MeshAxes over() const;                             // mesh axes, of all parts
  std::int64_t size(const Mesh&, int device) const;  // of a device's block
};

// A part of what an exchange makes: positions [to, to + size) of `axis` are positions from, from +
// step, ... of one of its arrays, which is cut as `at` says. Along other axes, and without an axis,
// positions stay.
struct CopyBox {
  int array = 0;
  Axes axes = {};  // of the whole array, in the order of the result's
  Sharding at = {};
  Name axis = {};
  std::int64_t from = 0, to = 0, size = 0, step = 1;
  // of `axis`, where it is cut in parts: of the array's, of the result's; then positions stay
  AxisLayout source_layout = {}, result_layout = {};
};
// The parcels of one device, for a result (of the whole graph: `axes`, cut as `at`) that goes to
// out[k].
void pack(program::Collective&, const std::vector<CopyBox>&, int first_array, int out,
          const Axes& axes, const Sharding& at, const Mesh&, int device);
// Of a piece in parts of which all that a device gets is its own: where in its block, and how many
// positions, in the result's order.
std::vector<std::pair<std::int64_t, std::int64_t>> own_runs(const CopyBox&, const Sharding& at,
                                                            const Mesh&, int device);
// Bytes that a device sends to others, on average.
double exchange_bytes(const std::vector<CopyBox>&, const Axes& axes, const Sharding& at, int width,
                      const Mesh&);
// the mesh axes along which something moves
MeshAxes exchange_over(const std::vector<CopyBox>&, const Axes& axes, const Sharding& at);

}  // namespace haliax
