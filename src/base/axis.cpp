#include "haliax/axis.h"

#include <algorithm>

#include "base/name.h"
#include "haliax/error.h"

namespace haliax {

Axis::Axis(Name n, std::int64_t s) : name(n), size(s) {
  if (n.text().empty()) throw Error("[Axis] an axis needs a name");
  if (s < 0) throw Error("[Axis] axis " + std::string(n.text()) + " has negative size " + std::to_string(s));
}

std::string to_string(const Axis& a) { return std::string(a.name.text()) + "=" + std::to_string(a.size); }
std::string to_string(const Axes& axes) {
  std::string s = "(";
  for (auto& a : axes) s += (s.size() > 1 ? ", " : "") + to_string(a);
  return s + ")";
}
std::int64_t axis_size(const Axes& axes) {
  std::int64_t n = 1;
  for (auto& a : axes) n *= a.size;
  return n;
}
const Axis* find_axis(const Axes& axes, Name n) {
  for (auto& a : axes)
    if (a.name == n) return &a;
  return nullptr;
}

namespace {
void same_size(const char* op, const Axis& a, const Axis& b, const Axes& in) {
  if (a.size != b.size)
    throw Error(std::string("[") + op + "] axis " + std::string(a.name.text()) + " has size " + std::to_string(b.size) + " in " +
                to_string(in) + " and " + std::to_string(a.size) + " was given");
}
void check_size(const char* op, const AxisSelector& s, const Axis& a, const Axes& in) {
  if (s.size >= 0) same_size(op, Axis(s.name, s.size), a, in);
}
[[noreturn]] void missing(const char* op, Name n, const Axes& in) {
  throw Error(std::string("[") + op + "] axis " + std::string(n.text()) + " is not in " + to_string(in) + did_you_mean(n, in));
}
}  // namespace

Axes concat_axes(const Axes& a, const Axes& b) {
  Axes out = a;
  for (auto& x : b) {
    if (find_axis(out, x.name)) throw Error("[concat_axes] axis " + std::string(x.name.text()) + " is in both " + to_string(a) + " and " + to_string(b));
    out.push_back(x);
  }
  return out;
}
Axes union_axes(const Axes& a, const Axes& b) {
  Axes out = a;
  for (auto& x : b) {
    if (auto* known = find_axis(out, x.name)) same_size("union_axes", x, *known, a);
    else out.push_back(x);
  }
  return out;
}
Axes intersect_axes(const Axes& a, const Axes& b) {
  Axes out;
  for (auto& x : a)
    if (auto* other = find_axis(b, x.name)) same_size("intersect_axes", x, *other, b), out.push_back(x);
  return out;
}
Axes without_axes(const Axes& axes, const AxisSelection& remove) {
  if (remove.all()) return {};
  Axes out = axes;
  for (auto& s : remove.items()) {
    if (auto* a = find_axis(axes, s.name)) check_size("without_axes", s, *a, axes);
    std::erase_if(out, [&](auto& a) { return a.name == s.name; });
  }
  return out;
}
Axes eliminate_axes(const Axes& axes, const AxisSelection& remove) {
  if (!remove.all())
    for (auto& s : remove.items())
      if (!find_axis(axes, s.name)) missing("eliminate_axes", s.name, axes);
  return without_axes(axes, remove);
}
Axes replace_axis(const Axes& axes, const AxisSelector& old, const Axes& with) {
  auto* found = find_axis(axes, old.name);
  if (!found) missing("replace_axis", old.name, axes);
  check_size("replace_axis", old, *found, axes);
  Axes out;
  for (auto& a : axes)
    if (a.name == old.name) out.insert(out.end(), with.begin(), with.end());
    else out.push_back(a);
  for (std::size_t i = 0; i < out.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (out[i].name == out[j].name)
        throw Error("[replace_axis] axis " + std::string(out[i].name.text()) + " would be there twice: " + to_string(out));
  return out;
}
bool selects_axis(const AxisSelection& s, const Axes& axes) {
  return std::all_of(axes.begin(), axes.end(), [&](auto& a) {
    return s.all() || std::any_of(s.items().begin(), s.items().end(),
                                  [&](auto& i) { return i.name == a.name && (i.size < 0 || i.size == a.size); });
  });
}

Axes rearrange_for_partial_order(const Names& partial, const Axes& axes) {
  auto shown = [&] {
    std::string s = "(";
    for (auto n : partial) s += (s.size() > 1 ? ", " : "") + std::string(n.text());
    return s + ")";
  };
  const Name dots(ellipsis);
  bool has_dots = false;
  for (std::size_t i = 0; i < partial.size(); ++i) {
    if (partial[i] == dots) { has_dots = true; continue; }
    if (!find_axis(axes, partial[i])) missing("rearrange", partial[i], axes);
    for (std::size_t j = 0; j < i; ++j)
      if (partial[i] == partial[j]) throw Error("[rearrange] axis " + std::string(partial[i].text()) + " is named twice in " + shown());
  }
  auto named = [&](Name n) { return std::find(partial.begin(), partial.end(), n) != partial.end(); };
  if (!has_dots) {
    for (auto& a : axes)
      if (!named(a.name)) throw Error("[rearrange] " + shown() + " is not a permutation of " + to_string(axes) + ": axis " +
                                      std::string(a.name.text()) + " is missing; add ... for what is not named");
  }
  // Greedy: unlisted axes gather in one "...", at first the first; after a listed axis, in the next "..." behind it that is still empty,
  // if there is one. It never moves back.
  std::vector<Axes> slots(partial.size());
  auto empty_from = [&](std::size_t i) {
    while (i < partial.size() && !(partial[i] == dots && slots[i].empty())) ++i;
    return i;
  };
  std::size_t current = has_dots ? empty_from(0) : 0;
  for (auto& a : axes) {
    if (!named(a.name)) { slots[current].push_back(a); continue; }
    auto at = std::size_t(std::find(partial.begin(), partial.end(), a.name) - partial.begin());
    if (auto next = empty_from(std::max(at + 1, current)); next < partial.size()) current = next;
  }
  Axes out;
  for (std::size_t i = 0; i < partial.size(); ++i) {
    if (partial[i] == dots) out.insert(out.end(), slots[i].begin(), slots[i].end());
    else out.push_back(*find_axis(axes, partial[i]));
  }
  return out;
}

}  // namespace haliax
