// Names, axes, and selections of axes: the types that arrays and ops use instead of positions.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
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
  /// Returns true if the selection is all axes.
  bool all() const { return all_; }
  /// Returns the listed axes; none if `all()`.
  const std::vector<AxisSelector>& items() const { return items_; }

 private:
  bool all_ = true;
  std::vector<AxisSelector> items_;
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
  /// Returns the axes.
  const Axes& axes() const { return axes_; }
  operator const Axes&() const { return axes_; }
  /// Returns an iterator to the first axis.
  auto begin() const { return axes_.begin(); }
  /// Returns an iterator past the last axis.
  auto end() const { return axes_.end(); }
  static constexpr bool is_static = true;  ///< a field of a module is static
  friend bool operator==(const AxisSpec&, const AxisSpec&) = default;

 private:
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
/// Returns the axis with a name, or null.
const Axis* find_axis(const Axes& axes, Name name);
/// Returns true if the selection contains every axis of `axes`.
bool selects_axis(const AxisSelection& selection, const Axes& axes);
/// Returns the arguments as `Axes`.
template <class... A> Axes make_axes(A... axes) { return {axes...}; }

/// Returns the axes of `a`, then the axes of `b`. Raises if a name is in both.
Axes concat_axes(const Axes& a, const Axes& b, SourceLocation at = SourceLocation::current());
/// Returns the axes of `a`, then the axes of `b` that `a` lacks.
Axes union_axes(const Axes& a, const Axes& b, SourceLocation at = SourceLocation::current());
/// Returns the axes of `a` that `b` also has, in the order of `a`.
Axes intersect_axes(const Axes& a, const Axes& b, SourceLocation at = SourceLocation::current());
/// Returns `axes` without the selected ones. Raises if a selected axis is missing.
Axes eliminate_axes(const Axes& axes, const AxisSelection& remove,
                    SourceLocation at = SourceLocation::current());
/// Returns `axes` without the selected ones. Missing axes are ignored.
Axes without_axes(const Axes& axes, const AxisSelection& remove,
                  SourceLocation at = SourceLocation::current());
/// Returns `axes` with other axes in the place of one.
///
/// @throws haliax::Error if `old` is missing, or a name would occur twice
Axes replace_axis(const Axes& axes, const AxisSelector& old, const Axes& replacement,
                  SourceLocation at = SourceLocation::current());
/// Returns all axes in a partial order, in which `"..."` stands for the axes that are not named.
///
/// Several `"..."` are allowed: an axis that is not named fills the next one after its neighbors.
///
/// @throws haliax::Error if a name is missing or occurs twice, or an axis has no place
Axes rearrange_for_partial_order(const Names& partial, const Axes& axes,
                                 SourceLocation at = SourceLocation::current());

/// @}

}  // namespace haliax
