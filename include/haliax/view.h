// The memory of an array, read in place, and arrays from spans of any element. haliax.h does not
// include this.
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

struct HostView {
  const void* data = nullptr;                // valid while the array lives and is not donated
  std::vector<std::int64_t> sizes, strides;  // of the axes asked for, in elements
};

// Computes the array if need be. `axes` names all of its axes, in the order wanted. Raises for
// another dtype or a missing axis.
HostView host_view(const NamedArray&, DType, const std::vector<AxisSelector>& axes,
                   SourceLocation = SourceLocation::current());

namespace detail {
template <class T> constexpr DType element_dtype() {
  if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else {
    static_assert(std::is_integral_v<T>, "haliax: an array has no such elements");
    constexpr DType types[2][4] = {{DType::u8, DType::u16, DType::u32, DType::u64},
                                   {DType::i8, DType::i16, DType::i32, DType::i64}};
    return types[std::is_signed_v<T>][sizeof(T) == 1   ? 0
                                      : sizeof(T) == 2 ? 1
                                      : sizeof(T) == 4 ? 2
                                                       : 3];
  }
}
}  // namespace detail

// All values, row-major in the order of the array's axes. No copy: good while the array lives and
// is not donated. Raises if T is not its dtype: as_span<float>(x).
template <class T>
std::span<const T> as_span(const NamedArray& a, SourceLocation at = SourceLocation::current()) {
  std::vector<AxisSelector> axes;
  for (auto& axis : a.axes()) axes.push_back(axis);
  auto v = host_view(a, detail::element_dtype<T>(), axes, at);
  return {static_cast<const T*>(v.data), std::size_t(a.size())};
}
// A copy of row-major values, of any dtype that C++ has: from_span<std::int8_t>(values, {Batch,
// Embed}).
template <class T>
NamedArray from_span(std::span<const T> values, const AxisSpec& axes,
                     SourceLocation at = SourceLocation::current()) {
  return from_bytes(std::as_bytes(values), detail::element_dtype<T>(), axes, at);
}

}  // namespace haliax
