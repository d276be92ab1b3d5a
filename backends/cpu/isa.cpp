// Kernels: selection of the instruction set, the best one of this machine, or a lower one that
// HALIAX_ISA sets.
#if defined(HALIAX_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <dnnl.hpp>
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/environment.h"
#include "kernels.h"

namespace haliax::cpu {
namespace {

enum class Isa : std::uint8_t { baseline, avx2, avx512, amx };

// Returns the best instruction set that HALIAX_ISA allows. Limits oneDNN to it as well.
Isa allowed() {
  const char* variable = "HALIAX_ISA";
  const char* set = std::getenv(variable);
  const std::string_view requested = set && *set ? set : "amx";
  struct Word {
    std::string_view name;
    Isa ours;
    dnnl::cpu_isa theirs;
  };
  constexpr Word words[] = {{"amx", Isa::amx, dnnl::cpu_isa::all},
                            {"avx512", Isa::avx512, dnnl::cpu_isa::avx512_core_bf16},
                            {"avx2", Isa::avx2, dnnl::cpu_isa::avx2},
                            {"baseline", Isa::baseline, dnnl::cpu_isa::sse41}};
  auto word = std::find_if(std::begin(words), std::end(words),
                           [&](auto& w) { return w.name == requested; });
  if (word == std::end(words)) fail_env(variable, requested, "amx, avx512, avx2 or baseline");
  if (word->ours < Isa::amx) dnnl::set_max_cpu_isa(word->theirs);
  return word->ours;
}
Isa most() {
  static const Isa isa = allowed();
  return isa;
}

}  // namespace

const Kernels* kernels_of(std::string_view isa) {
#if defined(HALIAX_X86)
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == "avx512") return has_avx512 ? &avx512::table() : nullptr;
  if (isa == "avx2") return has_avx2 ? &avx2::table() : nullptr;
#endif
  return isa == "baseline" ? &baseline::table() : nullptr;
}

const Kernels& kernels() {
  static const Kernels& best = [&]() -> const Kernels& {
    const auto isa = most();
    const Kernels* found = isa >= Isa::avx512 ? kernels_of("avx512") : nullptr;
    if (!found && isa >= Isa::avx2) found = kernels_of("avx2");
    return found ? *found : *kernels_of("baseline");
  }();
  return best;
}

namespace {

// Returns the vector kernel for bf16. It uses the bf16 instructions of AVX-512, or computes in
// f32, which is 4x faster than oneDNN without AMX.
const MatmulKernel* vector_kernel_of_bf16() {
#if defined(HALIAX_AVX512_BF16)
  if (__builtin_cpu_supports("avx512bf16") && std::string_view(kernels().name) == "avx512")
    return &bf16::kernel();
#endif
  return kernels().matmul;
}
// Returns the kernel for bf16. With AMX, this is a kernel for small matmuls, because oneDNN is
// faster for large ones.
const MatmulKernel* kernel_of_bf16() {
#if defined(HALIAX_AMX)
  const bool has_amx = [] {
    constexpr unsigned leaf_bf16 = 1u << 22, leaf_tile = 1u << 24;  // bits of cpuid leaf 7, edx
    // ARCH_REQ_XCOMP_PERM: requests permission to use tile registers
    constexpr long request_permission = 0x1023, tile_data = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool there =
        __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & leaf_bf16) && (d & leaf_tile);
    return most() >= Isa::amx && std::string_view(kernels().name) == "avx512" && there &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  if (has_amx) return &amx::kernel();
#endif
  return vector_kernel_of_bf16();
}

}  // namespace

const MatmulKernel* matmul_kernel(DType type) {
  static const MatmulKernel* const bf16_kernel = kernel_of_bf16();
  return type == DType::f32 ? kernels().matmul : type == DType::bf16 ? bf16_kernel : nullptr;
}
const MatmulKernel* vector_kernel(DType type) {
  static const MatmulKernel* const bf16_kernel = vector_kernel_of_bf16();
  return type == DType::bf16 ? bf16_kernel : matmul_kernel(type);
}

}  // namespace haliax::cpu
