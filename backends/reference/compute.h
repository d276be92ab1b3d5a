// What the instructions do, on one value.
#pragma once
#include "base/scalar.h"
#include "program/program.h"

namespace haliax::reference {

using scalar::Value;

// The operands all have the dtype `from` (of select: args[1] and args[2] have the result's).
Value compute(program::Code, DType result, DType from, const Value* args);

// acc with x added, multiplied, ...; floats as doubles, so that a whole sum is rounded once: at its
// end, by scalar::rounded.
Value start_of(program::Monoid, DType);
Value combine(program::Monoid, DType, Value acc, Value x);

}  // namespace haliax::reference
