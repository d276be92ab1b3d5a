// Products of a vector and a matrix, at the bandwidth of memory.
#pragma once
#include <optional>

#include "step.h"

namespace haliax::cpu {

// null: it is none, or too small a one
std::unique_ptr<CompiledStep> make_vector_product(const program::Step&, const Context&);
std::optional<std::int64_t> vector_product_scratch(const program::Step&);  // none: likewise

}  // namespace haliax::cpu
