// Names, axes, and selections of axes: the types that arrays and ops use instead of positions.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/where.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Names and axes
/// @{

struct NameData;  // the interned string, in src/base/name.h

/// The name of an axis: an interned string that is compared by identity.
///
/// A name is one pointer. It converts from strings, and it is never freed.
class Name {
 public:
  /// Creates an empty name.
  Name() = default;
  /// Interns a string.
  Name(std::string_view text);
  Name(const char* text) : Name(std::string_view(text)) {}
  Name(const std::string& text) : Name(std::string_view(text)) {}
  /// Returns the string. An axis that `vmap` hides has the string of its public name.
  std::string_view text() const;
  /// Returns true for the name of the axis that `vmap` maps, inside the mapped function.
  bool hidden() const;
  /// Returns true if the name is not empty.
  explicit operator bool() const { return data_ != nullptr; }
  friend bool operator==(Name, Name) = default;
  /// Returns the interned data. For the implementation.
  const NameData* data() const { return data_; }
  /// Returns the name of interned data. For the implementation.
  static Name of(const NameData* data) {
    Name n;
    n.data_ = data;
    return n;
  }

 private:
  const NameData* data_ = nullptr;
};

/// A named dimension: a name and a size. Two axes are equal if both are equal.
///
///     Axis Pos{"position", 128};
///     auto KeyPos = Pos.alias("key_position");   // another name, the same size
struct Axis {
  static constexpr bool is_static = true;  ///< a field of a module is static, and no parameter
  Name name;                               ///< name, not empty
  std::int64_t size = 0;                   ///< number of positions

  /// Creates an axis without a name.
  Axis() = default;
  /// Creates an axis.
  ///
  /// @throws haliax::Error if the name is empty, or the size is negative or larger than 2^60
  Axis(Name name, std::int64_t positions, SourceLocation at = SourceLocation::current());
  Axis(const char* text, std::int64_t positions, SourceLocation at = SourceLocation::current())
      : Axis(Name(text), positions, at) {}
  /// Returns an axis with another name and the same size.
  Axis alias(Name other, SourceLocation at = SourceLocation::current()) const {
    return {other, size, at};
  }
  /// Returns an axis with the same name and another size.
  Axis resize(std::int64_t other, SourceLocation at = SourceLocation::current()) const {
    return {name, other, at};
  }
  friend bool operator==(const Axis&, const Axis&) = default;
};

/// Axes in order: the shape of an array.
using Axes = std::vector<Axis>;
/// Names in order.
using Names = std::vector<Name>;

/// @}

/// @name Selections
/// The parameter types of ops that select axes.
/// @{

/// Selects one axis of an array: by name, or by `Axis`, which also checks the size.
struct AxisSelector {
  Name name;               ///< name of the axis
  std::int64_t size = -1;  ///< size to check; -1: any size
  /// Selects an axis by name.
  AxisSelector(Name n) : name(n) {}
  AxisSelector(const char* n) : name(n) {}
  AxisSelector(const std::string& n) : name(n) {}
  /// Selects an axis by name and checks its size.
  AxisSelector(const Axis& a) : name(a.name), size(a.size) {}
};

/// Selects several axes of an array, or all of them.
///
/// | argument | selects |
/// |---|---|
/// | omitted, or `{}` | all axes |
/// | `"embed"`, `Embed` | one axis |
/// | `{"batch", Embed}` | the listed axes |
/// | `Names{}` | no axis |
class AxisSelection {
 public:
  /// Selects all axes.
  AxisSelection() = default;
  /// Selects one axis.
  AxisSelection(Name name);
  AxisSelection(const char* name);
  AxisSelection(const std::string& name);
  AxisSelection(const Axis& axis);
  AxisSelection(const AxisSelector& axis);
  /// Selects the listed axes.
  AxisSelection(const Axes& axes);
  AxisSelection(const Names& names);
  AxisSelection(std::initializer_list<AxisSelector> axes);
  // Not inline, as for AxisSpec: a program of many copies compiles faster.
  AxisSelection(const AxisSelection&);
  AxisSelection(AxisSelection&&) noexcept;
  AxisSelection& operator=(const AxisSelection&);
  AxisSelection& operator=(AxisSelection&&) noexcept;
  ~AxisSelection();
  /// Returns true if the selection is all axes.
  bool all() const { return all_; }
  /// Returns the listed axes; none if `all()`.
  const std::vector<AxisSelector>& items() const { return items_; }

 private:
  friend AxisSelection unsize_axes(const Axes& axes, const AxisSelection& which, SourceLocation at);
  bool all_ = true;
  std::vector<AxisSelector> items_;
};

/// The sizes of an array by name: the result of `NamedArray::shape`.
///
///     x.shape()["batch"];                             // 8
///     for (auto& [name, size] : x.shape()) { ... }    // in the order of the axes
class Shape {
 public:
  /// Creates a shape from axes.
  explicit Shape(Axes axes) : axes_(std::move(axes)) {}
  /// Returns the size of an axis.
  ///
  /// @throws haliax::Error if there is no such axis
  std::int64_t operator[](Name name) const;
  std::int64_t operator[](const char* name) const { return (*this)[Name(name)]; }
  /// Returns the number of axes.
  std::size_t size() const { return axes_.size(); }
  /// Returns an iterator to the first axis.
  auto begin() const { return axes_.begin(); }
  /// Returns an iterator past the last axis.
  auto end() const { return axes_.end(); }
  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  Axes axes_;
};

/// The axes of a new array, in order. Converts from an `Axis`, `Axes` or a list in braces.
class AxisSpec {
 public:
  /// Creates the shape of a scalar: no axes.
  AxisSpec() = default;
  /// Creates a shape.
  AxisSpec(const Axis& axis);
  AxisSpec(Axes axes);
  AxisSpec(std::initializer_list<Axis> axes);
  template <std::size_t N> AxisSpec(const std::array<Axis, N>& axes) : AxisSpec(axes.data(), N) {}
  AxisSpec(const AxisSpec&);
  AxisSpec(AxisSpec&&) noexcept;
  AxisSpec& operator=(const AxisSpec&);
  AxisSpec& operator=(AxisSpec&&) noexcept;
  ~AxisSpec();
  /// Returns the axes.
  const Axes& axes() const { return axes_; }
  operator const Axes&() const { return axes_; }
  /// Returns an iterator to the first axis.
  auto begin() const { return axes_.begin(); }
  /// Returns an iterator past the last axis.
  auto end() const { return axes_.end(); }
  static constexpr bool is_static = true;  ///< a field of a module is static
  friend bool operator==(const AxisSpec& a, const AxisSpec& b) { return a.equal(b); }

 private:
  AxisSpec(const Axis* first, std::size_t count);
  bool equal(const AxisSpec& other) const;
  Axes axes_;
};

/// The name `"..."`, which stands for the axes that a partial order does not list.
inline const char* const ellipsis = "...";

/// @}

/// @name Functions of axes
/// These functions raise `haliax::Error` if an axis has two sizes.
/// @{

/// Returns the axis as a string: `batch=8`.
std::string to_string(const Axis& axis);
/// Returns the axes as a string: `(batch=8, embed=768)`.
std::string to_string(const Axes& axes);
/// Writes names and axes: `batch`, `batch=8`, `(batch=8, embed=768)`. A selection of all axes is
/// written as `all`.
std::ostream& operator<<(std::ostream& out, const Name& name);
std::ostream& operator<<(std::ostream& out, const Axis& axis);
std::ostream& operator<<(std::ostream& out, const Axes& axes);
std::ostream& operator<<(std::ostream& out, const Names& names);
std::ostream& operator<<(std::ostream& out, const AxisSelector& axis);
std::ostream& operator<<(std::ostream& out, const AxisSelection& axes);
/// Returns the product of the sizes, or the largest `std::int64_t` if it overflows.
std::int64_t axis_size(const Axes& axes);
/// Returns the size of one axis.
inline std::int64_t axis_size(const Axis& axis) { return axis.size; }
/// Returns the name of an axis or a selector.
inline Name axis_name(const AxisSelector& axis) { return axis.name; }
/// Returns the names of axes, in order.
Names axis_name(const Axes& axes);
/// Returns the axis with a name, or null.
const Axis* find_axis(const Axes& axes, Name name);
/// Returns true if the selection contains every axis of `axes`.
bool selects_axis(const AxisSelection& selection, const AxisSpec& axes);
/// Returns the axis of a selector, with its size.
///
/// @throws haliax::Error if `axes` lacks it, or it has another size
Axis resolve_axis(const Axes& axes, const AxisSelector& axis,
                  SourceLocation at = SourceLocation::current());
/// Returns the axes of several selectors, in the order of the selectors.
Axes resolve_axis(const Axes& axes, std::initializer_list<AxisSelector> selection,
                  SourceLocation at = SourceLocation::current());
/// Returns the names, without sizes.
inline Names unsize_axes(const Axes& axes) { return axis_name(axes); }
/// Returns the axes as a selection in which the axes of `which` have no size.
///
/// @throws haliax::Error if an axis of `which` is missing
AxisSelection unsize_axes(const Axes& axes, const AxisSelection& which,
                          SourceLocation at = SourceLocation::current());
/// Returns the arguments as `Axes`.
template <class... A>
requires(std::is_convertible_v<A, Axis>&&...) Axes make_axes(A... axes) { return {axes...}; }
/// Creates axes from pairs of a name and a size.
///
///     auto [Batch, Embed] = make_axes("batch", 8, "embed", 64);
template <class... More> auto make_axes(const char* name, std::int64_t size, More... more) {
  if constexpr (sizeof...(More) == 0) {
    return std::array<Axis, 1>{Axis(name, size)};
  } else {
    auto rest = make_axes(more...);
    std::array<Axis, 1 + sizeof...(More) / 2> out{Axis(name, size)};
    for (std::size_t i = 0; i < rest.size(); ++i) out[i + 1] = rest[i];
    return out;
  }
}

/// Returns the axes of `a`, then the axes of `b`. Raises if a name is in both.
Axes concat_axes(const AxisSpec& a, const AxisSpec& b,
                 SourceLocation at = SourceLocation::current());
/// The same as `concat_axes`, which is another name of it in Haliax.
inline Axes concat_axis_specs(const AxisSpec& a, const AxisSpec& b,
                              SourceLocation at = SourceLocation::current()) {
  return concat_axes(a, b, at);
}
/// Returns the axes of `a`, then the axes of `b` that `a` lacks.
Axes union_axes(const AxisSpec& a, const AxisSpec& b,
                SourceLocation at = SourceLocation::current());
/// Returns the axes of `a` that `b` also has, in the order of `a`.
Axes intersect_axes(const AxisSpec& a, const AxisSpec& b,
                    SourceLocation at = SourceLocation::current());
/// Returns `axes` without the selected ones. Raises if a selected axis is missing.
Axes eliminate_axes(const AxisSpec& axes, const AxisSelection& remove,
                    SourceLocation at = SourceLocation::current());
/// Returns `axes` without the selected ones. Missing axes are ignored.
Axes without_axes(const AxisSpec& axes, const AxisSelection& remove,
                  SourceLocation at = SourceLocation::current());
/// The same, with a choice for axes of another size: they raise, or are removed by name.
Axes without_axes(const AxisSpec& axes, const AxisSelection& remove, bool allow_mismatched_sizes,
                  SourceLocation at = SourceLocation::current());
/// Returns `axes` with the old axes merged into one, in the place of the first of them.
///
/// These are the axes of `flatten_axes` of an array. Without `old_axes`, the new axis is first and
/// has size 1.
///
/// @throws haliax::Error if an old axis is missing, or a sized `new_axis` has another size
Axes flatten_axes(const Axes& axes, const AxisSelection& old_axes, const AxisSelector& new_axis,
                  SourceLocation at = SourceLocation::current());
/// Returns one axis with the elements of all `axes`.
Axis flatten_axes(const Axes& axes, const AxisSelector& new_axis,
                  SourceLocation at = SourceLocation::current());
/// Returns `axes` with other axes in the place of one.
///
/// @throws haliax::Error if `old` is missing, or a name would occur twice
Axes replace_axis(const AxisSpec& axes, const AxisSelector& old, const AxisSpec& replacement,
                  SourceLocation at = SourceLocation::current());
/// Returns all axes in a partial order, in which `"..."` stands for the axes that are not named.
///
/// Several `"..."` are allowed: an axis that is not named fills the next one after its neighbors.
///
/// @throws haliax::Error if a name is missing or occurs twice, an axis has no place, or an `Axis`
/// has another size
Axes rearrange_for_partial_order(const Names& partial, const Axes& axes,
                                 SourceLocation at = SourceLocation::current());
Axes rearrange_for_partial_order(std::initializer_list<AxisSelector> partial, const Axes& axes,
                                 SourceLocation at = SourceLocation::current());

/// @}

}  // namespace haliax
