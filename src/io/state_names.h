// Names of the tensors of a state in files.
#pragma once
#include <cstdint>
#include <string>

namespace haliax {

// Returns the name of a layer: "h.{}.weight" and 3 yield "h.3.weight".
inline std::string name_of_layer(std::string path, std::int64_t layer) {
  if (auto hole = path.find("{}"); hole != path.npos) path.replace(hole, 2, std::to_string(layer));
  return path;
}

}  // namespace haliax
