// Second names of ops: those that Haliax and NumPy also accept. Each function calls the function in
// its comment. Error messages name that function.
#pragma once
#include "haliax/ops.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Second names
/// @{

/// Computes `abs`.
inline NamedArray absolute(Arr x) { return abs(x); }
/// Computes the absolute value as a float. Integers yield `f32`.
NamedArray fabs(Arr x);
/// Rounds to the nearest whole number, as a float. Halves round to even, and integers yield `f32`.
NamedArray rint(Arr x);
/// Computes `trunc`.
inline NamedArray fix(Arr x) { return trunc(x); }
/// Computes `rad2deg`.
inline NamedArray degrees(Arr x) { return rad2deg(x); }
/// Computes `deg2rad`.
inline NamedArray radians(Arr x) { return deg2rad(x); }
/// Computes `bitwise_not`.
inline NamedArray invert(Arr x) { return bitwise_not(x); }
/// Computes `bitwise_not`.
inline NamedArray bitwise_invert(Arr x) { return bitwise_not(x); }
/// Computes `positive`. Arrays are immutable, so `auto y = x` copies as well`.
inline NamedArray copy(Arr x) { return positive(x); }
/// Computes `round`.
inline NamedArray around(Arr x, int decimals = 0) { return round(x, decimals); }
/// Computes `divide`.
inline NamedArray true_divide(Arr a, Arr b) { return divide(a, b); }
/// Computes `mod`.
inline NamedArray remainder(Arr a, Arr b) { return mod(a, b); }
/// Computes `left_shift`.
inline NamedArray bitwise_left_shift(Arr a, Arr b) { return left_shift(a, b); }
/// Computes `right_shift`.
inline NamedArray bitwise_right_shift(Arr a, Arr b) { return right_shift(a, b); }
/// Computes `ravel`.
inline NamedArray flatten(Arr x, const AxisSelector& new_axis) { return ravel(x, new_axis); }
/// Computes `max`.
inline NamedArray amax(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {}) {
  return max(x, axis, options);
}
/// Computes `min`.
inline NamedArray amin(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {}) {
  return min(x, axis, options);
}

/// @}

}  // namespace haliax
