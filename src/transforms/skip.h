// Turns of a loop that are not worth making.
#pragma once
#include "graph/loop.h"

namespace haliax {

// A flag without axes: where it is false, all that this body makes is 0, since what it makes stands under masks that are false throughout. Null
// where that cannot be known, or not at a small price.
NodePtr turn_flag(const Loop&, std::size_t body);

}  // namespace haliax
