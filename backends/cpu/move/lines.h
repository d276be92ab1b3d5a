// Plan and run: the lines that sorts and running sums process.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "backends/cpu/step.h"
#include "haliax/error.h"

namespace haliax::cpu {

// The lines along the last dim.
struct Lines {
  Dims dims;
  std::int64_t count = 1, length = 1;

  Lines(const Dims& all, const char* op) : dims(all) {
    if (all.empty()) throw Error(std::string("[") + op + "] requires a dimension");
    length = all.back();
    dims.pop_back();
    count = program::points(dims);
  }
  std::int64_t offset(const program::View& view, std::int64_t line) const {
    std::int64_t sum = 0;
    for (std::size_t d = dims.size(); d-- > 0;) {
      sum += line % dims[d] * view.strides[d];
      line /= dims[d];
    }
    return sum;
  }
};

}  // namespace haliax::cpu
