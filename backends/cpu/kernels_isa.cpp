// All kernels for one instruction set. This file is compiled several times: HALIAX_ISA names the
// namespace, and compiler flags enable the instructions. Only libc and libm have external linkage
// here, so that the linker never mixes the copies.
#include <math.h>
#if defined(__AVX2__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // false positive of gcc 12 in immintrin.h
#include <immintrin.h>
#pragma GCC diagnostic pop
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/scalar.h"
#include "kernels.h"

namespace haliax::cpu::HALIAX_ISA {
namespace {

using program::Code;
#include "kernels_math.inc"

#include "kernels_functions.inc"

#include "kernels_map.inc"

#include "kernels_reduce.inc"

#include "kernels_vector.inc"

#include "kernels_transpose.inc"

#include "kernels_move.inc"

#include "kernels_running.inc"

#include "kernels_stencil.inc"

#include "kernels_sort.inc"

#if defined(__AVX2__)
#include "kernels_matmul.inc"
#else  // oneDNN is as fast
constexpr const MatmulKernel* matmul_or_none = nullptr;
#endif

constexpr const char* name_of_isa =
#if defined(__AVX512F__)
    "avx512";
#elif defined(__AVX2__)
    "avx2";
#else
    "baseline";
#endif

}  // namespace

const Kernels& table() {
  static constexpr Kernels kernels{name_of_isa,    find_map,        find_of_registers,
                                   exp_difference, find_cast,       find_wrap,
                                   count_rows,     find_load,       find_store,
                                   find_load_rows, find_store_rows, copy_rows,
                                   add_ids,        gather_values,   words_or_none,
                                   find_reduction, multiply_lane,   widen,
                                   narrow,         matmul_or_none,  gemv,
                                   running_sums,   stencil,         correlation,
                                   sort_block};
  return kernels;
}

}  // namespace haliax::cpu::HALIAX_ISA
