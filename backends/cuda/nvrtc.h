// NVRTC, opened when it is first needed: it compiles kernels with no GPU and no driver.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace haliax::cuda {

bool has_nvrtc();
int nvrtc_version();  // 13000 is 13.0; 0: it is not there
std::vector<std::string> nvrtc_options(int sm, bool exact);
struct Cubin {
  // log: what ptxas says of registers, stack and spills; ptx: what it was made of
  std::string bytes, log, ptx;
};
// sm: of the card, 90 for an H100; exact: no contracted multiply-adds. Raises with the compiler's
// own words, or where the library is missing.
Cubin compile_for_gpu(const std::string& source, int sm, bool exact = false);

// Texts that call the toolkit's own functions of a card (kTells, api.h) are linked with
// libcudadevrt.a by nvJitLink: are both there?
bool can_link();

// The same, from the folder HALIAX_CACHE, if there is one and it was made before: by text, options,
// compiler and architecture. A file appears at once or not at all; one that is damaged is made
// anew. Where there is no compiler, the folder's file `nvrtc` says of which version the one was
// that has filled it.
std::string cached_cubin(const std::string& source, int sm, bool exact);
// version 0: there is none
std::string compiler_of(const std::filesystem::path& folder, int version);
std::int64_t cubins_made();  // and not found, so far

}  // namespace haliax::cuda
