// The oracle of large products: summed in f64, in a small part of the time that the reference
// backend takes.
#pragma once
#include <cstddef>
#include <vector>

#include "program/program.h"

namespace haliax::testing {

using Bytes = std::vector<std::byte>;

// What a contraction of two arrays makes of `out`.
Bytes product(const program::Contract&, const Bytes& a, const Bytes& b, Bytes out);

}  // namespace haliax::testing
