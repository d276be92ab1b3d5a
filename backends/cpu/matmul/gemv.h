// Plan: vector-matrix products (BLAS: gemv) at memory bandwidth.
#pragma once
#include <optional>

#include "backends/cpu/step.h"

namespace haliax::cpu {

// Returns null if the step is no vector-matrix product, or is too small.
std::unique_ptr<CompiledStep> make_gemv(const program::Step&, const Context&);
std::optional<std::int64_t> gemv_scratch(const program::Step&);  // nullopt: as above

}  // namespace haliax::cpu
