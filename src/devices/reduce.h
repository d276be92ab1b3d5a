// Sums (or products, maxima, minima) of what several devices hold, element by element in the order
// given: every device that takes them so has the same bits. Narrow floats are taken in f32, and
// rounded once; integers wrap around; a NaN wins.
#pragma once
#include <vector>

#include "devices/packing.h"

namespace haliax {

// n elements of each part into out, which may be one of them.
void reduce_parts(program::Monoid, DType, const std::vector<const std::byte*>& parts,
                  std::byte* out, std::int64_t n);
// As they lie.
void reduce_parts(program::Monoid, const Patches& parts, const Patch& out);

}  // namespace haliax
