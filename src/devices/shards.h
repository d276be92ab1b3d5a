// Parts of arrays, and arrays that lie as parts: a block on each device of a mesh.
#pragma once
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "program/program.h"
#include "transforms/sharding.h"

namespace haliax {

// First position and length along each axis.
struct Part {
  program::Dims start, sizes;
  std::int64_t size() const { return program::points(sizes); }  // elements
  friend bool operator==(const Part&, const Part&) = default;
};
Part full_part(const Axes&);
Part part_on(const Axes&, const Sharding&, const Mesh&, int device);
// What both have; of size 0: nothing.
Part intersection(const Part&, const Part&);

// A device's block of a whole array: the box that it is there, and where in it the block begins.
struct DeviceBlock {
  program::Box in_full_array;  // of `from`, without addresses
  std::int64_t offset = 0;     // in bytes
  bool in_one_piece = true;

  DeviceBlock(const Axes&, DType, const Sharding&, const Mesh&, int device);
};

// An array as it lies on a mesh: a block on each device. What a call on a mesh makes stays so, and
// is put together when somebody reads it; the next call that wants it so takes the blocks. Where
// ranks share the mesh each has its devices' blocks, and an array of which one lacks a part is read
// by all of them together.
struct Shards final : DeviceStorage {
  Mesh mesh;
  Sharding at;
  Axes axes;  // whole
  DType dtype = DType::f32;
  int first = 0;                  // of this process's devices
  std::vector<BufferPtr> blocks;  // of them
  void write(std::byte* whole) const override;
};

std::unique_ptr<Shards> shards(const Mesh&, const Sharding&, const Axes&, DType, int first,
                               std::vector<BufferPtr> blocks);
const Shards* shards_in(const Buffer&);  // null: it does not lie in blocks

}  // namespace haliax
