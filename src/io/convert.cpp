// Conversion of elements: loops that vectorize between the floats, and a loop over values for the
// other pairs.
#include "io/convert.h"

#include <cstring>

#include "base/scalar.h"

namespace haliax {
namespace {

struct Bf16Bits {
  std::uint16_t bits;
};
struct F16Bits {
  std::uint16_t bits;
};
float float_of(float x) { return x; }
float float_of(double x) { return float(x); }
float float_of(Bf16Bits x) { return from_bf16(x.bits); }
float float_of(F16Bits x) { return from_f16(x.bits); }
void set_from(float& to, float x) { to = x; }
void set_from(double& to, float x) { to = x; }
void set_from(Bf16Bits& to, float x) { to.bits = to_bf16(x); }
void set_from(F16Bits& to, float x) { to.bits = to_f16(x); }

template <class From, class To>
void convert_floats(const std::byte* source, std::byte* result, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    From x;
    std::memcpy(&x, source + i * std::int64_t(sizeof(From)), sizeof(From));
    To y;
    set_from(y, float_of(x));
    std::memcpy(result + i * std::int64_t(sizeof(To)), &y, sizeof(To));
  }
}
template <class From>
void convert_from(DType to, const std::byte* source, std::byte* result, std::int64_t count) {
  switch (to) {
    case DType::f64:
      return convert_floats<From, double>(source, result, count);
    case DType::bf16:
      return convert_floats<From, Bf16Bits>(source, result, count);
    case DType::f16:
      return convert_floats<From, F16Bits>(source, result, count);
    default:
      return convert_floats<From, float>(source, result, count);
  }
}

}  // namespace

void convert_elements(DType from, const std::byte* source, DType to, std::byte* result,
                      std::int64_t count) {
  if (from == to && to != DType::boolean) {
    if (count > 0) std::memcpy(result, source, std::size_t(count * bytes_of(to)));
  } else if (is_float(from) && is_float(to)) {
    switch (from) {
      case DType::f64:
        return convert_from<double>(to, source, result, count);
      case DType::bf16:
        return convert_from<Bf16Bits>(to, source, result, count);
      case DType::f16:
        return convert_from<F16Bits>(to, source, result, count);
      default:
        return convert_from<float>(to, source, result, count);
    }
  } else {  // also bool to bool: kernels require 0 or 1
    for (std::int64_t i = 0; i < count; ++i)
      scalar::store(to, result + i * bytes_of(to),
                    scalar::cast(scalar::load(from, source + i * bytes_of(from)), from, to));
  }
}

}  // namespace haliax
