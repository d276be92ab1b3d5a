// The head of a .npy file, for who reads the values in place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "haliax/dtype.h"

namespace haliax {

struct NpyHeader {
  DType dtype = DType::f32;
  bool swapped = false, fortran = false;  // the other order of bytes; of axes
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  // of the values, which are all there
};
// Raises, as read_npy, for what is no such file; `name`: as errors call it.
NpyHeader npy_header(std::span<const std::byte> file, const std::string& name);

}  // namespace haliax
