// An estimate of the time that steps take on a machine, in multiplications.
#pragma once
#include "program/program.h"

namespace haliax {

double cost_of(const std::vector<program::Step>&, const program::Machine&);

}  // namespace haliax
