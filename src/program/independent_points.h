// A check of elementwise steps: whether their elements may be computed in any order.
#pragma once
#include <cstddef>
#include <vector>

#include "program/program.h"

namespace haliax::program {

// Returns true if the step has no inner dims and no reduction, and if no store overlaps the memory
// of another instruction's load or store. `memory` holds the address of each slot; an unknown
// address (null) yields false.
bool points_are_independent(const Fused&, const Program&, const std::vector<std::byte*>& memory);

}  // namespace haliax::program
