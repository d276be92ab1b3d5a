// Blocks of columns of matmuls, for the CPU kernels and for code that splits matmuls for them.
#pragma once
#include <cstdint>

namespace haliax::program {

// columns of a full panel with AVX-512, and of two full panels with AVX2
inline constexpr std::int64_t kPanelColumns = 48;
// minimum columns of a part, if threads share a matmul
inline constexpr std::int64_t kMinPartColumns = 192;

}  // namespace haliax::program
