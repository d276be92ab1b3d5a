// Parses the mesh option of gpt2 and derives the mappings of the parameters and of the loss.
#include "layout.h"

#include "examples/mesh_option.h"

namespace gpt2 {

using namespace haliax;

Layout layout_of(const std::string& text) {
  Layout out;
  out.mesh = examples::mesh_option("gpt2", text);
  std::vector<Mapping::Entry> parameters, inside;
  for (auto& [name, size] : out.mesh.axes())
    if (name == "data") {
      parameters.emplace_back("embed", "data");
      inside.emplace_back("batch", "data");
    } else {
      for (const char* axis : {"heads", "mlp"}) {
        parameters.emplace_back(axis, "model");
        inside.emplace_back(axis, "model");
      }
    }
  out.parameters = Mapping::of(parameters);
  out.inside = Mapping::of(inside);
  return out;
}

}  // namespace gpt2
