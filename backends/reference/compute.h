// Scalar arithmetic of the reference backend: each instruction on one value.
#pragma once
#include "base/scalar.h"
#include "program/program.h"

namespace haliax::reference {

using scalar::Value;

// Returns the result of an instruction. All operands have the dtype `from`, except for `select`,
// whose args[1] and args[2] have the dtype `result`.
Value compute(program::Code, DType result, DType from, const Value* args);

// The start value of a reduction, and one step of it: `acc` combined with `x` by the monoid. Floats
// accumulate as doubles, so that a sum is rounded once, at its end, by scalar::rounded.
Value start_of(program::Monoid, DType);
Value combine(program::Monoid, DType, Value acc, Value x);

}  // namespace haliax::reference
