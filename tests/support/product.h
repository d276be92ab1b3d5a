// An oracle for large contractions: adds in f64, in a fraction of the time of the reference
// backend.
#pragma once
#include <cstddef>
#include <vector>

#include "program/program.h"

namespace haliax::testing {

using Bytes = std::vector<std::byte>;

// Returns the contraction of two arrays. `out` holds the initial values.
Bytes product(const program::Contract&, const Bytes& a, const Bytes& b, Bytes out);

}  // namespace haliax::testing
