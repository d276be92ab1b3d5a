// NVRTC, opened on first use: compiles kernels without a GPU or a driver.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace haliax::cuda {

bool has_nvrtc();
int nvrtc_version();  // 13000 is 13.0; 0: not found
std::vector<std::string> nvrtc_options(int sm, bool exact);
struct Cubin {
  // log: the output of ptxas about registers, stack and spills; ptx: the intermediate code
  std::string bytes, log, ptx;
};
// sm: compute capability of the GPU, 90 for an H100; exact: no contracted multiply-adds. Raises an
// error with the compiler's message, or if the library is missing.
Cubin compile_for_gpu(const std::string& source, int sm, bool exact = false);

// Returns true if kernels that call device functions of the toolkit (kSetCondition, api.h) can be
// linked. Linking requires nvJitLink and libcudadevrt.a.
bool can_link();

// Compiles a kernel, or reads it from the folder HALIAX_CACHE. The key consists of source, options,
// compiler version and architecture. Files appear atomically, and a damaged file is compiled again.
// On a machine without NVRTC, the file `nvrtc` in the folder names the compiler version that filled
// the cache.
std::string cached_cubin(const std::string& source, int sm, bool exact);
// version: of NVRTC; 0 if it is missing
std::string compiler_of(const std::filesystem::path& folder, int version);
std::int64_t compiled_cubins();  // number of compilations so far, without cache hits

}  // namespace haliax::cuda
