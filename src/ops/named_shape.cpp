// Ops that change axes and move values, but compute none.
#include <algorithm>
#include <cmath>

#include "base/dtype_hint.h"
#include "haliax/fmt.h"
#include "haliax/mesh.h"
#include "ops/attr.h"
#include "ops/distributed_order.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;
using Renames = std::vector<std::pair<AxisSelector, AxisSelector>>;

NamedArray renamed(const Arr& array, const Renames& renames) {
  constexpr auto op = "rename";
  auto [here, x] = Call(op, array);
  RenameAttr r;
  Axes result = visible(*x);
  for (auto& [old, fresh] : renames) {
    auto a = axis_of(op, x, old);
    if (has(r.from, a.name)) fail(op, "axis " + text(a.name) + " is renamed twice");
    if (fresh.size >= 0 && fresh.size != a.size)
      fail(op, fmt::format("axis {} cannot become {}: the sizes differ", a,
                           Axis(fresh.name, fresh.size)));
    if (fresh.name.text().empty())
      fail(op, "axis " + text(a.name) + " is renamed to an empty name");
    r.from.push_back(a.name);
    r.to.push_back(fresh.name);
  }
  for (auto& a : result) a.name = r.renamed(a.name);
  check_unique(op, result);
  return wrap(prim::rename(x, r.from, r.to));
}
NodePtr arranged(NodeRef x, const Axes& order) { return prim::fit(x, with_hidden({x}, order)); }

NamedArray broadcasted(const char* op, const Arr& a, const Axes& requested, bool ensure_order,
                       bool enforce_no_extra) {
  auto [here, x] = Call(op, a);
  auto mine = visible(*x);
  check_unique(op, requested);
  check_sizes(op, mine, requested);
  auto all = joined(without(requested, mine), mine), extra = without(mine, requested);
  check_elements(op, all);
  if (enforce_no_extra && !extra.empty())
    fail(op, fmt::format("{} does not broadcast to {}: it also has {}; sum or index these first",
                         to_string(mine), to_string(requested), to_string(extra)));
  if (ensure_order && common(all, requested) != requested) all = joined(requested, extra);
  return wrap(arranged(x, all));
}

// Returns the axes of x with `parts` in place of `axis`.
Axes with_parts(const char* op, NodeRef x, const Axis& axis, const Axes& parts) {
  auto out = replaced(visible(*x), axis.name, parts);
  check_unique(op, out);
  return out;
}
NamedArray flattened(const char* op, const Arr& a, const AxisSelection& selection,
                     const AxisSelector& requested) {
  auto [here, x] = Call(op, a);
  auto old = axes_of(op, x, selection), rest = without(visible(*x), old);
  auto size = axis_size(old);
  if (requested.size >= 0 && requested.size != size)
    fail(op, fmt::format("{} has {} elements and does not flatten to {}", to_string(old), size,
                         Axis(requested.name, requested.size)));
  Axis flat(requested.name, size);
  check_free(op, flat.name, rest);
  return wrap(old.empty() ? arranged(x, concat_axes({flat}, rest))
                          : prim::flatten(x, names_of(old), flat));
}

// Concatenates arrays with the same visible axes, in the order of the first one and a common dtype.
NodePtr concatenated(Nodes parts, const Axes& order, const Axis& full) {
  DType d = parts[0]->dtype;
  for (auto& p : parts) d = promote(d, p->dtype);
  auto lead = hidden(parts);
  for (auto& p : parts) {
    auto* along = find(*p, full.name);
    Axes axes = lead;
    for (auto& a : order)
      axes.push_back(a.name == full.name ? a.resize(along ? along->size : 1) : a);
    p = prim::fit(prim::cast(p, d), axes);
  }
  return prim::concat(parts, full);
}
void check_same_axes(const char* op, const Axes& first, const Axes& other, Name but) {
  for (auto& [a, b] : {std::pair(&first, &other), std::pair(&other, &first)})
    for (auto& x : *a) {
      auto* y = find_axis(*b, x.name);
      if (!y || (x.name != but && y->size != x.size))
        fail(op, fmt::format("axis {} of {} is not in {}; the arrays must have the same axes", x,
                             to_string(*a), to_string(*b)));
    }
}
// The diagonal of two axes: `row` is the position along `rows` plus the offset, and `column` the
// position along `columns`. They are equal on the diagonal. Raises if both axes are the same.
struct Diagonal {
  Axis rows, columns;
  NodePtr row, column;
  Diagonal(const char* op, const char* what, NodeRef x, const AxisSelector& row_axis,
           const AxisSelector& column_axis, int offset)
      : rows(axis_of(op, x, row_axis)), columns(axis_of(op, x, column_axis)) {
    if (rows.name == columns.name)
      fail(op, fmt::format("axis {} is given twice; a {} needs two axes", rows.name, what));
    const auto d =
        prim::position_dtype(std::max(rows.size, columns.size) + std::abs(std::int64_t(offset)));
    row = prim::add(prim::iota(rows, d), prim::integer(offset, d));
    column = prim::iota(columns, d);
  }
};
NodePtr zero_outside(NodeRef inside, NodeRef x, const Axes& axes) {  // zero elsewhere
  return prim::select(inside, x, prim::number(0, x->dtype), axes);
}
NamedArray triangle(const char* op, const Arr& array, const AxisSelector& row_axis,
                    const AxisSelector& column_axis, int k, bool lower) {
  auto [here, x] = Call(op, array);
  Diagonal diagonal(op, "triangle", x, row_axis, column_axis, k);
  auto inside = lower ? prim::less_equal(diagonal.column, diagonal.row)
                      : prim::less_equal(diagonal.row, diagonal.column);
  const Axes square{diagonal.rows, diagonal.columns};
  auto axes = with_hidden({x}, joined(without(visible(*x), square), square));
  return wrap(zero_outside(inside, x, axes));
}

// Operands: the values on a diagonal, the array, and a mask that is true on the diagonal. The
// composed gradient would fill an array with zeros and then scatter to its diagonal.
const Op kDiagonal{
    .name = "trace_diagonal", .kind = Kind::wrap, .grad = [](NodeRef o, NodeRef g) {
      return Nodes{nullptr, zero_outside(o->in[2], g, joined(o->in[1]->axes, g->axes)), nullptr};
    }};
const bool diagonal_registered = prim::register_ops({&kDiagonal});

// Rearranges x, after a check that the sizes in `order` are the sizes of x.
NamedArray rearranged(const Arr& x, const AxisSelection& order) {
  auto [here, n] = Call("rearrange", x);
  Names names;
  for (auto& a : order.items()) {
    if (a.size >= 0) axis_of("rearrange", n, a);  // "..." has no size
    names.push_back(a.name);
  }
  return rearrange(x, names);
}

}  // namespace

// ---- names and order ----
NamedArray rename(Arr x, std::initializer_list<std::pair<AxisSelector, AxisSelector>> renames) {
  return renamed(x, renames);
}
NamedArray rename(Arr x, const std::vector<std::pair<Name, Name>>& renames) {
  return renamed(x, {renames.begin(), renames.end()});
}
NamedArray rename(Arr x, const AxisSelector& from, const AxisSelector& to) {
  return renamed(x, {{from, to}});
}
NamedArray rearrange(Arr x, const Names& order) {
  auto [here, n] = Call("rearrange", x);
  return constrained(
      "rearrange",
      wrap(arranged(n, rearrange_for_partial_order(order, visible(*n), context().origin.at))));
}
NamedArray rearrange(Arr x, std::initializer_list<AxisSelector> order) {
  return rearranged(x, order);
}
NamedArray rearrange(Arr x, const Axes& order) { return rearranged(x, order); }
NamedArray broadcast_axis(Arr x, const AxisSpec& axes) {
  return broadcasted("broadcast_axis", x, axes, true, false);
}
NamedArray broadcast_to(Arr x, const AxisSpec& axes, bool ensure_order,
                        bool enforce_no_extra_axes) {
  return broadcasted("broadcast_to", x, axes, ensure_order, enforce_no_extra_axes);
}

std::vector<NamedArray> broadcast_arrays(const std::vector<NamedArray>& arrays, bool require_subset,
                                         bool ensure_order, SourceLocation at) {
  constexpr auto op = "broadcast_arrays";
  CallSite here(at);
  std::vector<Axes> shapes;
  for (auto& a : arrays)
    if (!a.empty()) shapes.push_back(visible(*a.node()));
  Axes full;
  if (require_subset) {
    full = broadcast(op, shapes);
  } else {
    std::stable_sort(shapes.begin(), shapes.end(),
                     [](auto& a, auto& b) { return axis_size(a) > axis_size(b); });
    for (auto& s : shapes) {
      check_sizes(op, full, s);
      full = joined(without(s, full), full);
    }
  }
  std::vector<NamedArray> out;
  for (auto& a : arrays)
    out.push_back(a.empty() ? a : broadcasted(op, Arr(a, at), full, ensure_order, true));
  return out;
}

// ---- merging and splitting axes ----
NamedArray flatten_axes(Arr x, const AxisSelection& old_axes, const AxisSelector& new_axis) {
  return flattened("flatten_axes", x, old_axes, new_axis);
}
NamedArray ravel(Arr x, const AxisSelector& new_axis) {
  return flattened("ravel", x, {}, new_axis);
}
NamedArray unflatten_axis(Arr x, const AxisSelector& axis, const AxisSpec& new_axes) {
  constexpr auto op = "unflatten_axis";
  auto [here, n, a] = CallAlong(op, x, axis);
  if (auto size = axis_size(new_axes); size != a.size)
    fail(op,
         fmt::format("axis {} does not unflatten to {}, which has {} elements", a, new_axes, size));
  with_parts(op, n, a, new_axes);
  if (new_axes.axes().empty()) return wrap(prim::at_position(n, a.name, 0));
  return wrap(prim::unflatten(n, a.name, new_axes));
}
std::vector<NamedArray> unbind(Arr x, const AxisSelector& axis) {
  auto [here, n, a] = CallAlong("unbind", x, axis);
  std::vector<NamedArray> out;
  for (std::int64_t i = 0; i < a.size; ++i)
    out.push_back(constrained("unbind", wrap(prim::at_position(n, a.name, i))));
  return out;
}
std::vector<NamedArray> split(Arr x, const AxisSelector& axis, const AxisSpec& pieces) {
  constexpr auto op = "split";
  auto [here, n, a] = CallAlong(op, x, axis);
  std::int64_t total = 0;
  for (auto& p : pieces) {
    total += p.size;
    with_parts(op, n, a, {p});
  }

  if (total != a.size)
    fail(op, fmt::format("the pieces {} add up to {}, not to {}", pieces, total, a));
  std::vector<NamedArray> out;
  std::int64_t at = 0;
  for (auto& p : pieces) {
    out.push_back(wrap(prim::rename(prim::slice(n, a.name, at, p.size), {a.name}, {p.name})));
    at += p.size;
  }
  return out;
}

// ---- concatenation ----
NamedArray stack(const AxisSelector& axis, const std::vector<NamedArray>& arrays,
                 SourceLocation at) {
  CallSite here(at);
  constexpr auto op = "stack";
  if (arrays.empty()) fail(op, "there is nothing to stack");
  Axis full(axis.name, std::int64_t(arrays.size()));
  if (axis.size >= 0 && axis.size != full.size)
    fail(op, fmt::format("{} arrays do not match the axis {}", arrays.size(),
                         Axis(axis.name, axis.size)));
  Nodes parts;
  for (auto& a : arrays) parts.push_back(node_of(op, a));
  auto first = visible(*parts[0]);
  check_free(op, axis.name, first);
  for (auto& p : parts) check_same_axes(op, first, visible(*p), {});
  return wrap(concatenated(parts, concat_axes({full}, first), full));
}
NamedArray concatenate(const AxisSelector& axis, const std::vector<NamedArray>& arrays,
                       SourceLocation at) {
  CallSite here(at);
  constexpr auto op = "concatenate";
  if (arrays.empty()) fail(op, "there is nothing to concatenate");
  Nodes parts;
  Axis full(axis.name, 0);
  for (auto& a : arrays) {
    parts.push_back(node_of(op, a));
    full.size += axis_of(op, parts.back(), axis.name).size;
  }
  auto first = visible(*parts[0]);
  for (auto& p : parts) check_same_axes(op, first, visible(*p), axis.name);
  if (axis.size >= 0 && axis.size != full.size)
    fail(op, fmt::format("the pieces of axis {} add up to {}, not to {}", axis.name, full.size,
                         axis.size));
  return wrap(concatenated(parts, first, full));
}

// ---- repetition and movement along an axis ----
namespace {
enum class Copies { of_elements, of_axis };
// Returns n copies along an axis. For example, 2 copies of (1, 2) are (1, 1, 2, 2) or (1, 2, 1, 2).
NodePtr repeated(const char* op, NodeRef x, const AxisSelector& axis, std::int64_t n,
                 Copies copies) {
  auto a = axis_of(op, x, axis);
  if (n < 0 || (a.size > 0 && n > most_elements / a.size))
    fail(op, fmt::format("cannot repeat axis {} {} times", a, n));
  Axis copy(Name("(copy of " + text(a.name) + ")"), n);
  Axes parts = copies == Copies::of_elements ? Axes{a, copy} : Axes{copy, a};
  auto spread = arranged(x, with_parts(op, x, a, parts));
  return prim::flatten(spread, names_of(parts), a.resize(a.size * n));
}
}  // namespace

NamedArray repeat(Arr x, const AxisSelector& axis, std::int64_t n) {
  auto [here, node] = Call("repeat", x);
  return wrap(repeated("repeat", node, axis, n, Copies::of_elements));
}
NamedArray tile(Arr x, const std::vector<std::pair<AxisSelector, std::int64_t>>& reps) {
  auto [here, n] = Call("tile", x);
  Axes fresh;
  for (auto& [axis, times] : reps) {
    if (times < 0) fail("tile", fmt::format("cannot tile axis {} {} times", axis.name, times));
    if (find(*n, axis.name))
      n = repeated("tile", n, axis, times, Copies::of_axis);
    else {  // the size of an `Axis` is ignored, as in Haliax
      check_free("tile", axis.name, fresh);
      fresh.push_back({axis.name, times});
    }
  }
  return wrap(arranged(n, concat_axes(fresh, visible(*n))));
}
NamedArray roll(Arr x, Arr shift, const AxisSelector& axis) {
  constexpr auto op = "roll";
  auto [here, n, a] = CallAlong(op, x, axis);
  if (a.size == 0) return wrap(n);
  if (shift.is_number()) {
    auto by = integer_of(*node_of(op, shift, DType::i64)) % a.size;
    if (by < 0) by += a.size;
    if (by == 0) return wrap(n);
    return wrap(prim::concat(
        {prim::slice(n, a.name, a.size - by, by), prim::slice(n, a.name, 0, a.size - by)}, a));
  }
  auto s = node_of(op, shift);
  if (!visible(*s).empty() || !is_integer(s->dtype))
    fail(op,
         fmt::format("shift: expected an integer scalar, got {} {}{}", s->dtype,
                     to_string(visible(*s)), is_integer(s->dtype) ? "" : integer_hint(s->dtype)));
  const auto d = prim::position_dtype(a.size),
             in = s->dtype == DType::u64 ? DType::u64 : DType::i64;
  auto by =
      prim::cast(prim::map(prim::kMod, {prim::cast(s, in), prim::integer(a.size, in)}, in), d);
  auto from = prim::rolled_ids(a, by);
  return wrap(prim::gather(n, {{a.name, from}}, with_hidden({from, n}, visible(*n)),
                           program::Outside::clamp));
}
NamedArray roll(Arr x, Arr shift, std::initializer_list<AxisSelector> axes) {
  NamedArray out = x;
  for (auto& a : axes) out = roll(Arr(out, x.at()), shift, a);
  return out;
}
NamedArray roll(Arr x, std::initializer_list<Arr> shifts,
                std::initializer_list<AxisSelector> axes) {
  auto [here, n] = Call("roll", x);
  if (shifts.size() != axes.size())
    fail("roll", fmt::format("{} shifts were given for {} axes", shifts.size(), axes.size()));
  NamedArray out = x;
  for (std::size_t i = 0; i < axes.size(); ++i)
    out = roll(Arr(out, x.at()), shifts.begin()[i], axes.begin()[i]);
  return out;
}
NamedArray flip(Arr x, const AxisSelector& axis) {
  auto [here, n, a] = CallAlong("flip", x, axis);
  return wrap(a.size < 2 ? n : prim::slice(n, a.name, a.size - 1, a.size, -1));
}

// ---- triangles and diagonals ----
NamedArray tril(Arr x, const AxisSelector& a, const AxisSelector& b, int k) {
  return triangle("tril", x, a, b, k, true);
}
NamedArray triu(Arr x, const AxisSelector& a, const AxisSelector& b, int k) {
  return triangle("triu", x, a, b, k, false);
}
NamedArray trace(Arr x, const AxisSelector& row_axis, const AxisSelector& column_axis, int offset,
                 std::optional<DType> dtype) {
  auto [here, n] = Call("trace", x);
  Diagonal diagonal("trace", "diagonal", n, row_axis, column_axis, offset);
  // Reads one column of each row. A negative id would count from the end.
  auto zero = prim::integer(0, diagonal.row->dtype),
       end = prim::integer(diagonal.columns.size, diagonal.row->dtype);
  auto ids = prim::select(prim::less(diagonal.row, zero), end, diagonal.row);
  auto picked = prim::gather(n, {{diagonal.columns.name, ids}},
                             without(n->axes, {diagonal.columns}), program::Outside::zero);
  auto values = make(kDiagonal, {picked, n, prim::equal(diagonal.row, diagonal.column)},
                     picked->axes, picked->dtype);
  return sum(wrap(values), diagonal.rows, {.where = {}, .dtype = dtype});
}

}  // namespace haliax
