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

/// Options of `linspace`.
struct LinspaceOptions {
  double start = 0;      ///< first value
  double stop = 1;       ///< last value, or the end that `endpoint` excludes
  bool endpoint = true;  ///< true: the last value is `stop`
};

/// Returns evenly spaced values from `start` to `stop` along `axis`, in `f32`.
NamedArray linspace(const Axis& axis, LinspaceOptions options = {},
                    SourceLocation at = SourceLocation::current());

/// Returns the one-hot encoding of `ids`: 1 at the position of the id along `Class`, 0 elsewhere.
///
/// @param ids    integer array with any axes; an id outside of `Class` yields zeros
/// @param Class  the axis to add, with its size
/// @param dtype  dtype of the result
/// @return array with the axes of `ids`, then `Class`
/// @throws haliax::Error if `ids` is not an integer array, or already has `Class`
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

/// Limits the elements of `x` to the range from `min` to `max`. Either bound may be absent.
///
/// NaN propagates. If `min` exceeds `max`, the result is `max`. The dtype is promoted.
NamedArray clip(Arr x, std::optional<Arr> min, std::optional<Arr> max);

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
/// Sums of `f32`, `bf16` and `f16` accumulate in wider dtypes and round once. The sum over an empty
/// axis is 0.
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
};

/// Computes the variance over the selected axes: the mean of squared deviations from the mean.
///
/// The divisor is the number of elements minus `ddof`. Integers yield `f32`, and 16-bit floats are
/// computed in `f32`. A divisor of 0 or less yields NaN.
NamedArray var(Arr x, const AxisSelection& axis = {}, VarOptions options = {});

/// Computes the standard deviation over the selected axes: the square root of `var`.
NamedArray std_dev(Arr x, const AxisSelection& axis = {}, VarOptions options = {});

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
NamedArray argmax(Arr x, std::optional<AxisSelector> axis = {});

/// Returns the position of the minimum along `axis`, or the flat position over all axes.
///
/// The rules of `argmax` apply.
NamedArray argmin(Arr x, std::optional<AxisSelector> axis = {});

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

/// Computes the running sums along `axis`. The dtype is the dtype of `sum`.
NamedArray cumsum(Arr x, const AxisSelector& axis);

/// Computes the running products along `axis`. The dtype is the dtype of `prod`.
NamedArray cumprod(Arr x, const AxisSelector& axis);

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
/// @param new_axis  name of the axis of size `k`; default: the name of `axis`
/// @return values with the dtype of `x`, and positions in `i32` (`i64` for more than 2^31 - 1)
/// @throws haliax::Error if `k` is negative or exceeds the size of `axis`
///
///     auto [values, ids] = top_k(logits, "vocab", 5, "top");   // (batch, vocab) -> (batch, top)
std::pair<NamedArray, NamedArray> top_k(Arr x, const AxisSelector& axis, std::int64_t k,
                                        std::optional<Name> new_axis = {});

/// @}

/// @name Contractions
/// @{

/// Options of `dot`.
struct DotOptions {
  /// Order of the axes of the result; `"..."` stands for the axes that are not named. Default: by
  /// first appearance over the operands.
  std::optional<Names> out_axes = {};
  /// Dtype of the result. A wider float keeps the operands as they are and rounds the sums once.
  /// Default: the promoted dtype.
  std::optional<DType> preferred_element_type = {};
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
/// @return array with the promoted dtype
/// @throws haliax::Error if the expression is malformed, or labels do not match the axes
///
///     einsum("b d, d m -> b m", {x, w});   // (batch, embed), (embed, mlp) -> (batch, mlp)
///     einsum("{embed} ->", {x, w});        // the same, as dot(x, w, "embed")
/// @see dot
NamedArray einsum(std::string_view spec, std::initializer_list<Arr> arrays,
                  const std::vector<std::pair<std::string, AxisSelector>>& aliases = {});

/// @}

/// @name Shape
/// Shape ops change the axes of an array or move its elements. They keep the dtype.
/// @{

/// Renames axes, all of them at once, so that two names can be swapped.
///
/// @throws haliax::Error if an old name is missing, or a name would occur twice
///
///     rename(x, {{"position", "key_position"}});
NamedArray rename(Arr x, std::initializer_list<std::pair<Name, Name>> renames);
NamedArray rename(Arr x, const AxisSelector& from, const AxisSelector& to);
NamedArray rename(Arr x, const std::vector<std::pair<Name, Name>>& renames);

/// Reorders axes. `"..."` stands for the axes that are not listed.
///
/// @throws haliax::Error if the order is incomplete and has no `"..."`, or an `Axis` has another
/// size
///
///     rearrange(x, {"embed", "..."});   // (batch, position, embed) -> (embed, batch, position)
NamedArray rearrange(Arr x, std::initializer_list<AxisSelector> order);
NamedArray rearrange(Arr x, const Names& order);
NamedArray rearrange(Arr x, const Axes& order);

/// Reorders, splits and merges axes as an expression specifies, as `rearrange` of einops does.
///
/// The left side labels the axes by position, or by name in braces. `(h p)` on the left splits an
/// axis, row-major. `(M: h p)` on the right merges axes into one with the name `M`. In braces, a
/// split needs the name of the axis: `{(height: h p) ...}`. `...` stands for the other axes.
///
/// @param x         array
/// @param spec      the expression, `"left -> right"`
/// @param bindings  sizes and names of labels; all but one part of a split need a size
/// @throws haliax::Error if the expression is malformed, a size does not divide, or a binding is
/// unused
///
///     rearrange(x, "N C (h p) (w q) -> N (P: h w) (C: C p q)",
///               {{"p", Axis("p", 4)}, {"q", Axis("q", 4)}});
NamedArray rearrange(Arr x, std::string_view spec,
                     const std::vector<std::pair<std::string, AxisSelector>>& bindings = {});

/// Adds the axes that `x` lacks, in front. Elements are repeated along new axes without a copy.
///
///     broadcast_axis(bias, Batch);   // (embed) -> (batch, embed)
NamedArray broadcast_axis(Arr x, const AxisSpec& axes);

/// Broadcasts to a full shape.
///
/// @param x                      array
/// @param axes                   axes of the result
/// @param ensure_order           true: the result has the order of `axes`
/// @param enforce_no_extra_axes  true: an axis of `x` that is not in `axes` raises
/// @throws haliax::Error if an axis has two sizes, or `x` has another axis
NamedArray broadcast_to(Arr x, const AxisSpec& axes, bool ensure_order = true,
                        bool enforce_no_extra_axes = true);

/// Merges axes into one, row-major in the order of `old_axes`, in the place of the first of them.
///
///     flatten_axes(x, {"batch", "pos"}, "token");   // (batch, pos, embed) -> (token, embed)
NamedArray flatten_axes(Arr x, const AxisSelection& old_axes, const AxisSelector& new_axis);

/// Splits an axis into several axes, row-major, in its place.
///
/// @throws haliax::Error if the sizes of `new_axes` do not multiply to the size of `axis`
///
///     unflatten_axis(x, "embed", {Heads, Size});   // (batch, embed) -> (batch, heads, size)
NamedArray unflatten_axis(Arr x, const AxisSelector& axis, const AxisSpec& new_axes);

/// Merges all axes into one, row-major.
NamedArray ravel(Arr x, const AxisSelector& new_axis);

/// Returns one array without the axis for each position along `axis`.
std::vector<NamedArray> unbind(Arr x, const AxisSelector& axis);

/// Splits an axis into consecutive pieces. Piece `i` has the axis `pieces[i]` in place of `axis`.
///
/// @throws haliax::Error if the sizes of the pieces do not add up to the size of `axis`
///
///     auto qkv = split(x, "qkv", {Q, K, V});   // three arrays
std::vector<NamedArray> split(Arr x, const AxisSelector& axis, const AxisSpec& pieces);

/// Stacks arrays with the same axes along a new axis, which is first in the result.
///
/// The result has the axis order of the first array, and the promoted dtype.
///
/// @throws haliax::Error if there is no array, or the axes differ
NamedArray stack(const AxisSelector& axis, const std::vector<NamedArray>& arrays,
                 SourceLocation at = SourceLocation::current());

/// Concatenates arrays along an axis that all of them have.
///
/// The other axes must be the same. The result has the axis order of the first array, and the
/// promoted dtype.
///
/// @param axis    the axis to concatenate along; an `Axis` checks the size of the result
/// @param arrays  one array or more
/// @param at      the line that error messages name
NamedArray concatenate(const AxisSelector& axis, const std::vector<NamedArray>& arrays,
                       SourceLocation at = SourceLocation::current());

/// Repeats each element `n` times along `axis`: [1, 2] becomes [1, 1, 2, 2] for `n` = 2.
NamedArray repeat(Arr x, const AxisSelector& axis, std::int64_t n);

/// Repeats the array along each listed axis: [1, 2] becomes [1, 2, 1, 2] for 2 repetitions.
///
/// A name that `x` lacks becomes a new axis in front, with the number of repetitions as its size.
NamedArray tile(Arr x, const std::vector<std::pair<Name, std::int64_t>>& reps);

/// Shifts elements along `axis` by `shift` positions, cyclically: element `i` moves to `i + shift`.
///
/// @param x      array
/// @param shift  C++ integer or scalar integer array; may be negative
/// @param axis   axis to shift along
NamedArray roll(Arr x, Arr shift, const AxisSelector& axis);

/// Pads axes with a constant.
///
/// @param x       array
/// @param widths  for each axis, the number of positions to add before and after
/// @param value   the constant, a C++ scalar or a scalar array
/// @throws haliax::Error if an axis is missing, or a width is negative
///
///     pad(x, {{"position", {1, 0}}});   // one zero in front
NamedArray pad(Arr x,
               const std::vector<std::pair<Name, std::pair<std::int64_t, std::int64_t>>>& widths,
               Arr value = 0);

/// Reverses the order of the positions along `axis`.
NamedArray flip(Arr x, const AxisSelector& axis);

/// Returns the lower triangle over axes `row` and `column`; other elements are 0.
///
/// @param x       array that has both axes
/// @param row     the axis of rows
/// @param column  the axis of columns
/// @param k       the highest diagonal that is retained: 0 is the main diagonal
/// @return array with `row` and `column` as its last axes
NamedArray tril(Arr x, const AxisSelector& row, const AxisSelector& column, int k = 0);

/// Returns the upper triangle over axes `row` and `column`; other elements are 0.
///
/// `k` is the lowest diagonal that is retained. The result has `row` and `column` as its last axes.
NamedArray triu(Arr x, const AxisSelector& row, const AxisSelector& column, int k = 0);

/// Computes the sum along a diagonal over axes `row` and `column`, and removes both axes.
///
/// `offset` selects the diagonal: element (i, i + offset). The dtype is the dtype of `sum`.
NamedArray trace(Arr x, const AxisSelector& row, const AxisSelector& column, int offset = 0);

/// @}

}  // namespace haliax
