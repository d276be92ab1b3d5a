// Indexing and updates: reads and changes parts of arrays by position. ops.h includes this header.
//
// Negative positions count from the end. A position that is known when the graph is built is
// checked, and raises if it is out of range. Positions in an array, and those of a dynamic slice,
// are not checked: see each op.
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Gathers and slices
/// @{

/// Gathers slices of `x` along `axis` at the positions in `index`.
///
/// The axes of `index` replace `axis`. Axes that both arrays have are matched by name, as in a
/// batched gather; the axes that `index` adds then come first.
///
/// @param x      array that has `axis`
/// @param axis   name, or `Axis` to check the size as well
/// @param index  integer array with any axes, or a C++ integer, which removes the axis
/// @return array with the dtype of `x`. Positions out of range yield NaN (floats), the minimum
/// (signed) or the maximum (unsigned, bool).
/// @throws haliax::Error if `x` lacks `axis`, `index` is not an integer array, or a C++ integer is
/// out of range
///
///     take(embeddings, "vocab", ids);   // (vocab, embed), ids (batch, pos) -> (batch, pos, embed)
/// @see index, one_hot
NamedArray take(Arr x, const AxisSelector& axis, Arr index);

/// Returns `length` consecutive positions along `axis`.
///
/// @param x         array
/// @param axis      axis to slice
/// @param start     C++ integer, or scalar integer array, which is clamped so that the slice fits
/// @param length    size of the axis in the result
/// @param new_axis  name of the axis in the result; default: the same name
/// @throws haliax::Error if `length`, or a known `start`, does not fit the axis
NamedArray slice(Arr x, const AxisSelector& axis, Arr start, std::int64_t length,
                 std::optional<Name> new_axis = {});

/// The length of a slice: a number of positions, or an `Axis` that replaces the sliced axis.
struct SliceLength {
  std::int64_t size;              ///< number of positions
  std::optional<Name> name = {};  ///< name of the axis in the result; default: the same name
  /// Converts a number of positions, or an axis.
  SliceLength(int n) : size(n) {}
  SliceLength(std::int64_t n) : size(n) {}
  SliceLength(const Axis& axis);
};

/// Slices several axes. The rules of `slice` of one axis apply to each.
///
/// @param x       array
/// @param start   for some axes, the first position
/// @param length  for the same axes, the number of positions or the new axis
/// @throws haliax::Error if an axis with a start has no length, or the reverse
///
///     slice(x, {{"row", 1}, {"column", i}}, {{"row", 3}, {"column", Axis("window", 4)}});
NamedArray slice(Arr x, const std::vector<std::pair<AxisSelector, Arr>>& start,
                 const std::vector<std::pair<AxisSelector, SliceLength>>& length);

/// Returns one position along `axis`, and removes the axis.
///
/// @param x         array
/// @param axis      axis to index
/// @param position  C++ integer, or integer array as in `index`
NamedArray at(Arr x, const AxisSelector& axis, Arr position);

/// Returns `x` with a part replaced by `update`, which starts at the given positions.
///
/// @param x       array
/// @param start   for some axes, the first position. A start may have other axes of `x`: each
///                position along them then has its own start, as in a cache of ragged sequences. An
///                array is clamped so that the update fits.
/// @param update  array; an axis with a start has the size of the part, and size 1 if it is absent.
///                It broadcasts along all other axes of `x`.
/// @return array with the axes and the dtype of `x`
/// @throws haliax::Error if a known start or an update does not fit
///
///     updated_slice(cache, {{"position", length}}, keys);   // writes keys at position length
NamedArray updated_slice(Arr x, const std::vector<std::pair<AxisSelector, NamedArray>>& start,
                         Arr update);

/// @}

/// @name Indexing
/// `x[...]` and `x.at(...)` of `NamedArray` use these types.
/// @{

/// A range of positions, as `start:stop:step` in Python. A bound outside of the axis raises.
struct Slice {
  std::optional<std::int64_t> start = {};  ///< first position; default: that end of the axis
  std::optional<std::int64_t> stop = {};   ///< excluded; default: to the other end of the axis
  std::int64_t step = 1;                   ///< distance of positions; may be negative, but not 0
};

/// A range with a start that may be an array, and a static length. `ds` creates it.
///
/// It selects the positions `start`, `start + 1`, ... by themselves, as an array of positions does:
/// negative positions count from the end, `index` returns 0 for positions out of range, and updates
/// of positions out of range are dropped.
struct DSlice {
  Arr start;            ///< first position
  std::int64_t length;  ///< number of positions; may exceed the size of the axis
  /// Returns block number `i` of length `n`: the `n` positions from `i * n`.
  static DSlice block(Arr i, std::int64_t n, SourceLocation at = SourceLocation::current());
};

/// Returns a dynamic slice: `length` positions from `start`. The axis keeps its name.
///
/// @param start   C++ integer, or scalar integer array
/// @param length  number of positions, or an `Axis`, whose size is used
/// @throws haliax::Error if `length` is a name without a size
///
///     x[{"position", ds(i, 4)}];   // (position=16) -> (position=4)
/// @see slice
DSlice ds(Arr start, std::int64_t length);
DSlice ds(Arr start, const AxisSelector& length);
/// Returns a dynamic slice. Another name of `ds`.
inline DSlice dslice(Arr start, std::int64_t length) { return ds(start, length); }
inline DSlice dslice(Arr start, const AxisSelector& length) { return ds(start, length); }
/// Returns block number `i` of length `n` as a dynamic slice: `ds(i * n, n)`.
DSlice dblock(Arr i, std::int64_t n);

/// An index of one axis: a position, a range, a dynamic slice, or an array of positions. A list of
/// positions is an array that keeps the axis: `x[{"embed", std::vector{0, 2}}]`.
struct Index {
  /// The kind of an index.
  enum class Kind : std::uint8_t {
    position,  ///< one position; removes the axis
    range,     ///< a `Slice`; the axis stays
    window,    ///< a `DSlice`; the axis stays
    array      ///< an integer array; its axes replace the axis
  } kind;
  std::int64_t position = 0;  ///< for `Kind::position`; negative counts from the end
  Slice range = {};           ///< for `Kind::range`
  NamedArray array = {};      ///< the positions, or the start of a window
  std::int64_t length = 0;    ///< for `Kind::window`: number of positions
  bool keeps_axis = false;    ///< `array` has one axis, which gets the name of the indexed axis
  /// Converts a position, a range, a dynamic slice, an integer array or a list of positions.
  Index(int i) : kind(Kind::position), position(i) {}
  Index(long i) : kind(Kind::position), position(i) {}
  Index(long long i) : Index(long(i)) {}
  Index(unsigned i) : Index(long(i)) {}
  Index(std::size_t i) : Index(long(i)) {}
  Index(Slice s) : kind(Kind::range), range(s) {}
  Index(const DSlice& d) : kind(Kind::window), array(d.start.array()), length(d.length) {}
  Index(const NamedArray& a) : kind(Kind::array), array(a) {}
  Index(const std::vector<int>& list);
  Index(const std::vector<std::int64_t>& list);
};

/// Axes with their indices. Axes that are not listed are unchanged.
using Indices = std::vector<std::pair<AxisSelector, Index>>;

/// The treatment of array positions and dynamic slices that are out of range, after negative
/// positions are counted from the end. The names are those of JAX.
///
/// | mode | reads (`at_get`) | updates |
/// |---|---|---|
/// | `promise_in_bounds` | the nearest position | dropped |
/// | `clip` | the nearest position | applied to the nearest position |
/// | `fill`, `drop` | the fill value | dropped |
enum class IndexMode : std::uint8_t { promise_in_bounds, clip, fill, drop };

/// Indexes several axes at once, with the rules of NumPy by name. `x[...]` calls it.
///
/// If several axes are indexed by positions, arrays or dynamic slices, the axes of the indices are
/// in place if the indexed axes are neighbors, else first. An axis that an index array shares with
/// `x` is matched by name, as in a batched gather, and belongs to the axes of the indices.
///
/// Positions in an array are clamped. If an index is a dynamic slice, positions out of range yield
/// 0 for all indices.
///
/// @throws haliax::Error if an axis is indexed twice, an index array is not an integer array, or an
/// axis has two sizes
///
///     index(x, {{"batch", 3}, {"position", Slice{0, 4}}});   // (batch, position) -> (position=4)
///     index(logits, {{"vocab", ids}});   // (batch, vocab), ids (batch) -> (batch)
NamedArray index(Arr x, const Indices& indices);

/// Returns the indexed part, as `index`, with a choice for positions out of range.
///
/// @param x        array
/// @param indices  the part
/// @param mode     treatment of array positions out of range
///
///     at_get(x, {{"vocab", ids}}, IndexMode::fill);
NamedArray at_get(Arr x, const Indices& indices, IndexMode mode = IndexMode::promise_in_bounds);
/// Returns the indexed part. `fill_value` is the value for positions out of range, for the modes
/// `fill` and `drop`. Default: NaN, the minimum (signed), the maximum (unsigned) or true.
///
///     at_get(x, {{"vocab", ids}}, IndexMode::fill, 0.);
NamedArray at_get(Arr x, const Indices& indices, IndexMode mode, std::optional<Arr> fill_value);

/// Returns `x` with the indexed part replaced by `update`.
///
/// @param x        array
/// @param indices  the part, as in `index`
/// @param update   C++ scalar or array; broadcasts to the part, in the dtype of `x`
/// @param mode     treatment of array positions out of range; default: they are dropped
/// @return array with the axes and the dtype of `x`
/// @throws haliax::Error if `update` has an axis that the part lacks, or is a float array while `x`
/// is not
///
///     at_set(x, {{"embed", 3}}, 0.);
///     at_set(cache, {{"position", lengths}}, keys);   // lengths (batch): one position per row
/// @see NamedArray::at
NamedArray at_set(Arr x, const Indices& indices, Arr update, IndexMode mode = IndexMode::drop);
/// Returns `x` with `update` added to the indexed part. Repeated positions accumulate.
NamedArray at_add(Arr x, const Indices& indices, Arr update, IndexMode mode = IndexMode::drop);
/// Returns `x` with the indexed part multiplied by `update`. Repeated positions accumulate.
NamedArray at_mul(Arr x, const Indices& indices, Arr update, IndexMode mode = IndexMode::drop);
/// Returns `x` with the indexed part divided by `update`. Integers yield `f32`.
NamedArray at_divide(Arr x, const Indices& indices, Arr update, IndexMode mode = IndexMode::drop);
/// Returns `x` with the indexed part to the power `update`. Repeated positions accumulate.
NamedArray at_power(Arr x, const Indices& indices, Arr update, IndexMode mode = IndexMode::drop);
/// Returns `x` with the indexed part limited to at most `update`.
NamedArray at_min(Arr x, const Indices& indices, Arr update, IndexMode mode = IndexMode::drop);
/// Returns `x` with the indexed part raised to at least `update`.
NamedArray at_max(Arr x, const Indices& indices, Arr update, IndexMode mode = IndexMode::drop);

/// The contents of the brackets of `x[...]` and `x.at(...)`: an axis and its index, or a list of
/// such pairs.
class Picks {
 public:
  /// Selects a part along one axis.
  Picks(AxisSelector axis, Index index, SourceLocation at = SourceLocation::current());
  /// Selects a part along several axes.
  Picks(std::initializer_list<std::pair<AxisSelector, Index>> indices,
        SourceLocation at = SourceLocation::current());
  Picks(Indices indices, SourceLocation at = SourceLocation::current());
  /// Returns the axes with their indices.
  const Indices& indices() const { return indices_; }
  /// Returns the line that error messages name.
  SourceLocation where() const { return where_; }

 private:
  Indices indices_;
  SourceLocation where_;
};

/// A part of an array: the result of `x.at(...)`. Each method returns a new array.
///
///     x = x.at({"batch", 3}).set(y);
class PickedPart {
 public:
  /// Refers to the part `picks` of `x`.
  PickedPart(NamedArray x, Picks picks) : x_(std::move(x)), picks_(std::move(picks)) {}
  /// Returns the part, as `at_get`.
  NamedArray get(IndexMode mode = IndexMode::promise_in_bounds) const;
  NamedArray get(IndexMode mode, std::optional<Arr> fill_value) const;
  /// Returns the array with the part replaced, as `at_set`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray set(
      const Arr& update, IndexMode mode = IndexMode::drop) const;
  /// Returns the array with `update` added to the part, as `at_add`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray add(
      const Arr& update, IndexMode mode = IndexMode::drop) const;
  /// Returns the array with the part multiplied by `update`, as `at_mul`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray mul(
      const Arr& update, IndexMode mode = IndexMode::drop) const;
  /// Returns the array with the part multiplied by `update`. Another name of `mul`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray multiply(
      const Arr& update, IndexMode mode = IndexMode::drop) const;
  /// Returns the array with the part divided by `update`, as `at_divide`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray divide(
      const Arr& update, IndexMode mode = IndexMode::drop) const;
  /// Returns the array with the part to the power `update`, as `at_power`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray power(
      const Arr& update, IndexMode mode = IndexMode::drop) const;
  /// Returns the array with the part limited to at most `update`, as `at_min`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray min(
      const Arr& update, IndexMode mode = IndexMode::drop) const;
  /// Returns the array with the part raised to at least `update`, as `at_max`.
  [[nodiscard("x is unchanged; x = x.at(...).set(y) stores the new array")]] NamedArray max(
      const Arr& update, IndexMode mode = IndexMode::drop) const;

 private:
  NamedArray x_;
  Picks picks_;
};

/// @}

}  // namespace haliax
