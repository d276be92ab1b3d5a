// The sharding of a GPT-2 on a mesh: examples and weights (FSDP) along `data`; heads and the MLP
// along `model`. Either axis may be absent.
#pragma once
#include <haliax/mesh.h>

#include <string>

namespace gpt2 {

struct Layout {
  haliax::Mesh mesh;                   // one device: nothing is sharded
  haliax::Mapping parameters, inside;  // inside: the mapping of the loss computation
};
// Parses data=4,model=2; an empty string means one device. Creates as many devices unless there are
// several ranks. Raises for an invalid mesh, for other axis names, and if ranks have another number
// of devices than the mesh.
Layout layout_of(const std::string& mesh);

}  // namespace gpt2
