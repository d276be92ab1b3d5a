// Axes and names as sets, compared by name, in the order of the first operand. For the user-facing
// functions, which check sizes, see haliax/axis.h.
#pragma once
#include <algorithm>

#include "graph/node.h"

namespace haliax {

inline Names names_of(const Axes& axes) {
  Names out;
  for (auto& a : axes) out.push_back(a.name);
  return out;
}
inline program::Dims sizes_of(const Axes& axes) {
  program::Dims out;
  for (auto& a : axes) out.push_back(a.size);
  return out;
}
// Returns the axes that `others` lacks. For example, (a, b) without (a, c) is (b).
inline Axes without(Axes axes, const Axes& others) {
  std::erase_if(axes, [&](auto& a) { return has(others, a.name); });
  return axes;
}
// Returns the axes that `others` has too. For example, (a, b) and (a, c) have (a) in common.
inline Axes common(Axes axes, const Axes& others) {
  std::erase_if(axes, [&](auto& a) { return !has(others, a.name); });
  return axes;
}
// Returns the axes, followed by the axes that only `others` has. For example, (a, b) joined with
// (a, c) is (a, b, c).
inline Axes joined(Axes axes, const Axes& others) {
  for (auto& a : others)
    if (!has(axes, a.name)) axes.push_back(a);
  return axes;
}
// Return true if both have the same axes, or the same names, in any order.
inline bool same_set(const Axes& a, const Axes& b) {
  return std::is_permutation(a.begin(), a.end(), b.begin(), b.end());
}
inline bool same_names(const Axes& a, const Axes& b) {
  return a.size() == b.size() &&
         std::all_of(a.begin(), a.end(), [&](auto& x) { return has(b, x.name); });
}
// Returns the axes with `old` replaced by `parts`, which may be none. For example, (a, b) with b
// replaced by (c, d) is (a, c, d).
inline Axes replaced(const Axes& axes, Name old, const Axes& parts) {
  Axes out;
  for (auto& a : axes)
    if (a.name == old)
      out.insert(out.end(), parts.begin(), parts.end());
    else
      out.push_back(a);
  return out;
}

}  // namespace haliax
