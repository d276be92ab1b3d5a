// The header of a safetensors file, for writers that write the data themselves.
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
// Returns the part of a file before the data. The data of the tensors follows in this order,
// without gaps. Raises for a name that is duplicate or not UTF-8.
std::string safetensors_head(const std::vector<TensorHead>&,
                             const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace haliax
