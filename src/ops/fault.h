// Parts of Op::fault that several ops share: messages of the verifier about wrong dtypes and sizes.
#pragma once
#include <fmt/format.h>

#include <string>

#include "graph/node.h"
#include "haliax/fmt.h"

namespace haliax {

// Checks the dtypes of the operands: the first `arrays` operands have the dtype of the result, the
// others are ids. Returns a message, or an empty string.
inline std::string fault_of_dtypes(const Node& n, std::size_t arrays) {
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    auto d = n.in[k]->dtype;
    if (k < arrays && d != n.dtype)
      return fmt::format("an operand is {}, but the result is {}", d, n.dtype);
    if (k >= arrays && (is_float(d) || d == DType::boolean)) return fmt::format("ids are {}", d);
  }
  return {};
}
inline std::string fault_of_sizes(const Node& n) {
  return fmt::format("it produces {} from {}", n.axes, n.in[0]->axes);
}

}  // namespace haliax
