// Plan: compiles the small steps of a loop into one function of machine code, in which no step
// costs a dispatch. Small elementwise steps, sums of rows, copies and matmuls become instructions
// on vector registers, and loops in loops become jumps. Other steps are called. Values between
// steps stay in the first-level cache.
//
// In: the steps of a loop, or of the body of a parallel loop. Out: a function that runs them, or
// null: no step is small, or there is no assembler (another processor, or executable memory is not
// permitted). Always: the same results as the steps one after another, up to the rounding of sums.
// A step has the same code in each loop, so its bits do not depend on how loops are divided.
#pragma once
#include <functional>
#include <memory>
#include <span>

#include "backends/cpu/step.h"

namespace haliax::cpu {

class StepsFunction {
 public:
  virtual ~StepsFunction() = default;
  virtual void run(Frame&) = 0;
};
using CompileStep =
    std::function<std::unique_ptr<CompiledStep>(const program::Step&, const Context&)>;
// `compile` compiles the steps that are called.
std::unique_ptr<StepsFunction> compile_steps(std::span<const program::Step>, const Context&,
                                             const CompileStep& compile);

}  // namespace haliax::cpu
