// The head of a safetensors file, for who writes the data itself.
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
// All that stands before the data of these tensors, which follow in this order without holes.
// Raises for a name that is there twice, or is not UTF-8.
std::string safetensors_head(const std::vector<TensorHead>&,
                             const std::vector<std::pair<std::string, std::string>>& metadata);

}  // namespace haliax
