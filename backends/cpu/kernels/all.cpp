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

#include "backends/cpu/kernels.h"
#include "base/scalar.h"
#include "program/matmul_blocks.h"

namespace haliax::cpu::HALIAX_ISA {
namespace {

using program::Code;
// Each file may use the files above it.
#include "math.inc"

#include "functions.inc"

#include "map.inc"

#include "reduce.inc"

#include "gemv.inc"

#include "transpose.inc"

#include "strided.inc"

#include "move.inc"

#include "running.inc"

#include "stencil.inc"

#include "sort.inc"

#if defined(__AVX2__)
#include "blocks.inc"

#include "matmul.inc"
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
  static constexpr Kernels kernels{
      .name = name_of_isa,
      .map = find_map,
      .of_registers = find_of_registers,
      .exp_difference = exp_difference,
      .cast = find_cast,
      .wrap = find_wrap,
      .count = count_rows,
      .load = find_load,
      .store = find_store,
      .load_rows = find_load_rows,
      .store_rows = find_store_rows,
      .copy_rows = copy_rows,
      .add_ids = add_ids,
      .gather_values = gather_values,
      .gather_words = words_or_none,
      .reduce = find_reduction,
      .reduce_bytes = find_reduction_of_bytes,
      .multiply = multiply_lane,
      .f32_to_f64 = widen,
      .f64_to_f32 = narrow,
      .matmul = matmul_or_none,
      .gemv = gemv,
      .running_sums = running_sums,
      .stencil = stencil,
      .correlation = correlation,
      .sort_block = sort_block,
  };
  return kernels;
}

}  // namespace haliax::cpu::HALIAX_ISA
