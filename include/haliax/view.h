// Access to the memory of an array in place, and arrays from spans of any element type. Include it
// in addition to haliax.h.
#pragma once
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

/// The memory of an array, with sizes and strides.
struct HostView {
  const void* data = nullptr;         ///< valid while the array exists and is not donated
  std::vector<std::int64_t> sizes;    ///< sizes of the requested axes
  std::vector<std::int64_t> strides;  ///< strides of the requested axes, in elements
};

/// Returns a view of the memory of an array, without a copy. Computes the array if it has no value.
///
/// @param a      array
/// @param dtype  expected dtype
/// @param axes   all axes of the array, in the order of the sizes and strides
/// @param at     the line that error messages name
/// @throws haliax::Error if the dtype differs, or `axes` are not all axes of the array
HostView host_view(const NamedArray& a, DType dtype, const std::vector<AxisSelector>& axes,
                   SourceLocation at = SourceLocation::current());

namespace detail {
template <class T> constexpr DType element_dtype() {
  if constexpr (std::is_same_v<T, bool>)
    return DType::boolean;
  else if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else {
    static_assert(std::is_integral_v<T>, "haliax: an array cannot have elements of this type");
    constexpr DType types[2][4] = {{DType::u8, DType::u16, DType::u32, DType::u64},
                                   {DType::i8, DType::i16, DType::i32, DType::i64}};
    return types[std::is_signed_v<T>][sizeof(T) == 1   ? 0
                                      : sizeof(T) == 2 ? 1
                                      : sizeof(T) == 4 ? 2
                                                       : 3];
  }
}
}  // namespace detail

/// Returns the elements of an array in place, row-major in the order of its axes.
///
/// The span is valid while the array exists and is not donated.
///
/// @throws haliax::Error if `T` is not the element type of the dtype
///
///     for (float v : as_span<float>(x)) total += v;
template <class T>
std::span<const T> as_span(const NamedArray& a, SourceLocation at = SourceLocation::current()) {
  std::vector<AxisSelector> axes;
  for (auto& axis : a.axes()) axes.push_back(axis);
  auto v = host_view(a, detail::element_dtype<T>(), axes, at);
  return {static_cast<const T*>(v.data), std::size_t(a.size())};
}

/// Copies values into an array, row-major in the order of `axes`. `T` is `float`, `double`, `bool`
/// or an integer type.
///
///     from_span<std::int8_t>(values, {Batch, Embed});   // i8
/// @see array
template <class T>
NamedArray from_span(std::span<const T> values, const AxisSpec& axes,
                     SourceLocation at = SourceLocation::current()) {
  return from_bytes(std::as_bytes(values), detail::element_dtype<T>(), axes, at);
}

}  // namespace haliax
