// Convolutions and pools over named axes. The spatial axes are selected by name, at any positions,
// and all axes that a layer does not name are batch axes. See docs/how-to/convolutions.md.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "haliax/ops.h"
#include "haliax/random.h"

namespace [[gnu::visibility("default")]] haliax {
namespace nn {

/// @name Convolutions
/// @{

/// An integer for each spatial axis. One integer applies to all axes.
///
///     PerAxis(3);        // 3 along every axis
///     PerAxis({3, 5});   // 3 along the first axis, 5 along the second
class PerAxis {
 public:
  static constexpr bool is_static = true;  ///< a field of a module is static
  /// Uses one integer for all axes.
  PerAxis(std::int64_t all = 1);
  /// Lists an integer for each axis.
  PerAxis(std::initializer_list<std::int64_t> each);
  /// Lists an integer for each axis.
  PerAxis(std::vector<std::int64_t> each) : values_(std::move(each)) {}
  /// Returns one integer per axis. Raises if a list has another length.
  /// @param op     name of the op in the error message
  /// @param arg    name of the argument in the error message
  /// @param count  number of spatial axes
  std::vector<std::int64_t> of(const char* op, const char* arg, std::size_t count) const;
  friend bool operator==(const PerAxis& a, const PerAxis& b);

 private:
  std::vector<std::int64_t> values_;
  bool same_ = false;
};

/// Returns true if both list the same integers.
bool operator==(const PerAxis& a, const PerAxis& b);

/// Positions that are added before and after each spatial axis:
///
/// - `"VALID"`: none
/// - `"SAME"`: the number for which the result has `ceil(size / stride)` positions; if it is odd,
///   one more after the axis
/// - `1`: 1 before and 1 after each axis
/// - `PerAxis({1, 2})`: 1 before and after the first axis, 2 before and after the second
/// - `{{1, 0}, {2, 2}}`: 1 before the first axis, 2 before and 2 after the second
class Padding {
 public:
  static constexpr bool is_static = true;  ///< a field of a module is static
  /// A number of positions before, and a number after an axis.
  using Pair = std::pair<std::int64_t, std::int64_t>;
  /// Pads all axes by the same number.
  Padding(std::int64_t all = 0);
  Padding(int all) : Padding(std::int64_t(all)) {}
  /// Selects `"VALID"` or `"SAME"`, in upper or lower case.
  /// @throws haliax::Error if the name is another one
  Padding(const char* name, SourceLocation at = SourceLocation::current());
  Padding(std::string_view name, SourceLocation at = SourceLocation::current());
  /// Pads each axis by its number, before and after.
  Padding(const PerAxis& each);
  /// Pads each axis by a pair.
  Padding(std::initializer_list<Pair> each);
  Padding(std::vector<Pair> each);
  /// Returns one pair per axis.
  /// @param op       name of the op in error messages
  /// @param sizes    sizes of the spatial axes
  /// @param windows  positions that a window spans along each axis
  /// @param strides  distance of windows along each axis
  std::vector<Pair> of(const char* op, const std::vector<std::int64_t>& sizes,
                       const std::vector<std::int64_t>& windows,
                       const std::vector<std::int64_t>& strides) const;
  /// Returns true for `"SAME"`.
  bool is_same() const { return name_same_; }
  friend bool operator==(const Padding& a, const Padding& b);

 private:
  std::vector<Pair> each_;
  std::optional<PerAxis> per_axis_;
  bool same_ = false, name_same_ = false;
};

/// Returns true if both pad equally.
bool operator==(const Padding& a, const Padding& b);

/// Options of `Conv::init`.
struct ConvOptions {
  PerAxis stride = 1;       ///< Distance of the windows.
  Padding padding = 0;      ///< Zeros that are added before and after the spatial axes.
  PerAxis dilation = 1;     ///< Distance of the positions within a window.
  std::int64_t groups = 1;  ///< Number of groups; each one connects its own channels only.
  bool use_bias = true;     ///< Adds a bias.
};
/// A convolution over one or more spatial axes: at each position, the sum of products of a window
/// of the input and the weight. As in other libraries, the weight is not flipped.
///
///     auto stem = nn::Conv::init({"row", "col"}, Channel, Out, 3, key, {.padding = 1});
///     auto y = stem(x);  // (batch, channel, row, col) -> (batch, out, row, col)
///
/// Along a spatial axis of size `n`, the result has `floor((n + padding - dilation * (kernel_size -
/// 1) - 1) / stride) + 1` positions. If the stride is the kernel size, the windows do not overlap,
/// and the layer is a reshape and a matmul, as in the patch embedding of a vision transformer.
struct Conv {
  NamedArray weight;               ///< `(Out, In / groups, Spatial...)`, in any order.
  std::optional<NamedArray> bias;  ///< `(Out)`.
  Names Spatial;                   ///< Spatial axes.
  Axis In;                         ///< Input channels.
  Axis Out;                        ///< Output channels.
  PerAxis kernel_size;             ///< Size of a window.
  PerAxis stride = 1;              ///< Distance of the windows.
  Padding padding = 0;             ///< Padding of the spatial axes.
  PerAxis dilation = 1;            ///< Distance of the positions within a window.
  std::int64_t groups = 1;         ///< Number of groups of channels.

  /// Initializes a layer in `f32`. Weight and bias are uniform between `-limit` and `limit`, where
  /// `limit` is `1 / sqrt(kernel positions * In / groups)`.
  /// @param Spatial      spatial axes; sizes have no effect
  /// @param In           input channels
  /// @param Out          output channels
  /// @param kernel_size  size of a window along each spatial axis
  /// @param key          random key
  /// @param options      stride, padding, dilation, groups and bias
  /// @throws haliax::Error if `groups` does not divide both channel counts, if a size, a stride or
  ///     a dilation is not positive, or if a name occurs twice
  static Conv init(const AxisSelection& Spatial, const Axis& In, const Axis& Out,
                   const PerAxis& kernel_size, const Key& key, ConvOptions options = {},
                   SourceLocation at = SourceLocation::current());
  /// Applies the layer.
  /// @param x  array with `In` and the spatial axes at any positions
  /// @return array with `Out` in the place of `In`, and the spatial axes in their new sizes
  /// @throws haliax::Error if `x` lacks an axis or has `Out`, or if a window exceeds a padded axis
  NamedArray operator()(Arr x) const;
};

/// Options of `ConvTranspose::init`.
struct ConvTransposeOptions {
  PerAxis stride = 1;          ///< Distance of neighboring inputs in the result.
  Padding padding = 0;         ///< Positions that the result loses before and after each axis.
  PerAxis output_padding = 0;  ///< Positions that the result gains after each axis.
  PerAxis dilation = 1;        ///< Distance of the positions within a window.
  std::int64_t groups = 1;     ///< Number of groups; each one connects its own channels only.
  bool use_bias = true;        ///< Adds a bias.
};
/// A transposed convolution, which enlarges spatial axes. It is a convolution over the input, with
/// zeros between its positions: `stride - 1` of them. The zeros are not materialized. As in Haliax,
/// the weight is not flipped, so the layer is the gradient of a `Conv` with a flipped weight.
///
/// Along a spatial axis of size `n`, the result has `(n - 1) * stride - padding + dilation *
/// (kernel_size - 1) + output_padding + 1` positions, where `padding` counts both sides.
struct ConvTranspose {
  NamedArray weight;               ///< `(Out, In / groups, Spatial...)`, in any order.
  std::optional<NamedArray> bias;  ///< `(Out)`.
  Names Spatial;                   ///< Spatial axes.
  Axis In;                         ///< Input channels.
  Axis Out;                        ///< Output channels.
  PerAxis kernel_size;             ///< Size of a window.
  PerAxis stride = 1;              ///< Distance of neighboring inputs in the result.
  Padding padding = 0;             ///< Positions that the result loses.
  PerAxis output_padding = 0;      ///< Positions that the result gains.
  PerAxis dilation = 1;            ///< Distance of the positions within a window.
  std::int64_t groups = 1;         ///< Number of groups of channels.

  /// Initializes a layer in `f32`, as `Conv::init`.
  /// @throws haliax::Error as `Conv::init`
  static ConvTranspose init(const AxisSelection& Spatial, const Axis& In, const Axis& Out,
                            const PerAxis& kernel_size, const Key& key,
                            ConvTransposeOptions options = {},
                            SourceLocation at = SourceLocation::current());
  /// Applies the layer.
  /// @param x  array with `In` and the spatial axes at any positions
  /// @return array with `Out` in the place of `In`, and the spatial axes in their new sizes
  /// @throws haliax::Error if `x` lacks an axis or has `Out`, if the padding is `"SAME"`, or if
  ///     the result would have no positions
  NamedArray operator()(Arr x) const;
};

/// @}

/// @name Pools
/// A pool reduces each window of the axes in `Window`, whose sizes are those of a window. All other
/// axes are batch axes. The result has the axes of `x`, with fewer positions.
/// @{

/// Options of `max_pool`, `min_pool` and `mean_pool`.
struct PoolOptions {
  PerAxis stride = 1;         ///< Distance of the windows.
  Padding padding = "VALID";  ///< Positions that are added and never selected.
  bool use_ceil = false;      ///< Rounds the number of windows up: the last one may be incomplete.
  bool count_include_pad = false;  ///< `mean_pool`: the divisor also counts padded positions.
};
/// Computes the maximum of each window. NaN propagates.
///
/// If several positions hold the maximum, they share its gradient.
///
/// @param x        array
/// @param Window   axes with the sizes of a window
/// @param options  stride, padding and rounding
/// @return array with the axes and the dtype of `x`
/// @throws haliax::Error if `x` lacks an axis, or a window exceeds a padded axis
///
///     max_pool(x, {Axis("row", 2), Axis("col", 2)}, {.stride = 2});   // halves both axes
NamedArray max_pool(Arr x, const AxisSpec& Window, PoolOptions options = {});
/// Computes the minimum of each window. The rules of `max_pool` apply.
NamedArray min_pool(Arr x, const AxisSpec& Window, PoolOptions options = {});
/// Computes the mean of each window. Padded positions do not count, unless `count_include_pad` is
/// true. Integers yield `f32`.
/// @see max_pool
NamedArray mean_pool(Arr x, const AxisSpec& Window, PoolOptions options = {});

/// @}

}  // namespace nn
}  // namespace haliax
