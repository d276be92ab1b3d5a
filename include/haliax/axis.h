// Names and axes. A Name is an interned string: one pointer, compared by identity. An Axis is a
// name and a size.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "haliax/where.h"

namespace [[gnu::visibility("default")]] haliax {

struct NameData;  // the interned text; see src/base/name.h

class Name {
 public:
  Name() = default;
  Name(std::string_view text);
  Name(const char* text) : Name(std::string_view(text)) {}
  Name(const std::string& text) : Name(std::string_view(text)) {}
  // what a person reads; an axis hidden by vmap keeps the text of its public name
  std::string_view text() const;
  bool hidden() const;  // true inside vmap, for the mapped axis
  explicit operator bool() const { return data_ != nullptr; }
  friend bool operator==(Name, Name) = default;
  const NameData* data() const { return data_; }
  static Name of(const NameData* data) {
    Name n;
    n.data_ = data;
    return n;
  }

 private:
  const NameData* data_ = nullptr;
};

// A named dimension. Two axes are equal if both name and size are.
struct Axis {
  // a static field of a module: part of its structure, not a parameter
  static constexpr bool is_static = true;
  Name name;
  std::int64_t size = 0;

  Axis() = default;
  // Raises for an empty name, a negative size and one beyond 2^60.
  Axis(Name, std::int64_t positions, SourceLocation = SourceLocation::current());
  Axis(const char* text, std::int64_t positions, SourceLocation at = SourceLocation::current())
      : Axis(Name(text), positions, at) {}
  // The same size under another name; the same name with another size.
  Axis alias(Name other, SourceLocation at = SourceLocation::current()) const {
    return {other, size, at};
  }
  Axis resize(std::int64_t other, SourceLocation at = SourceLocation::current()) const {
    return {name, other, at};
  }
  friend bool operator==(const Axis&, const Axis&) = default;
};

using Axes = std::vector<Axis>;
using Names = std::vector<Name>;

// Picks one axis of an array: by name, or by Axis, which also checks the size.
struct AxisSelector {
  Name name;
  std::int64_t size = -1;  // -1: any
  AxisSelector(Name n) : name(n) {}
  AxisSelector(const char* n) : name(n) {}
  AxisSelector(const std::string& n) : name(n) {}
  AxisSelector(const Axis& a) : name(a.name), size(a.size) {}
};

// Picks several axes, or all of them: that is what `{}` and an argument left out mean. `Names{}`
// picks none.
class AxisSelection {
 public:
  AxisSelection() = default;
  AxisSelection(Name);
  AxisSelection(const char*);
  AxisSelection(const std::string&);
  AxisSelection(const Axis&);
  AxisSelection(const AxisSelector&);
  AxisSelection(const Axes&);
  AxisSelection(const Names&);
  AxisSelection(std::initializer_list<AxisSelector>);
  bool all() const { return all_; }
  const std::vector<AxisSelector>& items() const { return items_; }

 private:
  bool all_ = true;
  std::vector<AxisSelector> items_;
};

// A full shape: axes with sizes, in order.
class AxisSpec {
 public:
  AxisSpec() = default;
  AxisSpec(const Axis&);
  AxisSpec(Axes);
  AxisSpec(std::initializer_list<Axis>);
  const Axes& axes() const { return axes_; }
  operator const Axes&() const { return axes_; }
  auto begin() const { return axes_.begin(); }
  auto end() const { return axes_.end(); }
  static constexpr bool is_static = true;
  friend bool operator==(const AxisSpec&, const AxisSpec&) = default;

 private:
  Axes axes_;
};

inline const char* const ellipsis = "...";  // in a partial order: whatever is not named

std::string to_string(const Axis&);  // batch=8
std::string to_string(const Axes&);  // (batch=8, embed=768)
std::ostream& operator<<(std::ostream&, const Name&);
std::ostream& operator<<(std::ostream&, const Axis&);
std::ostream& operator<<(std::ostream&, const Axes&);           // of an AxisSpec, too
std::ostream& operator<<(std::ostream&, const Names&);          // (batch, embed)
std::ostream& operator<<(std::ostream&, const AxisSelector&);   // embed, or embed=768
std::ostream& operator<<(std::ostream&, const AxisSelection&);  // (batch, embed=768), or all
std::int64_t axis_size(const Axes&);                            // the product of the sizes
const Axis* find_axis(const Axes&, Name);                       // null if there is none
bool selects_axis(const AxisSelection&, const Axes&);  // is every one of the axes selected?
template <class... A> Axes make_axes(A... axes) { return {axes...}; }

// These raise for an axis of two sizes; concat_axes for a name that is in both, eliminate_axes and
// replace_axis for one that is missing.
Axes concat_axes(const Axes&, const Axes&, SourceLocation = SourceLocation::current());
// The first, then what the second adds.
Axes union_axes(const Axes&, const Axes&, SourceLocation = SourceLocation::current());
// of the first, in its order
Axes intersect_axes(const Axes&, const Axes&, SourceLocation = SourceLocation::current());
Axes eliminate_axes(const Axes&, const AxisSelection&, SourceLocation = SourceLocation::current());
// missing ones are fine
Axes without_axes(const Axes&, const AxisSelection&, SourceLocation = SourceLocation::current());
// The new ones in the place of the old.
Axes replace_axis(const Axes&, const AxisSelector& old, const Axes&,
                  SourceLocation = SourceLocation::current());
// All of the axes in the order wanted; "..." stands for what is not named.
Axes rearrange_for_partial_order(const Names& partial, const Axes&,
                                 SourceLocation = SourceLocation::current());

}  // namespace haliax
