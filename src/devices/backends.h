// The registry of backends.
#pragma once
#include <string>

#include "program/program.h"

namespace haliax {

// Returns the device of a backend: "cpu", "reference", or a plugin. Creates it on first use. Raises
// for an unknown name, and suggests the nearest known one.
program::Device& backend(const std::string& name);

}  // namespace haliax
