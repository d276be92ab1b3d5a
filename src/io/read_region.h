// Reading a region of a stored tensor into memory with strides, with conversion of the elements.
#pragma once
#include <cstddef>
#include <vector>

#include "io/tensor_source.h"

namespace haliax {

// One dim of a region of a tensor.
struct RegionDim {
  std::int64_t full = 1, start = 0, size = 1;
  std::int64_t stride = 1;  // element strides of the result
};
// Merges and drops dims where neither the file nor the result can tell the difference.
std::vector<RegionDim> merged(std::vector<RegionDim>);

// Memory of one thread, which is reused.
struct ReadScratch {
  std::vector<std::byte> raw, converted;
};
// Reads a region and stores it at `result` with elements of `dtype`. Apart from the result, it
// needs at most 1 MiB for the elements as stored, and as much for the converted ones.
void read_region(const TensorSource&, const StoredTensor&, const std::vector<RegionDim>& dims,
                 DType dtype, std::byte* result, ReadScratch&);

// Copies elements of `width` bytes from one memory with strides to another. `sizes`, `from_strides`
// and `to_strides` (in elements) have one value per dim.
void copy_strided(const std::byte* from, const std::vector<std::int64_t>& from_strides,
                  std::byte* to, const std::vector<std::int64_t>& to_strides,
                  const std::vector<std::int64_t>& sizes, int width);

}  // namespace haliax
