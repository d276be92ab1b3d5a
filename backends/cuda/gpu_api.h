// The table as CUDA fills it, in the plugin alone.
#pragma once
#include "api.h"

namespace haliax::cuda {

const Api& gpu(const CudaOptions&);

}  // namespace haliax::cuda
