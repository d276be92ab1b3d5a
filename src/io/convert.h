// Conversion of elements from one dtype to another, as `astype` converts them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "haliax/dtype.h"

namespace haliax {

// Converts `count` elements. The memory must not overlap.
void convert_elements(DType from, const std::byte* source, DType to, std::byte* result,
                      std::int64_t count);

}  // namespace haliax
