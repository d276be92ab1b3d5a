// Sums (or products, maxima, minima) of what several devices hold, element by element in the order given: every device that takes
// them so has the same bits. Narrow floats are taken in f32, and rounded once.
#pragma once
#include <vector>

#include "program/program.h"

namespace haliax {

template <class T> T folded(program::Monoid m, T a, T b) {
  switch (m) {
    case program::Monoid::sum: return T(a + b);
    case program::Monoid::prod: return T(a * b);
    case program::Monoid::max: return a != a || a > b ? a : b;
    case program::Monoid::min: return a != a || a < b ? a : b;
  }
  return a;
}
// n elements of each part into out, which may be one of them.
void fold(program::Monoid, DType, const std::vector<const std::byte*>& parts, std::byte* out, std::int64_t n);

}  // namespace haliax
