// An estimate of the time that steps take, in multiplications.
#pragma once
#include "program/program.h"

namespace haliax {

double cost_of(const std::vector<program::Step>&);

}  // namespace haliax
