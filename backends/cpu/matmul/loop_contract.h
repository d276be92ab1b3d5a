// Plan: a step that computes a contraction without a matmul kernel.
#pragma once
#include <memory>

#include "backends/cpu/step.h"

namespace haliax::cpu {

std::unique_ptr<CompiledStep> make_loop_contract(const program::Contract&);

}  // namespace haliax::cpu
