// Estimates of the time of steps on a machine, in units of one f32 multiplication.
#pragma once
#include "program/program.h"

namespace haliax {

double cost_of(const std::vector<program::Step>&, const program::Machine&);

}  // namespace haliax
