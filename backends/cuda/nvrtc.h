// NVRTC, opened when it is first needed: it compiles kernels with no GPU and no driver.
#pragma once
#include <string>

namespace haliax::cuda {

bool has_nvrtc();
struct Cubin {
  std::string bytes, log;  // log: what ptxas says of registers, stack and spills
};
// sm: of the card, 90 for an H100. Raises with the compiler's own words, or where the library is missing.
Cubin compile_for_card(const std::string& text, int sm);

}  // namespace haliax::cuda
