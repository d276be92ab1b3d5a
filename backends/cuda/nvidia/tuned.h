// The fastest algorithms of the library. They are stored if HALIAX_CUDA contains `tune`, and later
// runs read them with or without `tune`, so that all runs agree. The file is `tuned` in the folder
// HALIAX_CACHE, with one line per matmul.
#pragma once
#include <optional>
#include <string>

#include "cublas.h"

namespace haliax::cuda {

std::optional<CublasProduct::Algorithm> tuned(const std::string& what);
// Does nothing if HALIAX_CACHE is not set.
void keep_tuned(const std::string& what, const CublasProduct::Algorithm&);

}  // namespace haliax::cuda
