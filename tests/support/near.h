// Comparing arrays in tests: CHECK(difference(got, expected, 1e-6) == "");
#pragma once
#include <cmath>
#include <string>

#include "haliax/array.h"

namespace haliax {

inline bool is_near(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= tolerance * (1 + std::abs(b));
}

// Returns an empty string, or the first difference: presence, dtype, axes, order of axes, or a
// value.
inline std::string difference(const NamedArray& got, const NamedArray& expected, double tolerance) {
  if (got.empty() != expected.empty())
    return expected.empty() ? "an array, not an empty one" : "empty";
  if (got.empty()) return "";
  if (got.dtype() != expected.dtype())
    return std::string(name_of(got.dtype())) + ", not " + std::string(name_of(expected.dtype()));
  if (got.axes() != expected.axes())
    return to_string(got.axes()) + ", not " + to_string(expected.axes());
  auto a = got.doubles(), b = expected.doubles();
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!is_near(a[i], b[i], tolerance))
      return "position " + std::to_string(i) + ": " + std::to_string(a[i]) + ", not " +
             std::to_string(b[i]);
  return "";
}

}  // namespace haliax
