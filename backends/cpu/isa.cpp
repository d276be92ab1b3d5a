// Which instructions kernels use: the best that this machine has, or fewer, where HALIAX_ISA says so.
#include <dnnl.hpp>
#include <cstdlib>
#include <string_view>

#include "base/environment.h"
#include "kernels.h"

namespace haliax::cpu {
namespace {

enum class Isa : std::uint8_t { baseline, avx2, avx512 };

// The most that may be used, also by oneDNN.
Isa allowed() {
  const char* variable = "HALIAX_ISA";
  const char* set = std::getenv(variable);
  const std::string_view asked = set ? set : "";
  if (asked == "" || asked == "avx512") return Isa::avx512;
  if (asked != "avx2" && asked != "baseline") refuse_asked(variable, asked, "avx512, avx2 or baseline");
  const bool avx2 = asked == "avx2";
  dnnl::set_max_cpu_isa(avx2 ? dnnl::cpu_isa::avx2 : dnnl::cpu_isa::sse41);
  return avx2 ? Isa::avx2 : Isa::baseline;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& best = [&]() -> const Kernels& {
    [[maybe_unused]] const auto most = allowed();
#if defined(HALIAX_X86)
    __builtin_cpu_init();
    const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (has_avx512 && most >= Isa::avx512) return avx512::table();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && most >= Isa::avx2) return avx2::table();
#endif
    return baseline::table();
  }();
  return best;
}

}  // namespace haliax::cpu
