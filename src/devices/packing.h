// Strided boxes of memory, and their packed form for collectives.
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

// Returns the share of rank g in a group of `ranks` devices. Shares have equal size; the last may
// be smaller or empty.
Patch share_of(Patch, std::size_t ranks, std::size_t g);
// Returns the block of rank g along the dim that a collective splits or concatenates in array k, as
// first position and size. Blocks have equal size; the last may be smaller or empty.
std::pair<std::int64_t, std::int64_t> block_in_group(const program::Collective&, std::size_t k,
                                                     std::size_t ranks, std::size_t g);

Patch full_patch(void* at, const program::Operand&);
// `step` is the distance between elements along each dim of the operand; null: 1.
Patch box_patch(void* at, const program::Operand&, const program::Dims& start,
                const program::Dims& dims, const program::Dims* step);
Patch slice_patch(void* at, const program::Operand&, int dim, std::int64_t from, std::int64_t size);

// Returns the same elements with the dims in the order `order`, the last one fastest.
Patch reordered(Patch, const std::vector<std::size_t>& order);
// Returns the dims by strides, largest first. Traversed in this order, memory is accessed
// sequentially.
std::vector<std::size_t> order_in_memory(const program::Dims& strides);

void pack(const Patches&, std::byte* to);
void unpack(const std::byte* from, const Patches&);
// Splits patches into pieces of at most `most` bytes. Sender and receiver split alike, since their
// patches have the same counts and dtypes.
std::vector<Patches> split_patches(const Patches&, std::int64_t most);

// Calls f(out, parts, n) for consecutive blocks of n elements of patches with the same count and
// dtype. Contiguous blocks are passed in place. Other blocks of `parts` are packed before the call,
// and a block of `out` is unpacked after it. `out` may be the memory of a part.
using OnBlock =
    std::function<void(std::byte* out, const std::vector<const std::byte*>& parts, std::int64_t n)>;
void each_block(const Patch& out, const Patches& parts, const OnBlock& f);
void copy_patch(const Patch& from, const Patch& to);
void fill_zeros(const Patch&);

// Returns the dims of the elements that are sent of a box: with SkipFlag::rows, the rows that the
// counts of the sender include. `x`: the arrays of the sender.
program::Dims sent_dims(const program::Collective&, const void* const* x,
                        const program::Dims& start, program::Dims dims);
// Fills the elements of a box with 0 that are not in its first `sent`.
void fill_rest(const Patch& box, const program::Dims& sent);
// Returns the flag of this device in a collective with a program::SkipFlag: false if the device
// reads none of the data, or sends only zeros. Returns true without a flag.
bool participates(const program::Collective&, const void* const* x);

}  // namespace haliax
