// Which algorithm of the library's was the fastest: written down under HALIAX_CUDA=tune, and read
// by later runs, whether they tune or not, so that runs agree. The file `tuned` in the folder
// HALIAX_CACHE: a line for each product.
#pragma once
#include <optional>
#include <string>

#include "cublas.h"

namespace haliax::cuda {

std::optional<CublasProduct::Algorithm> tuned(const std::string& what);
// nothing where there is no folder
void keep_tuned(const std::string& what, const CublasProduct::Algorithm&);

}  // namespace haliax::cuda
