// Layouts of the models on a mesh. The axes may be: data (parts of the batch, and of each
// parameter), model (parts of the heads and of the MLP), expert (experts) and context (parts of
// each sequence).
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "haliax/haliax.h"

namespace models {

using namespace haliax;

// Returns the mapping of parameters, and of the state of an optimizer.
inline Mapping parameter_mapping(const Mesh& mesh) {
  std::vector<Mapping::Entry> entries;
  for (auto& [name, size] : mesh.axes()) {
    if (name == "data") entries.emplace_back("embed", "data");
    if (name == "expert") entries.emplace_back("experts", "expert");
    if (name == "model")
      for (auto* axis : {"heads", "kv_heads", "mlp"}) entries.emplace_back(axis, "model");
  }
  return Mapping::of(entries);
}
// Returns the mapping inside of a function.
inline Mapping compute_mapping(const Mesh& mesh) {
  std::vector<Mapping::Entry> entries;
  const auto parameters = parameter_mapping(mesh);
  for (auto& entry : parameters.entries())
    if (entry.axis != Name("embed")) entries.push_back(entry);
  for (auto& [name, size] : mesh.axes()) {
    if (name == "data") entries.emplace_back("batch", "data");
    if (name == "context") entries.emplace_back("pos", "context");
  }
  return Mapping::of(entries);
}

}  // namespace models
