// How a GPT-2 lies on a mesh: examples along `data`, along which each weight is cut, too (FSDP);
// heads and the MLP along `model`. A mesh without one of the two goes without that.
#pragma once
#include <haliax/mesh.h>

#include <string>

namespace gpt2 {

struct Layout {
  haliax::Mesh mesh;                   // of one device: nothing is cut
  haliax::Mapping parameters, inside;  // inside: of what the loss computes
};
// data=4,model=2; empty: one device. Makes so many devices, where this process is alone. Raises for
// what is no mesh, for other names, and where there are other devices than the mesh has.
Layout layout_of(const std::string& mesh);

}  // namespace gpt2
