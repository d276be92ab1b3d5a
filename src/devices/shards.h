// Parts of arrays, and sharded arrays: one block per device of a mesh.
#pragma once
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "program/program.h"
#include "transforms/sharding.h"

namespace haliax {

// A part of an array: first position and size along each axis.
struct Part {
  program::Dims start, sizes;
  std::int64_t size() const { return program::points(sizes); }  // number of elements
  friend bool operator==(const Part&, const Part&) = default;
};
Part full_part(const Axes&);
Part part_on(const Axes&, const Sharding&, const Mesh&, int device);
// Returns the common part, with size 0 if there is none.
Part intersection(const Part&, const Part&);

// The block of a device in the full array.
struct DeviceBlock {
  program::Box in_full_array;  // the `from` side of a copy, without addresses
  std::int64_t offset = 0;     // bytes from the start of the full array
  bool in_one_piece = true;    // the block is contiguous in the full array

  DeviceBlock(const Axes&, DType, const Sharding&, const Mesh&, int device);
};

// A sharded array: one block per device. A call on a mesh leaves its results sharded. A later call
// with the same sharding uses the blocks directly; a read on the host assembles the array. If ranks
// share the mesh, each rank has the blocks of its devices, and all ranks together read an array of
// which a rank lacks a part.
struct Shards final : DeviceStorage {
  Mesh mesh;
  Sharding at;
  Axes axes;  // unsharded
  DType dtype = DType::f32;
  int first = 0;                  // first device of this process
  std::vector<BufferPtr> blocks;  // one per device of this process
  void write(std::byte* to) const override;
};

std::unique_ptr<Shards> shards(const Mesh&, const Sharding&, const Axes&, DType, int first,
                               std::vector<BufferPtr> blocks);
const Shards* shards_in(const Buffer&);  // null: not sharded

}  // namespace haliax
