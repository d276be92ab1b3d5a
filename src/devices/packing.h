// Boxes of memory with any strides, and how they are packed: what collectives send and sum.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "program/program.h"

namespace haliax {

// Elements [from, from + count) of a box in memory, in row-major order.
struct Patch {
  std::byte* at = nullptr;  // element (0, 0, ...)
  program::Dims dims, strides;
  DType dtype = DType::f32;
  std::int64_t from = 0, count = 0;
  std::int64_t bytes() const { return count * bytes_of(dtype); }
};
using Patches = std::vector<Patch>;
std::int64_t bytes_in(const Patches&);

// The elements of a patch that belong to place g of a group of so many: shares are equally large,
// and the last ones may be short or empty.
Patch share_of(Patch, std::size_t ranks, std::size_t g);
// Of the axis that a collective cuts or joins in array k, what belongs to place g of a group of so
// many: first position, how many. Blocks are shared out likewise.
std::pair<std::int64_t, std::int64_t> block_in_group(const program::Collective&, std::size_t k,
                                                     std::size_t ranks, std::size_t g);

Patch full_patch(void* at, const program::Operand&);
// step: how far its elements lie apart along each dim of the operand; null: they are neighbours.
Patch box_patch(void* at, const program::Operand&, const program::Dims& start,
                const program::Dims& dims, const program::Dims* step);
Patch slice_patch(void* at, const program::Operand&, int dim, std::int64_t from, std::int64_t size);

// The same elements with the dims in another order: that of `order`, the last of them fastest.
Patch reordered(Patch, const std::vector<std::size_t>& order);
// The dims by strides, largest first: walked so, memory is walked from one end to the other.
std::vector<std::size_t> order_in_memory(const program::Dims& strides);

void pack(const Patches&, std::byte* to);
void unpack(const std::byte* from, const Patches&);
// In pieces of at most so many bytes: the same at both ends, as they hold as many elements of the
// same dtypes.
std::vector<Patches> split_patches(const Patches&, std::int64_t most);

// f(out, parts, how many elements) for one block after the other of patches of the same count and
// dtype: where it lies, if it does in one piece; else parts are packed before, and out is unpacked
// behind. out may be written where parts have been read.
using OnBlock =
    std::function<void(std::byte* out, const std::vector<const std::byte*>& parts, std::int64_t n)>;
void each_block(const Patch& out, const Patches& parts, const OnBlock& f);
void copy_patch(const Patch& from, const Patch& to);
void fill_zeros(const Patch&);

// What a device says of an exchange that may leave something out (program::Spares): does it take,
// or send, anything?
bool participates(const program::Collective&, const void* const* x);

}  // namespace haliax
