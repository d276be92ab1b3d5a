// Boxes of memory with any strides, and how they are packed: what collectives send and sum.
#pragma once
#include <vector>

#include "program/program.h"

namespace haliax {

// Elements [from, from + count) of a box in memory, in row-major order.
struct Patch {
  std::byte* at = nullptr;                       // element (0, 0, ...)
  program::Dims dims, strides;
  DType dtype = DType::f32;
  std::int64_t from = 0, count = 0;
  std::int64_t bytes() const { return count * bytes_of(dtype); }
};
using Patches = std::vector<Patch>;
std::int64_t bytes_in(const Patches&);

Patch whole_patch(void* at, const program::Operand&);
// step: how far its elements lie apart along each dim of the operand; null: they are neighbours.
Patch box_patch(void* at, const program::Operand&, const program::Dims& start, const program::Dims& dims,
                const program::Dims* step);
Patch slice_patch(void* at, const program::Operand&, int dim, std::int64_t from, std::int64_t size);

void pack(const Patches&, std::byte* to);
void unpack(const std::byte* from, const Patches&);
// In pieces of at most so many bytes: the same at both ends, as they hold as many elements of the same dtypes.
std::vector<Patches> pieces_of(const Patches&, std::int64_t most);

}  // namespace haliax
