// What makes a step illegal by itself, whatever the other steps of its Program do.
#pragma once
#include <string>

#include "program/program.h"

namespace haliax {

// Returns what is wrong with the step; empty if it is legal.
std::string fault_of(const program::Step&, const program::Program&);

}  // namespace haliax
