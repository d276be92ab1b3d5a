// Where what was compiled is kept, for later runs.
#pragma once
#include <filesystem>

namespace haliax::cuda {

// The folder that HALIAX_CACHE names, which is made if it is not there; empty: none is named.
// Raises where it cannot be made.
std::filesystem::path cache_folder();

}  // namespace haliax::cuda
