// Tensors in files: the safetensors format, as Hugging Face stores checkpoints.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haliax/dtype.h"
#include "haliax/where.h"

namespace haliax {

// A tensor as a file holds it: row-major, little-endian, its dimensions without names.
struct Tensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
};

struct TensorFile {
  std::vector<Tensor> tensors;   // sorted by name when read
  std::vector<std::pair<std::string, std::string>> metadata;

  const Tensor* find(std::string_view name) const;   // null if there is none
  // Raises if there is none.
  const Tensor& at(std::string_view name, SourceLocation = SourceLocation::current()) const;
};

// Raises, naming the tensor, for a file that is truncated or corrupt or has a dtype that is not ours.
TensorFile read_safetensors(const std::string& path, SourceLocation = SourceLocation::current());

// All or nothing: the file appears under its name when it is complete and on the disk; until then an older one stays.
void write_safetensors(const std::string& path, const TensorFile& file, SourceLocation = SourceLocation::current());

}  // namespace haliax
