// The reference backend: runs a Program one value at a time, as it is written. Short and slow: the others are tested against it.
#pragma once
#include <memory>

#include "program/program.h"

namespace haliax::reference {

std::unique_ptr<program::Device> make_reference_device();

}  // namespace haliax::reference
