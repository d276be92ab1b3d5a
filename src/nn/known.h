// Values that are known while the graph is built.
#pragma once
#include "haliax/array.h"

namespace haliax::nn {

// Returns true if the value is computed or computable now. False inside jit, vmap and scan.
bool is_known(const NamedArray&);

}  // namespace haliax::nn
