// Names of the tensors of a state in files.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace haliax {

struct StateEntry;

// Returns the name of a layer: "h.{}.weight" and 3 yield "h.3.weight".
inline std::string name_of_layer(std::string path, std::int64_t layer) {
  if (auto hole = path.find("{}"); hole != path.npos) path.replace(hole, 2, std::to_string(layer));
  return path;
}

// The tensors of one array: a name for each position along its split axes.
struct SplitName {
  std::string name;
  std::vector<std::int64_t> index;  // one per split axis
};
std::vector<SplitName> tensors_of(const StateEntry&);
// Returns the positions of the other axes, in the order of the tensors.
std::vector<std::size_t> order_of(const StateEntry&);

}  // namespace haliax
