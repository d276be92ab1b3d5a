// The header of a safetensors file, for readers and writers that copy the data themselves.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "haliax/dtype.h"

namespace haliax {

struct TensorHead {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
};
// A tensor, and the place of its data.
struct StoredTensor : TensorHead {
  std::size_t file = 0;
  std::int64_t begin = 0;  // bytes from the start of the file
  std::int64_t bytes = 0;
};
using Metadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // in file order
  Metadata metadata;
};
class InputFile;
// Reads the header of a file. Raises if it is corrupt, or if the file has another size than the
// header requires.
SafetensorsHeader read_safetensors_header(const char* op, const std::string& path, InputFile&);

// Returns the part of a file before the data. The data of the tensors follows in this order,
// without gaps. Raises for a name that is duplicate or not UTF-8.
std::string safetensors_head(const std::vector<TensorHead>&, const Metadata& metadata);

}  // namespace haliax
