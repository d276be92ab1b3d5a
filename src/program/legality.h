// Legality of a single step, independent of the other steps of its Program.
#pragma once
#include <string>

#include "program/program.h"

namespace haliax {

// Returns a description of the first fault of the step, or "" if the step is legal.
std::string fault_of(const program::Step&, const program::Program&);

}  // namespace haliax
