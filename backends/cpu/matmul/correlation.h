// Plan: contractions of windows with an array that lacks the kernel axes: the gradient of the
// weight of a depthwise convolution. Each result is a sum of products of rows with shifted rows.
#pragma once
#include "backends/cpu/step.h"

namespace haliax::cpu {

// Returns null if the step is no such contraction, or is too small.
std::unique_ptr<CompiledStep> make_correlation(const program::Step&);
bool is_correlation(const program::Step&);  // true if make_correlation returns a step

}  // namespace haliax::cpu
