// All points of a box.
#pragma once
#include "program/program.h"

namespace haliax {

template <class F> void each_point(const program::Dims& dims, F f) {   // f(index)
  program::Dims at(dims.size(), 0);
  for (auto d : dims) if (d == 0) return;
  for (;;) {
    f(at);
    std::size_t d = dims.size();
    while (d > 0 && ++at[d - 1] == dims[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace haliax
