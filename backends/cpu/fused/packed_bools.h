// Plan: fused steps of bools only, as steps of 32-bit words that hold four bools each.
#pragma once
#include <optional>

#include "program/program.h"

namespace haliax::cpu {

// Returns the step on words, or nothing: an instruction is not a function of bools, or an array has
// no words, because its bools are not adjacent or its rows are no multiples of four bools.
// Always: a byte of memory that is not 0 is true, and true is stored as 1.
std::optional<program::Fused> packed_bools(const program::Fused&);

}  // namespace haliax::cpu
