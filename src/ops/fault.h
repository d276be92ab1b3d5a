// What Op::fault of ops that move values says, said once.
#pragma once
#include <fmt/format.h>

#include <string>

#include "graph/node.h"
#include "haliax/fmt.h"

namespace haliax {

// The first operands are arrays like the result; those behind them say where.
inline std::string fault_of_dtypes(const Node& n, std::size_t arrays) {
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    auto d = n.in[k]->dtype;
    if (k < arrays && d != n.dtype)
      return fmt::format("an operand is {}, the result {}", d, n.dtype);
    if (k >= arrays && (is_float(d) || d == DType::boolean)) return fmt::format("ids are {}", d);
  }
  return {};
}
inline std::string fault_of_sizes(const Node& n) {
  return fmt::format("it makes {} of {}", n.axes, n.in[0]->axes);
}

}  // namespace haliax
