// Fills and compares large arrays. The build optimizes this file as it does the library; tests are
// not optimized.
#include "support/programs.h"

#include <cmath>
#include <random>
#include <string>

#include "base/scalar.h"

namespace haliax::testing {

double Random::normal() { return std::normal_distribution<double>()(engine_); }

void Case::fill(Bytes& bytes, DType dtype) {
  for (std::size_t i = 0; i < bytes.size(); i += static_cast<std::size_t>(bytes_of(dtype)))
    scalar::store(
        dtype, &bytes[i],
        scalar::rounded(
            dtype, {random.normal(), random.below(19) - (scalar::is_unsigned(dtype) ? 0 : 9)}));
}

std::string difference(DType dtype, const Bytes& got, const Bytes& expected, double tol) {
  for (std::size_t i = 0; i < got.size(); i += static_cast<std::size_t>(bytes_of(dtype))) {
    const auto x = scalar::load(dtype, &got[i]), y = scalar::load(dtype, &expected[i]);
    bool same = is_float(dtype) ? (x.real == y.real || (x.real != x.real && y.real != y.real) ||
                                   std::abs(x.real - y.real) <= tol * (1 + std::abs(y.real)))
                                : x.integer == y.integer;
    if (!same)
      return std::string(name_of(dtype)) + " element " +
             std::to_string(i / static_cast<std::size_t>(bytes_of(dtype))) + ": " +
             (is_float(dtype) ? std::to_string(x.real) + " for " + std::to_string(y.real)
                              : std::to_string(x.integer) + " for " + std::to_string(y.integer));
  }
  return "";
}

}  // namespace haliax::testing
