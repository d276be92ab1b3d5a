// Compares the memory, time and communication of the modes of the Llama on one mesh.
#pragma once
#include "train.h"

namespace llama {

// Prints the costs of all modes on this mesh, and draws their memory over time if `svg` is a path.
// Raises if the losses differ from those of one device.
void compare_modes(const Run&, const Mesh&, const std::string& svg);

}  // namespace llama
