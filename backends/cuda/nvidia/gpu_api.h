// The implementation of the table by CUDA; part of the plugin only.
#pragma once
#include "../api.h"

namespace haliax::cuda {

const Api& gpu(const CudaOptions&);

}  // namespace haliax::cuda
