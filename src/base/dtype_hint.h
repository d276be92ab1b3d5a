// Ends of error messages about arrays of another dtype than an op requires.
#pragma once
#include <string>

#include "haliax/dtype.h"

namespace haliax {

// Returns how to convert an array to integers.
inline std::string integer_hint(DType is) {
  return std::string("; convert it with astype(DType::i32)") +
         (is_float(is) ? ", as a C++ number that becomes a NamedArray is f32" : "");
}
// Returns how to convert an array to bools.
inline std::string bool_hint() { return "; use a comparison, such as x != 0"; }

}  // namespace haliax
