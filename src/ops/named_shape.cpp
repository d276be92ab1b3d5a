// Ops that change axes and move values, but compute none.
#include <algorithm>
#include <cmath>

#include "haliax/mesh.h"
#include "ops/attr.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;
using G = const NodePtr&;
using Renames = std::vector<std::pair<AxisSelector, AxisSelector>>;

NamedArray wrap(NodePtr n) { return NamedArray(std::move(n)); }

NodePtr renamed(const char* op, G x, const Renames& renames) {
  Names from, to;
  Axes result = visible(*x);
  for (auto& [old, fresh] : renames) {
    auto a = axis_of(op, x, old);
    if (std::find(from.begin(), from.end(), a.name) != from.end()) fail(op, "axis " + text(a.name) + " is renamed twice");
    if (fresh.size >= 0 && fresh.size != a.size)
      fail(op, "axis " + to_string(a) + " cannot become " + to_string(Axis(fresh.name, fresh.size)) + ": the sizes differ");
    if (fresh.name.text().empty()) fail(op, "axis " + text(a.name) + " is renamed to nothing");
    from.push_back(a.name), to.push_back(fresh.name);
  }
  for (auto& a : result)
    for (std::size_t i = 0; i < from.size(); ++i)
      if (a.name == from[i]) { a.name = to[i]; break; }
  check_unique(op, result);
  return prim::rename(x, from, to);
}
Renames renames_of(const auto& pairs) {
  Renames out;
  for (auto& [from, to] : pairs) out.push_back({from, to});
  return out;
}
NodePtr arranged(G x, const Axes& order) { return prim::fit(x, with_hidden({x}, order)); }

NodePtr broadcasted(const char* op, G x, const Axes& wanted, bool ensure_order, bool enforce_no_extra) {
  auto mine = visible(*x);
  check_unique(op, wanted);
  check_sizes(op, mine, wanted);
  Axes all, extra;
  for (auto& a : wanted) if (!has(mine, a.name)) all.push_back(a);
  for (auto& a : mine) {
    all.push_back(a);
    if (!has(wanted, a.name)) extra.push_back(a);
  }
  if (enforce_no_extra && !extra.empty())
    fail(op, to_string(mine) + " does not broadcast to " + to_string(wanted) + ": it also has " + to_string(extra) +
                 "; sum or index these first");
  if (ensure_order) {
    Axes common;   // in the order of the array
    for (auto& a : all) if (has(wanted, a.name)) common.push_back(a);
    if (common != wanted) all = concat_axes(wanted, extra);
  }
  return arranged(x, all);
}

// The array with `parts` in the place of `axis`, all else as it is.
Axes with_parts(const char* op, G x, const Axis& axis, const Axes& parts) {
  Axes out;
  for (auto& a : visible(*x))
    if (a.name == axis.name) out.insert(out.end(), parts.begin(), parts.end());
    else out.push_back(a);
  check_unique(op, out);
  return out;
}
NodePtr flattened(const char* op, G x, const Axes& old, const AxisSelector& wanted) {
  auto size = axis_size(old);
  if (wanted.size >= 0 && wanted.size != size)
    fail(op, to_string(old) + " has " + std::to_string(size) + " elements and does not flatten to " +
                 to_string(Axis(wanted.name, wanted.size)));
  Axis flat(wanted.name, size);
  Axes rest;
  for (auto& a : visible(*x)) if (!has(old, a.name)) rest.push_back(a);
  check_free(op, flat.name, rest);
  if (old.empty()) return arranged(x, concat_axes({flat}, rest));
  return prim::flatten(x, names_of(old), flat);
}

// Arrays of one set of visible axes, in the first one's order and a common dtype.
NodePtr joined(Nodes parts, const Axes& order, const Axis& whole) {
  DType d = parts[0]->dtype;
  for (auto& p : parts) d = promote(d, p->dtype);
  auto lead = hidden(parts);
  for (auto& p : parts) {
    auto* along = find(*p, whole.name);
    Axes axes = lead;
    for (auto& a : order) axes.push_back(a.name == whole.name ? a.resize(along ? along->size : 1) : a);
    p = prim::fit(prim::cast(p, d), axes);
  }
  return prim::concat(parts, whole);
}
void check_same(const char* op, const Axes& first, const Axes& other, Name but) {
  for (auto& [a, b] : {std::pair(&first, &other), std::pair(&other, &first)})
    for (auto& x : *a) {
      auto* y = find_axis(*b, x.name);
      if (!y || (x.name != but && y->size != x.size))
        fail(op, "axis " + to_string(x) + " of " + to_string(*a) + " is not in " + to_string(*b) +
                     "; the arrays must have the same axes");
    }
}
NodePtr triangle(const char* op, G x, const AxisSelector& s1, const AxisSelector& s2, int k, bool lower) {
  auto a = axis_of(op, x, s1), b = axis_of(op, x, s2);
  if (a.name == b.name) fail(op, "axis " + text(a.name) + " is given twice; a triangle needs two axes");
  Axes order;
  for (auto& v : visible(*x)) if (v.name != a.name && v.name != b.name) order.push_back(v);
  order.push_back(a), order.push_back(b);
  auto row = prim::add(prim::iota(a), prim::integer(k, DType::i32)), column = prim::iota(b);
  auto inside = lower ? prim::less_equal(column, row) : prim::less_equal(row, column);
  auto axes = with_hidden({x}, order);
  return prim::map(prim::kSelect, {inside, x, prim::number(0, x->dtype)}, x->dtype, &axes);
}

}  // namespace

// ---- names and order ----
NamedArray rename(Arr x, std::initializer_list<std::pair<Name, Name>> renames) {
  Here here(x.at());
  return wrap(renamed("rename", node_of("rename", x), renames_of(renames)));
}
NamedArray rename(Arr x, const std::vector<std::pair<Name, Name>>& renames) {
  Here here(x.at());
  return wrap(renamed("rename", node_of("rename", x), renames_of(renames)));
}
NamedArray rename(Arr x, const AxisSelector& from, const AxisSelector& to) {
  Here here(x.at());
  return wrap(renamed("rename", node_of("rename", x), {{from, to}}));
}
NamedArray rearrange(Arr x, const Names& order) {
  Here here(x.at());
  auto n = node_of("rearrange", x);
  return constrained("rearrange", wrap(arranged(n, rearrange_for_partial_order(order, visible(*n), context().origin.at))));
}
NamedArray broadcast_axis(Arr x, const AxisSpec& axes) {
  Here here(x.at());
  return wrap(broadcasted("broadcast_axis", node_of("broadcast_axis", x), axes, true, false));
}
NamedArray broadcast_to(Arr x, const AxisSpec& axes, bool ensure_order, bool enforce_no_extra_axes) {
  Here here(x.at());
  return wrap(broadcasted("broadcast_to", node_of("broadcast_to", x), axes, ensure_order, enforce_no_extra_axes));
}

// ---- merging and cutting axes ----
NamedArray flatten_axes(Arr x, const AxisSelection& old_axes, const AxisSelector& new_axis) {
  Here here(x.at());
  auto n = node_of("flatten_axes", x);
  return wrap(flattened("flatten_axes", n, axes_of("flatten_axes", n, old_axes), new_axis));
}
NamedArray ravel(Arr x, const AxisSelector& new_axis) {
  Here here(x.at());
  auto n = node_of("ravel", x);
  return wrap(flattened("ravel", n, visible(*n), new_axis));
}
NamedArray unflatten_axis(Arr x, const AxisSelector& axis, const AxisSpec& new_axes) {
  Here here(x.at());
  constexpr auto op = "unflatten_axis";
  auto n = node_of(op, x);
  auto a = axis_of(op, n, axis);
  if (auto size = axis_size(new_axes); size != a.size)
    fail(op, "axis " + to_string(a) + " does not unflatten to " + to_string(new_axes.axes()) + ", which has " +
                 std::to_string(size) + " elements");
  with_parts(op, n, a, new_axes);
  if (new_axes.axes().empty()) return wrap(prim::slice(n, a.name, 0, 1, 1, true));
  return wrap(prim::unflatten(n, a.name, new_axes));
}
std::vector<NamedArray> unbind(Arr x, const AxisSelector& axis) {
  Here here(x.at());
  auto n = node_of("unbind", x);
  auto a = axis_of("unbind", n, axis);
  std::vector<NamedArray> out;
  for (std::int64_t i = 0; i < a.size; ++i) out.push_back(constrained("unbind", wrap(prim::slice(n, a.name, i, 1, 1, true))));
  return out;
}
std::vector<NamedArray> split(Arr x, const AxisSelector& axis, const AxisSpec& pieces) {
  Here here(x.at());
  constexpr auto op = "split";
  auto n = node_of(op, x);
  auto a = axis_of(op, n, axis);
  std::int64_t total = 0;
  for (auto& p : pieces) total += p.size, with_parts(op, n, a, {p});
  if (total != a.size)
    fail(op, "the pieces " + to_string(pieces.axes()) + " add up to " + std::to_string(total) + ", not to " + to_string(a));
  std::vector<NamedArray> out;
  std::int64_t at = 0;
  for (auto& p : pieces) {
    out.push_back(wrap(prim::rename(prim::slice(n, a.name, at, p.size), {a.name}, {p.name})));
    at += p.size;
  }
  return out;
}

// ---- joining ----
NamedArray stack(const AxisSelector& axis, const std::vector<NamedArray>& arrays, SourceLocation at) {
  Here here(at);
  constexpr auto op = "stack";
  if (arrays.empty()) fail(op, "there is nothing to stack");
  Axis whole(axis.name, std::int64_t(arrays.size()));
  if (axis.size >= 0 && axis.size != whole.size)
    fail(op, std::to_string(arrays.size()) + " arrays do not make an axis " + to_string(Axis(axis.name, axis.size)));
  Nodes parts;
  for (auto& a : arrays) parts.push_back(node_of(op, a));
  auto first = visible(*parts[0]);
  check_free(op, axis.name, first);
  for (auto& p : parts) check_same(op, first, visible(*p), {});
  return wrap(joined(parts, concat_axes({whole}, first), whole));
}
NamedArray concatenate(const AxisSelector& axis, const std::vector<NamedArray>& arrays, SourceLocation at) {
  Here here(at);
  constexpr auto op = "concatenate";
  if (arrays.empty()) fail(op, "there is nothing to concatenate");
  Nodes parts;
  Axis whole(axis.name, 0);
  for (auto& a : arrays) {
    parts.push_back(node_of(op, a));
    whole.size += axis_of(op, parts.back(), axis.name).size;
  }
  auto first = visible(*parts[0]);
  for (auto& p : parts) check_same(op, first, visible(*p), axis.name);
  if (axis.size >= 0 && axis.size != whole.size)
    fail(op, "the pieces of axis " + text(axis.name) + " add up to " + std::to_string(whole.size) + ", not to " +
                 std::to_string(axis.size));
  return wrap(joined(parts, first, whole));
}

// ---- repeating and moving along an axis ----
namespace {
// n copies along an axis: each element n times (`inner`), or the whole n times.
NodePtr copies(const char* op, G x, const AxisSelector& axis, std::int64_t n, bool inner) {
  auto a = axis_of(op, x, axis);
  if (n < 0 || (a.size > 0 && n > most_elements / a.size))
    fail(op, "cannot repeat axis " + to_string(a) + " " + std::to_string(n) + " times");
  Axis copy(Name("(copy of " + text(a.name) + ")"), n);
  Axes parts = inner ? Axes{a, copy} : Axes{copy, a};
  auto spread = arranged(x, with_parts(op, x, a, parts));
  return prim::flatten(spread, names_of(parts), a.resize(a.size * n));
}
}  // namespace

NamedArray repeat(Arr x, const AxisSelector& axis, std::int64_t n) {
  Here here(x.at());
  return wrap(copies("repeat", node_of("repeat", x), axis, n, true));
}
NamedArray tile(Arr x, const std::vector<std::pair<Name, std::int64_t>>& reps) {
  Here here(x.at());
  auto n = node_of("tile", x);
  Axes fresh;
  for (auto& [name, times] : reps) {
    if (times < 0) fail("tile", "cannot tile axis " + text(name) + " " + std::to_string(times) + " times");
    if (find(*n, name)) n = copies("tile", n, name, times, false);
    else check_free("tile", name, fresh), fresh.push_back({name, times});
  }
  return wrap(arranged(n, concat_axes(fresh, visible(*n))));
}
NamedArray roll(Arr x, Arr shift, const AxisSelector& axis) {
  Here here(x.at());
  constexpr auto op = "roll";
  auto n = node_of(op, x);
  auto a = axis_of(op, n, axis);
  if (a.size == 0) return wrap(n);
  if (shift.is_number()) {
    auto by = integer_of(*node_of(op, shift, DType::i64)) % a.size;
    if (by < 0) by += a.size;
    if (by == 0) return wrap(n);
    return wrap(prim::concat({prim::slice(n, a.name, a.size - by, by), prim::slice(n, a.name, 0, a.size - by)}, a));
  }
  auto s = node_of(op, shift);
  if (!visible(*s).empty() || !is_integer(s->dtype))
    fail(op, "the shift is a number or a 0-d integer array, not " + text(s->dtype) + " " + to_string(visible(*s)));
  auto size = prim::integer(a.size, DType::i32);
  auto wide = prim::map(prim::kMod, {prim::cast(s, DType::i64), prim::integer(a.size, DType::i64)}, DType::i64);
  auto by = prim::cast(wide, DType::i32);
  auto from = prim::map(prim::kMod, {prim::sub(prim::iota(a), by), size}, DType::i32);
  return wrap(prim::gather(n, {{a.name, from}}, with_hidden({from, n}, visible(*n)), program::Outside::clamp));
}
NamedArray pad(Arr x, const std::vector<std::pair<Name, std::pair<std::int64_t, std::int64_t>>>& widths, Arr value) {
  Here here(x.at());
  constexpr auto op = "pad";
  auto n = node_of(op, x), fill = node_of(op, value, n->dtype);
  if (!visible(*fill).empty()) fail(op, "the value is a number or a 0-d array, not one with axes " + to_string(visible(*fill)));
  n = prim::fit(n, with_hidden({fill, n}, visible(*n)));
  for (auto& [name, width] : widths) {
    auto a = axis_of(op, n, name);
    if (width.first < 0 || width.second < 0 || std::max(width.first, width.second) > most_elements / 4)
      fail(op, "axis " + to_string(a) + " cannot be padded by (" + std::to_string(width.first) + ", " +
                   std::to_string(width.second) + "); index it to make it smaller");
    n = prim::pad(n, a.name, width.first, width.second, fill);
  }
  return wrap(n);
}
NamedArray flip(Arr x, const AxisSelector& axis) {
  Here here(x.at());
  auto n = node_of("flip", x);
  auto a = axis_of("flip", n, axis);
  return wrap(a.size < 2 ? n : prim::slice(n, a.name, a.size - 1, a.size, -1));
}

// ---- triangles and diagonals ----
NamedArray tril(Arr x, const AxisSelector& a, const AxisSelector& b, int k) {
  Here here(x.at());
  return wrap(triangle("tril", node_of("tril", x), a, b, k, true));
}
NamedArray triu(Arr x, const AxisSelector& a, const AxisSelector& b, int k) {
  Here here(x.at());
  return wrap(triangle("triu", node_of("triu", x), a, b, k, false));
}
NamedArray trace(Arr x, const AxisSelector& s1, const AxisSelector& s2, int offset) {
  Here here(x.at());
  constexpr auto op = "trace";
  auto n = node_of(op, x);
  auto a = axis_of(op, n, s1), b = axis_of(op, n, s2);
  if (a.name == b.name) fail(op, "axis " + text(a.name) + " is given twice; a diagonal needs two axes");
  auto diagonal = prim::equal(prim::iota(b), prim::add(prim::iota(a), prim::integer(offset, DType::i32)));
  auto on = prim::map(prim::kSelect, {diagonal, n, prim::number(0, n->dtype)}, n->dtype, &n->axes);
  return sum(wrap(on), {a, b});
}

}  // namespace haliax
