#pragma once
#include "train.h"

namespace llama {

// A table of what the modes take on this mesh, and a picture of their memory over time, if it has a
// path. Raises where the losses are not those of one device.
void compare_modes(const Run&, const Mesh&, const std::string& svg);

}  // namespace llama
