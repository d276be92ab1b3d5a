// Whether the points of an elementwise step may be made in another order.
#pragma once
#include <cstddef>
#include <vector>

#include "program/program.h"

namespace haliax::program {

// No instruction is asked once for several points, and no store writes to a slot that another
// instruction reads or writes; memory: where each slot lies.
bool points_are_independent(const Fused&, const Program&, const std::vector<std::byte*>& memory);

}  // namespace haliax::program
