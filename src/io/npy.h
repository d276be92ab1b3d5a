// The header of a .npy file, for readers that use the values in place.
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
  bool swapped = false, fortran = false;  // byte order differs; column-major
  std::vector<std::int64_t> shape;
  std::size_t begin = 0;  // offset of the values in the file; the file holds all of them
};
// Returns the header. Raises the errors of read_npy for an invalid file. `name` is the name of the
// file in errors.
NpyHeader npy_header(std::span<const std::byte> file, const std::string& name);

}  // namespace haliax
