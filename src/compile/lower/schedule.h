// In which order the units of a scope run.
#pragma once
#include "compile/lower/fuse.h"

namespace haliax {

// `known`: what lies in memory already. Any order that keeps Unit::after is right; this one keeps little alive. `by_age`: as they were made.
std::vector<int> schedule(const Scope&, const Places& known, bool by_age);

}  // namespace haliax
