// Ops that change the axes of an array or move its elements. ops.h includes this header.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Shape
/// Shape ops change the axes of an array or move its elements. They keep the dtype.
/// @{

/// Renames axes, all of them at once, so that two names can be swapped. An `Axis` in place of a
/// name also checks the size.
///
/// @throws haliax::Error if an old name is missing, a name would occur twice, or a size differs
///
///     rename(x, {{"position", "key_position"}, {Embed, KeyEmbed}});
NamedArray rename(Arr x, std::initializer_list<std::pair<AxisSelector, AxisSelector>> renames);
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

/// A binding of a label of `rearrange`: its size, its name, or both.
///
///     rearrange(x, "... (embed: h d) -> ... h d", {{"h", 4}, {"d", HeadSize}});
struct LabelBinding {
  const char* label;  ///< The label in the expression.
  AxisSelector axis;  ///< The axis. A size alone has the label as its name.
  /// Binds a size.
  LabelBinding(const char* text, int size) : LabelBinding(text, std::int64_t(size)) {}
  LabelBinding(const char* text, std::int64_t size, SourceLocation at = SourceLocation::current())
      : label(text), axis(Axis(text, size, at)) {}
  /// Binds a name, or an axis.
  LabelBinding(const char* text, const AxisSelector& meaning) : label(text), axis(meaning) {}
};
/// The same, with labels that may be bound to plain sizes.
NamedArray rearrange(Arr x, std::string_view spec, std::initializer_list<LabelBinding> bindings);

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

/// Broadcasts arrays to common axes. Empty arrays stay empty.
///
/// @param arrays          arrays; a C++ scalar converts to a scalar array
/// @param require_subset  true: the axes of one array must contain the axes of the others. False:
///                        the axes that only smaller arrays have come first.
/// @param ensure_order    true: all results have the same order of axes
/// @param at              the line that error messages name
/// @return the arrays, with the axes and the order of the largest array
/// @throws haliax::Error if an axis has two sizes, or no array has all axes and `require_subset`
///
///     auto ab = broadcast_arrays({a, b}, false);   // (n), (batch) -> two arrays (batch, n)
std::vector<NamedArray> broadcast_arrays(const std::vector<NamedArray>& arrays,
                                         bool require_subset = true, bool ensure_order = true,
                                         SourceLocation at = SourceLocation::current());

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
/// Repeats each element along `axis` by its own count: [1, 2] with counts [2, 1] becomes [1, 1, 2].
///
/// @param x       array
/// @param axis    axis to repeat along
/// @param counts  integer array with one axis, of the size of `axis`: no count is negative
/// @param total_repeat_length  size of `axis` in the result. The last element fills missing
///                positions, and further elements are dropped. Default: the sum of the counts,
///                which must then have values.
/// @throws haliax::Error if the counts do not fit the axis, or have no values and
/// `total_repeat_length` is absent
NamedArray repeat(Arr x, const AxisSelector& axis, const NamedArray& counts,
                  std::optional<std::int64_t> total_repeat_length = {});

/// Repeats the array along each listed axis: [1, 2] becomes [1, 2, 1, 2] for 2 repetitions.
///
/// A name that `x` lacks becomes a new axis in front, with the number of repetitions as its size.
NamedArray tile(Arr x, const std::vector<std::pair<AxisSelector, std::int64_t>>& reps);

/// Shifts elements along `axis` by `shift` positions, cyclically: element `i` moves to `i + shift`.
///
/// @param x      array
/// @param shift  C++ integer or scalar integer array; may be negative
/// @param axis   axis to shift along
NamedArray roll(Arr x, Arr shift, const AxisSelector& axis);
/// Shifts elements along several axes, by one shift for all or by one for each.
///
///     roll(x, {1, -1}, {"row", "column"});
NamedArray roll(Arr x, Arr shift, std::initializer_list<AxisSelector> axes);
NamedArray roll(Arr x, std::initializer_list<Arr> shifts, std::initializer_list<AxisSelector> axes);

/// The number of positions to add before and after some axes.
using PadWidths = std::vector<std::pair<AxisSelector, std::pair<std::int64_t, std::int64_t>>>;

/// Pads axes with a constant.
///
/// @param x       array
/// @param widths  for each axis, the number of positions to add before and after
/// @param value   the constant, a C++ scalar or a scalar array
/// @throws haliax::Error if an axis is missing, or a width is negative
///
///     pad(x, {{"position", {1, 0}}});   // one zero in front
NamedArray pad(Arr x, const PadWidths& widths, Arr value = 0);

/// The values that padding adds. The names are those of NumPy.
enum class PadMode : std::uint8_t {
  constant,     ///< 0
  edge,         ///< the nearest element
  reflect,      ///< the mirror image, without the element at the edge: [1, 2, 3] -> 3, 2, [1, 2, 3]
  symmetric,    ///< the mirror image, with the element at the edge: [1, 2, 3] -> 2, 1, [1, 2, 3]
  wrap,         ///< the elements from the other end: [1, 2, 3] -> 2, 3, [1, 2, 3]
  linear_ramp,  ///< a straight line from 0 to the edge
  maximum,      ///< the maximum along the axis
  mean,         ///< the mean along the axis
  median,       ///< the median along the axis
  minimum,      ///< the minimum along the axis
  empty         ///< 0; NumPy leaves these values undefined
};

/// Pads axes with values of the array.
///
/// Axes are padded one after the other, in the order of `x`. Integers round.
///
/// @throws haliax::Error if an axis is missing or empty, or a width is negative
///
///     pad(x, {{Pos, {1, 1}}}, PadMode::reflect);
NamedArray pad(Arr x, const PadWidths& widths, PadMode mode);

/// Pads one axis in front, up to the size of `new_axis`, which replaces it.
///
/// @throws haliax::Error if `new_axis` is smaller than `axis`
NamedArray pad_left(Arr x, const AxisSelector& axis, const Axis& new_axis, Arr value = 0);

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
/// `offset` selects the diagonal: element (i, i + offset). The default dtype is the dtype of `sum`.
NamedArray trace(Arr x, const AxisSelector& row, const AxisSelector& column, int offset = 0,
                 std::optional<DType> dtype = {});

/// @}

}  // namespace haliax
