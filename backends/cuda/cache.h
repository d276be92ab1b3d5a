// The folder of compiled kernels, shared by runs.
#pragma once
#include <filesystem>

namespace haliax::cuda {

// Returns the folder in HALIAX_CACHE, and creates it if necessary. Returns an empty path if the
// variable is not set. Raises an error if the folder cannot be created.
std::filesystem::path cache_folder();

}  // namespace haliax::cuda
