// Plan: fused steps that are stencils: sums of products of shifted views of one array with weights
// that are constant along rows and columns. For example, a depthwise convolution is one.
#pragma once
#include <memory>

#include "backends/cpu/step.h"

namespace haliax::cpu {

// Returns null if the step is no stencil, or is too small.
std::unique_ptr<CompiledStep> make_stencil(const program::Step&, const Context&);

}  // namespace haliax::cpu
