// The constructor of Axis, and the algebra of shapes with its error checks.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/name.h"
#include "graph/axes.h"
#include "graph/fail.h"

namespace haliax {

Axis::Axis(Name n, std::int64_t s, SourceLocation at) : name(n), size(s) {
  if (!n.text().empty() && s >= 0 && s <= most_elements) return;
  CallSite here(at);
  if (n.text().empty()) fail("Axis", "an axis needs a name");
  fail("Axis", "axis {}{}{}", n, s < 0 ? " has negative size " : " is too large: ", s);
}

namespace {
void check_size(const char* op, const AxisSelector& s, const Axes& in) {
  if (auto size = find_axis(in, s.name)->size; s.size >= 0 && size != s.size)
    fail(op, "axis {} has size {} in {}, not {}", s.name, size, in, s.size);
}
void check_there(const char* op, Name n, const Axes& in) {
  if (!has(in, n)) fail(op, "axis {} is not in {}{}", n, in, did_you_mean(n, in));
}
}  // namespace

Axes concat_axes(const AxisSpec& a, const AxisSpec& b, SourceLocation at) {
  CallSite here(at);
  Axes out = a;
  for (auto& x : b) {
    if (has(out, x.name))
      fail("concat_axes", "axis {} is in both {} and {}", x.name, a.axes(), b.axes());
    out.push_back(x);
  }
  return out;
}
Axes union_axes(const AxisSpec& a, const AxisSpec& b, SourceLocation at) {
  CallSite here(at);
  Axes out = a;
  for (auto& x : b) {
    if (has(out, x.name))
      check_size("union_axes", x, out);
    else
      out.push_back(x);
  }
  return out;
}
Axes intersect_axes(const AxisSpec& a, const AxisSpec& b, SourceLocation at) {
  CallSite here(at);
  Axes out;
  for (auto& x : a)
    if (has(b, x.name)) {
      check_size("intersect_axes", x, b);
      out.push_back(x);
    }

  return out;
}
Axes without_axes(const AxisSpec& axes, const AxisSelection& remove, SourceLocation at) {
  return without_axes(axes, remove, false, at);
}
Axes without_axes(const AxisSpec& axes, const AxisSelection& remove, bool allow_mismatched_sizes,
                  SourceLocation at) {
  CallSite here(at);
  if (remove.all()) return {};
  Axes out = axes;
  for (auto& s : remove.items()) {
    if (has(axes, s.name) && !allow_mismatched_sizes) check_size("without_axes", s, axes);
    std::erase_if(out, [&](auto& a) { return a.name == s.name; });
  }
  return out;
}
Axes eliminate_axes(const AxisSpec& axes, const AxisSelection& remove, SourceLocation at) {
  CallSite here(at);
  for (auto& s : remove.items()) check_there("eliminate_axes", s.name, axes);
  return without_axes(axes, remove, at);
}
Axes replace_axis(const AxisSpec& axes, const AxisSelector& old, const AxisSpec& with,
                  SourceLocation at) {
  CallSite here(at);
  check_there("replace_axis", old.name, axes);
  check_size("replace_axis", old, axes);
  Axes out = axes;
  auto place = std::find_if(out.begin(), out.end(), [&](auto& a) { return a.name == old.name; });
  out.insert(out.erase(place), with.begin(), with.end());
  for (auto& a : out)
    if (find_axis(out, a.name) != &a)
      fail("replace_axis", "axis {} would occur twice in {}", a.name, out);
  return out;
}
Axes rearrange_for_partial_order(std::initializer_list<AxisSelector> partial, const Axes& axes,
                                 SourceLocation at) {
  CallSite here(at);
  Names order;
  for (auto& s : partial) {
    order.push_back(s.name);
    if (s.size < 0) continue;  // "..." has no size
    check_there("rearrange", s.name, axes);
    check_size("rearrange", s, axes);
  }
  return rearrange_for_partial_order(order, axes, at);
}
std::int64_t Shape::operator[](Name name) const {
  check_there("shape", name, axes_);
  return find_axis(axes_, name)->size;
}
Axis resolve_axis(const Axes& axes, const AxisSelector& s, SourceLocation at) {
  CallSite here(at);
  check_there("resolve_axis", s.name, axes);
  check_size("resolve_axis", s, axes);
  return *find_axis(axes, s.name);
}
Axes resolve_axis(const Axes& axes, std::initializer_list<AxisSelector> selection,
                  SourceLocation at) {
  Axes out;
  for (auto& s : selection) out.push_back(resolve_axis(axes, s, at));
  return out;
}
AxisSelection unsize_axes(const Axes& axes, const AxisSelection& which, SourceLocation at) {
  CallSite here(at);
  AxisSelection out(axes);
  for (auto& s : which.items()) check_there("unsize_axes", s.name, axes);
  for (auto& a : out.items_)
    if (which.all() || std::any_of(which.items().begin(), which.items().end(),
                                   [&](auto& s) { return s.name == a.name; }))
      a.size = -1;
  return out;
}
Axes flatten_axes(const Axes& axes, const AxisSelection& old_axes, const AxisSelector& new_axis,
                  SourceLocation at) {
  CallSite here(at);
  Axes old;
  if (old_axes.all()) old = axes;
  for (auto& s : old_axes.items()) {
    check_there("flatten_axes", s.name, axes);
    check_size("flatten_axes", s, axes);
    old.push_back(*find_axis(axes, s.name));
  }
  auto flat = flatten_axes(old, new_axis, at);
  if (old.empty()) return concat_axes({flat}, axes, at);
  Axes out;
  for (auto& a : axes)
    if (!has(old, a.name))
      out.push_back(a);
    else if (!has(out, flat.name))
      out.push_back(flat);
  for (auto& a : without(axes, old))
    if (a.name == flat.name) fail("flatten_axes", "axis {} would occur twice in {}", a.name, out);
  return out;
}
Axis flatten_axes(const Axes& axes, const AxisSelector& new_axis, SourceLocation at) {
  CallSite here(at);
  auto size = axis_size(axes);
  if (new_axis.size >= 0 && new_axis.size != size)
    fail("flatten_axes", "{} has {} elements and does not flatten to {}", axes, size,
         Axis(new_axis.name, new_axis.size));
  return {new_axis.name, size};
}
namespace {
// Raises unless the names are a permutation of the axes, of which "..." may stand for some.
void check_partial_order(const Names& partial, const Axes& axes) {
  auto shown = [&] { return fmt::format("({})", fmt::join(partial, ", ")); };
  for (auto n : partial) {
    if (n == Name(ellipsis)) continue;
    check_there("rearrange", n, axes);
    if (std::count(partial.begin(), partial.end(), n) > 1)
      fail("rearrange", "axis {} is named twice in {}", n, shown());
  }
  for (auto& a : axes)
    if (!has(partial, ellipsis) && !has(partial, a.name))
      fail("rearrange",
           "{} is not a permutation of {}: axis {} is missing; use ... for the other axes", shown(),
           axes, a.name);
}
}  // namespace

// The unlisted axes are assigned to the "..." slots greedily. They gather in one slot, initially
// the first. A listed axis moves the current slot to the next empty "..." after it, if there is
// one. The current slot never moves back. For example, the order (..., a, ...) leaves (x, a, y)
// unchanged, and the order (c, ..., a, ...) changes (a, b, c, d) to (c, a, b, d).
Axes rearrange_for_partial_order(const Names& partial, const Axes& axes, SourceLocation at) {
  CallSite here(at);
  check_partial_order(partial, axes);
  const Name dots(ellipsis);
  std::vector<Axes> slots(partial.size());
  auto empty_from = [&](std::size_t i) {
    while (i < partial.size() && !(partial[i] == dots && slots[i].empty())) ++i;
    return i;
  };
  std::size_t current = has(partial, dots) ? empty_from(0) : 0;
  for (auto& a : axes) {
    if (!has(partial, a.name)) {
      slots[current].push_back(a);
      continue;
    }
    auto place = std::size_t(std::find(partial.begin(), partial.end(), a.name) - partial.begin());
    if (auto next = empty_from(std::max(place + 1, current)); next < partial.size()) current = next;
  }
  Axes out;
  for (std::size_t i = 0; i < partial.size(); ++i) {
    if (partial[i] != dots) slots[i] = {*find_axis(axes, partial[i])};
    out.insert(out.end(), slots[i].begin(), slots[i].end());
  }
  return out;
}

}  // namespace haliax
