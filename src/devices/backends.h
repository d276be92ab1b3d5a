// Backends by name.
#pragma once
#include <string>

#include "program/program.h"

namespace haliax {

// The device of a backend: "cpu", "reference", or that of a plugin. Raises for an unknown name and
// suggests the nearest known one.
program::Device& backend(const std::string& name);

}  // namespace haliax
