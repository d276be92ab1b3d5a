// What tensors of a state are called in files.
#pragma once
#include <cstdint>
#include <string>

namespace haliax {

// h.{}.weight, 3 -> h.3.weight
inline std::string name_of_layer(std::string path, std::int64_t layer) {
  if (auto hole = path.find("{}"); hole != path.npos) path.replace(hole, 2, std::to_string(layer));
  return path;
}

}  // namespace haliax
