// Vector-matrix products at memory bandwidth.
#pragma once
#include <optional>

#include "step.h"

namespace haliax::cpu {

// Returns null if the step is no vector-matrix product, or is too small.
std::unique_ptr<CompiledStep> make_vector_product(const program::Step&, const Context&);
std::optional<std::int64_t> vector_product_scratch(const program::Step&);  // nullopt: as above

}  // namespace haliax::cpu
