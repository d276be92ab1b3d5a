// What can be wrong with axes: their constructor, and the algebra of shapes.
#include <algorithm>

#include "base/name.h"
#include "graph/node.h"

namespace haliax {

Axis::Axis(Name n, std::int64_t s, SourceLocation at) : name(n), size(s) {
  if (!n.text().empty() && s >= 0 && s <= most_elements) return;
  Here here(at);
  if (n.text().empty()) fail("Axis", "an axis needs a name");
  fail("Axis", "axis " + std::string(n.text()) + (s < 0 ? " has negative size " : " is too large: ") + std::to_string(s));
}

namespace {
std::string text(Name n) { return std::string(n.text()); }
void check_size(const char* op, Name n, std::int64_t given, const Axes& in) {
  if (auto size = find_axis(in, n)->size; size != given)
    fail(op, "axis " + text(n) + " has size " + std::to_string(size) + " in " + to_string(in) + " and " + std::to_string(given) +
                 " was given");
}
[[noreturn]] void missing(const char* op, Name n, const Axes& in) {
  fail(op, "axis " + text(n) + " is not in " + to_string(in) + did_you_mean(n, in));
}
}  // namespace

Axes concat_axes(const Axes& a, const Axes& b, SourceLocation at) {
  Here here(at);
  Axes out = a;
  for (auto& x : b) {
    if (find_axis(out, x.name))
      fail("concat_axes", "axis " + text(x.name) + " is in both " + to_string(a) + " and " + to_string(b));
    out.push_back(x);
  }
  return out;
}
Axes union_axes(const Axes& a, const Axes& b, SourceLocation at) {
  Here here(at);
  Axes out = a;
  for (auto& x : b) {
    if (find_axis(out, x.name))
      check_size("union_axes", x.name, x.size, out);
    else
      out.push_back(x);
  }
  return out;
}
Axes intersect_axes(const Axes& a, const Axes& b, SourceLocation at) {
  Here here(at);
  Axes out;
  for (auto& x : a)
    if (find_axis(b, x.name)) check_size("intersect_axes", x.name, x.size, b), out.push_back(x);
  return out;
}
Axes without_axes(const Axes& axes, const AxisSelection& remove, SourceLocation at) {
  Here here(at);
  if (remove.all()) return {};
  Axes out = axes;
  for (auto& s : remove.items()) {
    if (s.size >= 0 && find_axis(axes, s.name)) check_size("without_axes", s.name, s.size, axes);
    std::erase_if(out, [&](auto& a) { return a.name == s.name; });
  }
  return out;
}
Axes eliminate_axes(const Axes& axes, const AxisSelection& remove, SourceLocation at) {
  Here here(at);
  if (!remove.all())
    for (auto& s : remove.items())
      if (!find_axis(axes, s.name)) missing("eliminate_axes", s.name, axes);
  return without_axes(axes, remove, at);
}
Axes replace_axis(const Axes& axes, const AxisSelector& old, const Axes& with, SourceLocation at) {
  Here here(at);
  if (!find_axis(axes, old.name)) missing("replace_axis", old.name, axes);
  if (old.size >= 0) check_size("replace_axis", old.name, old.size, axes);
  Axes out;
  for (auto& a : axes)
    if (a.name == old.name)
      out.insert(out.end(), with.begin(), with.end());
    else
      out.push_back(a);
  for (std::size_t i = 0; i < out.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (out[i].name == out[j].name)
        fail("replace_axis", "axis " + text(out[i].name) + " would be there twice: " + to_string(out));
  return out;
}
Axes rearrange_for_partial_order(const Names& partial, const Axes& axes, SourceLocation at) {
  Here here(at);
  auto shown = [&] {
    std::string s = "(";
    for (auto n : partial) s += (s.size() > 1 ? ", " : "") + text(n);
    return s + ")";
  };
  const Name dots(ellipsis);
  bool has_dots = false;
  for (std::size_t i = 0; i < partial.size(); ++i) {
    if (partial[i] == dots) {
      has_dots = true;
      continue;
    }
    if (!find_axis(axes, partial[i])) missing("rearrange", partial[i], axes);
    for (std::size_t j = 0; j < i; ++j)
      if (partial[i] == partial[j]) fail("rearrange", "axis " + text(partial[i]) + " is named twice in " + shown());
  }
  auto named = [&](Name n) { return std::find(partial.begin(), partial.end(), n) != partial.end(); };
  if (!has_dots) {
    for (auto& a : axes)
      if (!named(a.name))
        fail("rearrange", shown() + " is not a permutation of " + to_string(axes) + ": axis " + text(a.name) +
                              " is missing; add ... for what is not named");
  }
  // Greedy: unlisted axes gather in one "...", at first the first; after a listed axis, in the next "..." behind it that is still
  // empty, if there is one. It never moves back.
  std::vector<Axes> slots(partial.size());
  auto empty_from = [&](std::size_t i) {
    while (i < partial.size() && !(partial[i] == dots && slots[i].empty())) ++i;
    return i;
  };
  std::size_t current = has_dots ? empty_from(0) : 0;
  for (auto& a : axes) {
    if (!named(a.name)) {
      slots[current].push_back(a);
      continue;
    }
    auto place = std::size_t(std::find(partial.begin(), partial.end(), a.name) - partial.begin());
    if (auto next = empty_from(std::max(place + 1, current)); next < partial.size()) current = next;
  }
  Axes out;
  for (std::size_t i = 0; i < partial.size(); ++i) {
    if (partial[i] == dots)
      out.insert(out.end(), slots[i].begin(), slots[i].end());
    else
      out.push_back(*find_axis(axes, partial[i]));
  }
  return out;
}

}  // namespace haliax
