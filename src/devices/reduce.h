// Sums, products, maxima or minima over arrays of several devices. Elements are combined in the
// order of the parts, so all devices compute bitwise identical results. 16-bit floats are
// accumulated in f32 and rounded once; integers wrap around; the result is NaN if any element is.
#pragma once
#include <vector>

#include "devices/packing.h"

namespace haliax {

// Reduces n contiguous elements of each part into `out`, which may be one of the parts.
void reduce_parts(program::Monoid, DType, const std::vector<const std::byte*>& parts,
                  std::byte* out, std::int64_t n);
// The same for strided patches.
void reduce_parts(program::Monoid, const Patches& parts, const Patch& out);

}  // namespace haliax
