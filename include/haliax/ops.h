// Ops on named arrays. An op selects axes by name, builds a node of the graph, and returns at once.
//
// Rules for all ops, unless the comment of an op states otherwise:
// - The result has the axes and the dtype of the operand.
// - A parameter of type `Arr` accepts a `NamedArray` or a C++ scalar. A scalar adopts the dtype of
//   the arrays it meets, but a fraction promotes integers to `f32`.
// - An `AxisSelection` that is omitted, or `{}`, selects all axes. `Names{}` selects no axis.
// - An `Axis` in place of a name also checks the size.
// - Errors (`haliax::Error`) are raised when the graph is built, and name the line of the caller. A
//   missing axis, an axis of another size and an empty `NamedArray` raise in every op. Values are
//   never checked.
//
// The results for NaN, extremes and empty axes are tabulated in docs/reference/op-semantics.md.
#pragma once
#include <optional>

#include "haliax/array.h"
#include "haliax/indexing.h"
#include "haliax/shape.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Creation
/// @{

/// Returns an array of zeros.
NamedArray zeros(const AxisSpec& axes, DType dtype = DType::f32,
                 SourceLocation at = SourceLocation::current());

/// Returns an array of ones.
NamedArray ones(const AxisSpec& axes, DType dtype = DType::f32,
                SourceLocation at = SourceLocation::current());

/// Returns an array in which every element is `value`, a C++ scalar or a scalar array.
///
/// @param axes   axes of the result
/// @param value  value of each element
/// @param dtype  dtype of the result; the default is the dtype of `value` (`f32`, `i32`, `bool`)
/// @throws haliax::Error if `value` has axes, or `dtype` cannot hold `value`
NamedArray full(const AxisSpec& axes, Arr value, std::optional<DType> dtype = {});

/// Returns an array of zeros with the axes of `like`, and its dtype unless `dtype` is set.
NamedArray zeros_like(Arr like, std::optional<DType> dtype = {});

/// Returns an array of ones with the axes of `like`, and its dtype unless `dtype` is set.
NamedArray ones_like(Arr like, std::optional<DType> dtype = {});

/// Returns an array of `value` with the axes of `like`, and its dtype unless `dtype` is set.
NamedArray full_like(Arr like, Arr value, std::optional<DType> dtype = {});

/// Options of `arange`.
struct ArangeOptions {
  double start = 0;  ///< first value
  double step = 1;   ///< difference between neighbors
  /// Dtype of the result. Default: `f32` if `start` or `step` is a fraction, else `i32`, or `i64`
  /// if `i32` cannot hold both ends.
  std::optional<DType> dtype = {};
};

/// Returns the values `start + step * i`, with one value for each position `i`.
///
/// Several axes count in row-major order.
///
/// @throws haliax::Error if `options.dtype` cannot hold both ends
///
///     arange({Batch, Embed});   // batch=2, embed=3: [[0, 1, 2], [3, 4, 5]]
NamedArray arange(const AxisSpec& axes, ArangeOptions options = {},
                  SourceLocation at = SourceLocation::current());
/// The same, with a `start` and a `step` that may be scalar arrays, for example a traced position.
///
/// The dtype is the promoted dtype of `start` and `step`.
NamedArray arange(const AxisSpec& axes, Arr start, Arr step = 1);

/// Options of `linspace` and `geomspace`.
struct LinspaceOptions {
  double start = 0;                 ///< first value
  double stop = 1;                  ///< last value, or the end that `endpoint` excludes
  bool endpoint = true;             ///< true: the last value is `stop`
  std::optional<DType> dtype = {};  ///< dtype of the result; default: `f32`
};

/// Returns evenly spaced values from `start` to `stop` along `axis`. A name without a size has 50
/// positions. Integer dtypes round down.
NamedArray linspace(const AxisSelector& axis, LinspaceOptions options = {},
                    SourceLocation at = SourceLocation::current());

/// Options of `logspace`.
struct LogspaceOptions {
  double start = 0;                 ///< exponent of the first value
  double stop = 1;                  ///< exponent of the last value
  bool endpoint = true;             ///< true: the last exponent is `stop`
  double base = 10;                 ///< base of the powers
  std::optional<DType> dtype = {};  ///< dtype of the result; default: `f32`
};

/// Returns the powers of `base` with the evenly spaced exponents of `linspace`.
NamedArray logspace(const AxisSelector& axis, LogspaceOptions options = {},
                    SourceLocation at = SourceLocation::current());

/// Returns values from `start` to `stop` along `axis` whose neighbors have a constant quotient.
///
/// @throws haliax::Error if `start` or `stop` is 0, or their signs differ
NamedArray geomspace(const AxisSelector& axis, LinspaceOptions options = {},
                     SourceLocation at = SourceLocation::current());

/// Returns the one-hot encoding of `ids`: 1 at the position of the id along `Class`, 0 elsewhere.
///
/// @param ids    integer array with any axes, or a C++ integer. An id of an array that is outside
///               of `Class`, or negative, yields zeros. A negative C++ integer counts from the end.
/// @param Class  the axis to add, with its size
/// @param dtype  dtype of the result
/// @return array with the axes of `ids`, then `Class`
/// @throws haliax::Error if `ids` is not an integer array, already has `Class`, or is a C++ integer
/// out of range
///
///     one_hot(-1, Pos);   // 1 at the last position
NamedArray one_hot(Arr ids, const Axis& Class, DType dtype = DType::f32);

/// @}

/// @name Elementwise ops on one array
/// Functions that integers are not closed under (`exp`, `sqrt`, `tanh`, ...) return `f32` for
/// integers and bools.
/// @{

/// Computes the absolute value. A bool is unchanged.
NamedArray abs(Arr x);
/// Computes the sign: -1, 0 or 1. The sign of NaN is NaN.
NamedArray sign(Arr x);
/// Computes `-x`. Raises for bools: use `logical_not`.
NamedArray negative(Arr x);
/// Returns `x`.
NamedArray positive(Arr x);
/// Computes `x * x`.
NamedArray square(Arr x);
/// Computes `1 / x`. Integers yield `f32`.
NamedArray reciprocal(Arr x);
/// Computes e to the power `x`.
NamedArray exp(Arr x);
/// Computes 2 to the power `x`.
NamedArray exp2(Arr x);
/// Computes `exp(x) - 1`, which is accurate near 0.
NamedArray expm1(Arr x);
/// Computes the natural logarithm. `log(0)` is -infinity, and a negative number yields NaN.
NamedArray log(Arr x);
/// Computes the logarithm to base 2.
NamedArray log2(Arr x);
/// Computes the logarithm to base 10.
NamedArray log10(Arr x);
/// Computes `log(1 + x)`, which is accurate near 0.
NamedArray log1p(Arr x);
/// Computes the square root. A negative number yields NaN.
NamedArray sqrt(Arr x);
/// Computes `1 / sqrt(x)`.
NamedArray rsqrt(Arr x);
/// Computes the cube root.
NamedArray cbrt(Arr x);
/// Computes the sine of an angle in radians.
NamedArray sin(Arr x);
/// Computes the cosine of an angle in radians.
NamedArray cos(Arr x);
/// Computes the tangent of an angle in radians.
NamedArray tan(Arr x);
/// Computes the inverse sine, in radians.
NamedArray arcsin(Arr x);
/// Computes the inverse cosine, in radians.
NamedArray arccos(Arr x);
/// Computes the inverse tangent, in radians.
NamedArray arctan(Arr x);
/// Computes the hyperbolic sine.
NamedArray sinh(Arr x);
/// Computes the hyperbolic cosine.
NamedArray cosh(Arr x);
/// Computes the hyperbolic tangent.
NamedArray tanh(Arr x);
/// Computes the inverse hyperbolic sine.
NamedArray arcsinh(Arr x);
/// Computes the inverse hyperbolic cosine.
NamedArray arccosh(Arr x);
/// Computes the inverse hyperbolic tangent.
NamedArray arctanh(Arr x);
/// Computes the error function.
NamedArray erf(Arr x);
/// Computes the inverse of the error function.
NamedArray erfinv(Arr x);
/// Converts degrees to radians.
NamedArray deg2rad(Arr x);
/// Converts radians to degrees.
NamedArray rad2deg(Arr x);
/// Rounds toward negative infinity. Integers are unchanged and keep their dtype.
NamedArray floor(Arr x);
/// Rounds toward positive infinity. Integers are unchanged and keep their dtype.
NamedArray ceil(Arr x);
/// Rounds toward zero. Integers are unchanged and keep their dtype.
NamedArray trunc(Arr x);
/// Rounds to `decimals` decimal places. Halves round to even.
///
/// @throws haliax::Error if `decimals` is negative and `x` is not a float array
NamedArray round(Arr x, int decimals = 0);
/// Computes sin(pi x) / (pi x), which is 1 at 0.
NamedArray sinc(Arr x);
/// Computes the modified Bessel function of the first kind of order 0: the mean of `exp(x cos(t))`
/// over `t` from 0 to pi.
NamedArray i0(Arr x);
/// Returns true for each element that is neither an infinity nor NaN. Integers are finite.
NamedArray isfinite(Arr x);
/// Returns true for each element that is NaN.
NamedArray isnan(Arr x);
/// Returns true for each element that is an infinity of either sign.
NamedArray isinf(Arr x);
/// Returns true for each element that is -infinity.
NamedArray isneginf(Arr x);
/// Returns true for each element that is +infinity.
NamedArray isposinf(Arr x);
/// Returns true for each element whose sign bit is set, including -0.0 and negative NaN.
NamedArray signbit(Arr x);
/// Computes the logical negation, as bools. Any nonzero element is true, NaN included.
NamedArray logical_not(Arr x);
/// Inverts each bit of an integer, or negates a bool. Raises for floats.
NamedArray bitwise_not(Arr x);
/// Converts to another dtype.
///
/// A float that an integer dtype cannot hold becomes the nearest value that the dtype holds, and
/// NaN becomes 0. Conversion to `bool` is `x != 0`.
NamedArray astype(Arr x, DType dtype);
/// Returns `x` with a zero gradient.
NamedArray stop_gradient(Arr x);

/// @}

/// @name Elementwise ops on several arrays
/// The axes of one operand must contain the axes of the others. The result has the axes of the
/// larger operand, in its order; if both have the same axes, in the order of the left operand. A
/// partial overlap raises: add the missing axes with `broadcast_axis`. A size of 1 does not
/// stretch. The dtype is the promoted dtype (`promote`), and comparisons return bools.
/// @{

/// Computes `a + b`. The sum of two bools is their logical or.
NamedArray add(Arr a, Arr b);
/// Computes `a - b`. Raises for two bools.
NamedArray subtract(Arr a, Arr b);
/// Computes the elementwise product `a * b`. For two bools this is their logical and.
NamedArray multiply(Arr a, Arr b);
/// Computes `a / b`. Integers yield `f32`.
NamedArray divide(Arr a, Arr b);
/// Computes `a` to the power `b`.
///
/// Integers stay integers. A C++ scalar `b` that is a whole number of magnitude 16 or less becomes
/// repeated multiplication, so it is valid for a negative `a`.
///
/// @throws haliax::Error if `a` is an integer array and `b` is such a scalar and negative
NamedArray power(Arr a, Arr b);
/// Computes the larger of both elements. NaN propagates.
/// @see fmax, max
NamedArray maximum(Arr a, Arr b);
/// Computes the smaller of both elements. NaN propagates.
/// @see fmin, min
NamedArray minimum(Arr a, Arr b);
/// Computes the quotient, rounded toward negative infinity. For integers, `x / 0` is -1.
NamedArray floor_divide(Arr a, Arr b);
/// Computes the remainder of `floor_divide`, which has the sign of `b`. For integers, `x % 0` is
/// `x`.
NamedArray mod(Arr a, Arr b);
/// Computes the remainder of the division rounded toward zero, which has the sign of `a`.
NamedArray fmod(Arr a, Arr b);
/// Computes the angle of the point (`b`, `a`) in radians: the inverse tangent of `a / b` in the
/// quadrant of the point.
NamedArray arctan2(Arr a, Arr b);
/// Computes `sqrt(a * a + b * b)` without overflow of the squares.
NamedArray hypot(Arr a, Arr b);
/// Computes `log(exp(a) + exp(b))` without overflow.
NamedArray logaddexp(Arr a, Arr b);
/// Computes `log2(exp2(a) + exp2(b))` without overflow.
NamedArray logaddexp2(Arr a, Arr b);
/// Computes `a` to the power `b` as floats. Integers yield `f32`.
NamedArray float_power(Arr a, Arr b);
/// Computes `floor_divide(a, b)` and `mod(a, b)`.
std::pair<NamedArray, NamedArray> divmod(Arr a, Arr b);
/// Returns the next number of the dtype after `a` in the direction of `b`, also in `bf16` and
/// `f16`.
NamedArray nextafter(Arr a, Arr b);
/// Computes `a == b` for each element.
NamedArray equal(Arr a, Arr b);
/// Computes `a != b` for each element. A comparison with NaN is true.
NamedArray not_equal(Arr a, Arr b);
/// Computes `a < b` for each element.
NamedArray less(Arr a, Arr b);
/// Computes `a <= b` for each element.
NamedArray less_equal(Arr a, Arr b);
/// Computes `a > b` for each element.
NamedArray greater(Arr a, Arr b);
/// Computes `a >= b` for each element.
NamedArray greater_equal(Arr a, Arr b);
/// Computes the logical and, as bools. Any nonzero element is true, NaN included.
NamedArray logical_and(Arr a, Arr b);
/// Computes the logical or, as bools. Any nonzero element is true, NaN included.
NamedArray logical_or(Arr a, Arr b);
/// Computes the exclusive or of two truth values, as bools.
NamedArray logical_xor(Arr a, Arr b);
/// Computes the bitwise and of integers or bools. Raises for floats.
NamedArray bitwise_and(Arr a, Arr b);
/// Computes the bitwise or of integers or bools. Raises for floats.
NamedArray bitwise_or(Arr a, Arr b);
/// Computes the bitwise exclusive or of integers or bools. Raises for floats.
NamedArray bitwise_xor(Arr a, Arr b);
/// Shifts the bits of `a` left by `b`. A shift by the width of the dtype or more yields 0.
NamedArray left_shift(Arr a, Arr b);
/// Shifts the bits of `a` right by `b`, with copies of the sign bit for signed dtypes.
NamedArray right_shift(Arr a, Arr b);
/// Computes the larger of both elements. If one of them is NaN, the result is the other one.
NamedArray fmax(Arr a, Arr b);
/// Computes the smaller of both elements. If one of them is NaN, the result is the other one.
NamedArray fmin(Arr a, Arr b);

/// Selects elements of `x` where the condition is true, and elements of `y` elsewhere.
///
/// @param condition  array of any dtype; nonzero is true
/// @param x          value where `condition` is true
/// @param y          value where `condition` is false
/// @return array with the axes of the largest operand and the promoted dtype of `x` and `y`
///
/// The gradient of the operand that is not selected is 0. But 0 times an infinite derivative is
/// NaN, so replace invalid inputs before a function such as `log`, not after it.
///
///     where(x > 0., log(where(x > 0., x, 1.)), 0.);
/// @see cond
NamedArray where(Arr condition, Arr x, Arr y);

/// Returns the positions of the nonzero elements of `condition`, in row-major order.
///
/// @param condition   array of any dtype
/// @param fill_value  value of the positions after the last nonzero element
/// @param new_axis    axis of the results; further nonzero elements are dropped
/// @return one `i32` array with the axis `new_axis` for each axis of `condition`
///
///     where(mask, -1, Axis("hit", 4));   // mask (n=3): [1, 0, 1] -> {[0, 2, -1, -1]}
std::vector<NamedArray> where(const NamedArray& condition, std::int64_t fill_value,
                              const Axis& new_axis, SourceLocation at = SourceLocation::current());
/// Returns the positions of the nonzero elements of `x`: `where(x, fill_value, size)`.
std::vector<NamedArray> nonzero(Arr x, const Axis& size, std::int64_t fill_value = 0);

/// Limits the elements of `x` to the range from `min` to `max`. Either bound may be absent.
///
/// NaN propagates. If `min` exceeds `max`, the result is `max`. The dtype is promoted.
NamedArray clip(Arr x, std::optional<Arr> min, std::optional<Arr> max);

/// Options of `isclose` and `allclose`.
struct CloseOptions {
  double rtol = 1e-5;      ///< tolerance relative to `abs(b)`
  double atol = 1e-8;      ///< absolute tolerance
  bool equal_nan = false;  ///< true: NaN is close to NaN
};

/// Returns true for each element with `abs(a - b) <= atol + rtol * abs(b)`. Equal infinities are
/// close.
NamedArray isclose(Arr a, Arr b, CloseOptions options = {});
/// Returns true if all elements are close, as in `isclose`. Computes the arrays.
bool allclose(const NamedArray& a, const NamedArray& b, CloseOptions options = {},
              SourceLocation at = SourceLocation::current());
/// Returns true if both arrays have the same axes, in any order, and equal elements. Computes the
/// arrays.
bool array_equal(const NamedArray& a, const NamedArray& b,
                 SourceLocation at = SourceLocation::current());
/// Returns true if both arrays broadcast to the same axes and have equal elements there. Computes
/// the arrays.
bool array_equiv(const NamedArray& a, const NamedArray& b,
                 SourceLocation at = SourceLocation::current());

/// Elementwise operators: each calls the op of its name (`add`, `equal`, `bitwise_and`, ...).
inline NamedArray operator+(Arr a, Arr b) { return add(a, b); }
inline NamedArray operator-(Arr a, Arr b) { return subtract(a, b); }
inline NamedArray operator*(Arr a, Arr b) { return multiply(a, b); }
inline NamedArray operator/(Arr a, Arr b) { return divide(a, b); }
inline NamedArray operator%(Arr a, Arr b) { return mod(a, b); }
inline NamedArray operator-(Arr a) { return negative(a); }
inline NamedArray operator+(Arr a) { return positive(a); }
inline NamedArray operator==(Arr a, Arr b) { return equal(a, b); }
inline NamedArray operator!=(Arr a, Arr b) { return not_equal(a, b); }
inline NamedArray operator<(Arr a, Arr b) { return less(a, b); }
inline NamedArray operator<=(Arr a, Arr b) { return less_equal(a, b); }
inline NamedArray operator>(Arr a, Arr b) { return greater(a, b); }
inline NamedArray operator>=(Arr a, Arr b) { return greater_equal(a, b); }
inline NamedArray operator&(Arr a, Arr b) { return bitwise_and(a, b); }
inline NamedArray operator|(Arr a, Arr b) { return bitwise_or(a, b); }
inline NamedArray operator^(Arr a, Arr b) { return bitwise_xor(a, b); }
inline NamedArray operator~(Arr a) { return bitwise_not(a); }
/// Logical operators on every element, as bools. Both operands are always evaluated. An error names
/// the line at which the right operand was created.
NamedArray operator!(const NamedArray& x);
NamedArray operator&&(const NamedArray& a, const NamedArray& b);
NamedArray operator&&(const NamedArray& a, bool b);
NamedArray operator&&(bool a, const NamedArray& b);
NamedArray operator||(const NamedArray& a, const NamedArray& b);
NamedArray operator||(const NamedArray& a, bool b);
NamedArray operator||(bool a, const NamedArray& b);
/// Shifts of integers: `left_shift` and `right_shift`.
inline NamedArray operator<<(Arr a, Arr b) { return left_shift(a, b); }
inline NamedArray operator>>(Arr a, Arr b) { return right_shift(a, b); }

/// @}

/// @name Reductions
/// A reduction removes the selected axes, and all axes by default. The remaining axes keep their
/// order. `Names{}` selects no axis.
/// @{

/// Options of `sum`, `mean`, `prod`, `max`, `min`, `any` and `all`.
struct ReduceOptions {
  /// Bool mask: only elements where it is true count. Its axes are a subset of those of the array.
  std::optional<NamedArray> where = {};
  /// Dtype of the result. `sum`, `mean` and `prod` also accumulate in it, or in a wider dtype.
  std::optional<DType> dtype = {};
};

/// Computes the sum over the selected axes.
///
/// @param x        array
/// @param axis     axes to reduce; default: all
/// @param options  mask and dtype
/// @return array without the axes. bool, `i8` and `i16` sum to `i32`, `u8` and `u16` to `u32`; 2^31
/// or more terms sum to `i64` or `u64`. Other dtypes stay.
/// @throws haliax::Error if the mask is not bool, or has an axis that `x` lacks
///
/// Sums of `f32`, `bf16` and `f16` add groups of terms in `f32` and the groups in `f64`, and round
/// once. The sum over an empty axis is 0.
///
///     sum(x, "embed");                   // (batch, embed) -> (batch)
///     sum(x, {"batch", Embed});          // (batch, embed) -> (), checks the size of embed
///     sum(x, "embed", {.where = mask});  // sums the elements where the mask is true
NamedArray sum(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {});

/// Computes the mean over the selected axes.
///
/// Integers yield `f32`. With a mask, the divisor is the number of selected elements. The mean of
/// no element is NaN.
NamedArray mean(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {});

/// Multiplies the elements along the selected axes. The dtype is the dtype of `sum`, and the result
/// for an empty axis is 1.
NamedArray prod(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {});

/// Computes the maximum over the selected axes. NaN propagates.
///
/// If several positions hold the maximum, they share its gradient evenly. If a mask selects
/// nothing, the result is the lowest value of the dtype (-infinity for floats).
///
/// @throws haliax::Error if a selected axis has size 0
/// @see maximum, argmax
NamedArray max(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {});

/// Computes the minimum over the selected axes. NaN propagates.
///
/// If several positions hold the minimum, they share its gradient evenly. If a mask selects
/// nothing, the result is the highest value of the dtype (+infinity for floats).
///
/// @throws haliax::Error if a selected axis has size 0
/// @see minimum, argmin
NamedArray min(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {});

/// Options of `var` and `std_dev`.
struct VarOptions {
  std::optional<NamedArray> where = {};  ///< bool mask of the elements that count
  int ddof = 0;                          ///< subtracted from the number of elements in the divisor
  std::optional<DType> dtype = {};       ///< dtype of the computation and the result
};

/// Computes the variance over the selected axes: the mean of squared deviations from the mean.
///
/// The divisor is the number of elements minus `ddof`. Integers yield `f32`, and 16-bit floats are
/// computed in `f32`. A divisor of 0 or less yields NaN.
NamedArray var(Arr x, const AxisSelection& axis = {}, VarOptions options = {});

/// Computes the standard deviation over the selected axes: the square root of `var`.
NamedArray std_dev(Arr x, const AxisSelection& axis = {}, VarOptions options = {});

/// Computes the maximum minus the minimum over the selected axes.
///
/// @throws haliax::Error if a selected axis has size 0
NamedArray ptp(Arr x, const AxisSelection& axis = {});

/// Counts how often each position of `Counts` occurs in `x`.
///
/// @param x       integer array with one axis. Negative values count as 0, and values outside of
///                `Counts` are dropped, as in JAX.
/// @param Counts  axis of the result
/// @return `i32` array with the axis `Counts`
/// @throws haliax::Error if `x` is not an integer array with one axis
NamedArray bincount(Arr x, const Axis& Counts);
/// Adds the weight of each element to its count. `weights` has the axis of `x`, and the result has
/// its dtype.
NamedArray bincount(Arr x, const Axis& Counts, std::optional<Arr> weights);

/// Returns true if any element along the selected axes is nonzero. NaN is true.
NamedArray any(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {});

/// Returns true if all elements along the selected axes are nonzero. NaN is true.
NamedArray all(Arr x, const AxisSelection& axis = {}, ReduceOptions options = {});

/// Returns the position of the maximum along `axis`, or the flat position over all axes.
///
/// The first NaN wins, and ties select the first position. A flat position is row-major in the
/// order of the axes.
///
/// @return `i32` array without the axis; `i64` for more than 2^31 - 1 positions
/// @throws haliax::Error if the axis has size 0
NamedArray argmax(Arr x);
/// Returns the position of the maximum along `axis`. Without a value of `axis`, as above.
NamedArray argmax(Arr x, std::optional<AxisSelector> axis);

/// Returns the position of the minimum along `axis`, or the flat position over all axes.
///
/// The rules of `argmax` apply.
NamedArray argmin(Arr x);
/// Returns the position of the minimum along `axis`. Without a value of `axis`, as above.
NamedArray argmin(Arr x, std::optional<AxisSelector> axis);

/// Computes `log(sum(exp(x), axis))` without overflow.
///
/// Integers yield `f32`. If all elements are -infinity, the result is -infinity.
NamedArray logsumexp(Arr x, const AxisSelection& axis = {});

/// @}

/// @name Ops along axes
/// The result has the axes of the operand. An empty axis yields an empty array.
/// @{

/// Computes `exp(x) / sum(exp(x), axis)` without overflow.
///
/// Several axes form one joint distribution. Integers yield `f32`, and 16-bit floats are computed
/// in `f32`. A row of -infinity, or a row with a NaN or +infinity, yields NaN.
NamedArray softmax(Arr x, const AxisSelection& axis);

/// Computes the logarithm of `softmax`, accurately also for large negative results.
NamedArray log_softmax(Arr x, const AxisSelection& axis);

/// Computes `(x - mean) / sqrt(var + epsilon)` over the selected axes. Integers yield `f32`.
NamedArray standardize(Arr x, const AxisSelection& axis, double epsilon = 1e-5);

/// Computes the running sums along `axis`, in `dtype`; default: the dtype of `sum`.
NamedArray cumsum(Arr x, const AxisSelector& axis, std::optional<DType> dtype = {});

/// Computes the running products along `axis`, in `dtype`; default: the dtype of `prod`.
NamedArray cumprod(Arr x, const AxisSelector& axis, std::optional<DType> dtype = {});

/// Sorts along `axis`: ascending and stable, with NaN last.
NamedArray sort(Arr x, const AxisSelector& axis);

/// Returns the positions that sort `x` along `axis`: ascending and stable, with NaN last.
///
/// @return `i32` array; `i64` for more than 2^31 - 1 positions
NamedArray argsort(Arr x, const AxisSelector& axis);

/// Returns the `k` largest elements along `axis` in descending order, and their positions.
///
/// NaN counts as the largest value. Ties select the first position.
///
/// @param x         array
/// @param axis      axis to select along
/// @param k         number of elements, at most the size of `axis`
/// @param new_axis  axis of size `k`, or its name; default: the name of `axis`
/// @return values with the dtype of `x`, and positions in `i32` (`i64` for more than 2^31 - 1)
/// @throws haliax::Error if `k` is negative, exceeds the size of `axis`, or is not the size of
/// `new_axis`
///
///     auto [values, ids] = top_k(logits, "vocab", 5, "top");   // (batch, vocab) -> (batch, top)
std::pair<NamedArray, NamedArray> top_k(Arr x, const AxisSelector& axis, std::int64_t k,
                                        std::optional<AxisSelector> new_axis = {});

/// @}

/// @name Contractions
/// @{

/// The precision of the multiplications of a contraction. The names are those of JAX.
///
/// `f32` and `f64` contractions use the full precision of the dtype, and 16-bit floats accumulate
/// in `f32`, so that each value yields the same result. The CUDA option `tf32` reduces the
/// precision of a whole program.
enum class Precision : std::uint8_t { standard, high, highest };

/// Options of `dot` and `einsum`.
struct DotOptions {
  /// Order of the axes of the result: names, or axes whose sizes are checked. `"..."` stands for
  /// the axes that are not listed. Default: by first appearance over the operands. `einsum` states
  /// the order in its expression.
  AxisSelection out_axes = {};
  /// Dtype of the result. A wider float keeps the operands as they are and rounds the sums once.
  /// Default: the promoted dtype.
  std::optional<DType> preferred_element_type = {};
  Precision precision = Precision::standard;  ///< accepted for code from Haliax
};

/// Contracts arrays over `axis`: sums the elementwise product of all operands over these axes.
///
/// Axes that several operands share and that are not contracted are batch axes. More than two
/// operands are contracted in pairs, the cheapest pair first. 16-bit floats accumulate in `f32`.
///
/// @param a        first operand
/// @param b        second operand
/// @param axis     axes to contract; each one must be in at least two operands
/// @param options  order of the result axes, and dtype
/// @return array with the remaining axes, by first appearance over the operands
/// @throws haliax::Error if a contracted axis is in only one operand, or an axis has two sizes
///
///     dot(x, weight, "embed");        // (batch, embed), (embed, mlp) -> (batch, mlp)
///     dot({x, scale, weight}, Embed); // three operands
///     dot(x, y, Names{});             // an outer product; shared axes are batch axes
/// @see einsum
NamedArray dot(Arr a, Arr b, const AxisSelection& axis, DotOptions options = {});
NamedArray dot(std::initializer_list<Arr> arrays, const AxisSelection& axis,
               DotOptions options = {});
NamedArray dot(const std::vector<NamedArray>& arrays, const AxisSelection& axis,
               DotOptions options = {}, SourceLocation at = SourceLocation::current());

/// Contracts arrays as an expression specifies.
///
/// Three forms, with labels separated by spaces:
/// - By position: `"b d, d m -> b m"`. One list per array labels its axes in order. A label denotes
///   one axis in all arrays. The axes that the result omits are summed.
/// - By name: `"{embed} ->"`. The axes in braces are summed unless the result lists them. The other
///   axes precede the axes that the result lists.
/// - By result: `"-> batch mlp"`. All axes that the result omits are summed.
///
/// `...` on the left denotes all axes that are not listed. In the result of the first form, it
/// denotes the same axes; in the others, it denotes all axes that the result does not list.
///
/// @param spec     the expression
/// @param arrays   the operands
/// @param aliases  meaning of labels: a name in place of the label, or an `Axis` to check the size
/// @param options  dtype of the result
/// @return array with the promoted dtype, or with `options.preferred_element_type`
/// @throws haliax::Error if the expression is malformed, or labels do not match the axes
///
///     einsum("b d, d m -> b m", {x, w});   // (batch, embed), (embed, mlp) -> (batch, mlp)
///     einsum("{embed} ->", {x, w});        // the same, as dot(x, w, "embed")
/// @see dot
NamedArray einsum(std::string_view spec, std::initializer_list<Arr> arrays,
                  const std::vector<std::pair<std::string, AxisSelector>>& aliases = {},
                  DotOptions options = {});
NamedArray einsum(std::string_view spec, const std::vector<NamedArray>& arrays,
                  const std::vector<std::pair<std::string, AxisSelector>>& aliases = {},
                  DotOptions options = {}, SourceLocation at = SourceLocation::current());

/// @}

}  // namespace haliax
