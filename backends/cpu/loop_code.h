// Compiles a sequential loop with small steps into one function of machine code, in which no step
// costs a dispatch. Small elementwise steps, sums of rows, copies and matmuls become instructions
// on vector registers; other steps are called. Values between steps stay in the first-level cache.
//
// In: a loop step. Out: a function that runs all its iterations, or null: the loop has no small
// step, its iterations run in parallel, or there is no assembler (another processor, or executable
// memory is not permitted). Always: the same results as its steps one after another, up to the
// rounding of sums.
#pragma once
#include <exception>
#include <functional>
#include <memory>

#include "step.h"

namespace haliax::cpu {

class LoopFunction {
 public:
  virtual ~LoopFunction() = default;
  virtual void run(Frame&) = 0;
};
using CompileStep =
    std::function<std::unique_ptr<CompiledStep>(const program::Step&, const Context&)>;
// `compile` compiles the steps that are called.
std::unique_ptr<LoopFunction> compile_loop(const program::Step&, const Context&,
                                           const CompileStep& compile);

}  // namespace haliax::cpu
