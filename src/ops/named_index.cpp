// Indexing: reading and writing parts of an array by position.
#include <algorithm>
#include <cmath>

#include "base/dtype_hint.h"
#include "haliax/fmt.h"
#include "ops/attr.h"
#include "ops/bounds.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;
using prim::AxisIds;
using program::Outside;
using program::Update;

using IndexKind = Index::Kind;

// Negative positions count from the end.
std::int64_t from_start(std::int64_t i, const Axis& a) { return i < 0 ? i + a.size : i; }
// Returns a constant position, counted from the start; raises if it is out of range.
std::int64_t position_on(const char* op, const Axis& a, std::int64_t i) {
  if (i < -a.size || i >= a.size) fail(op, fmt::format("position {} is outside of axis {}", i, a));
  return from_start(i, a);
}
void check_integer(const char* op, NodeRef ids) {
  if (!is_integer(ids->dtype))
    fail(op, fmt::format("expected an integer index, got {}{}", ids->dtype,
                         ids->dtype == DType::boolean ? "; use where with a mask"
                                                      : integer_hint(ids->dtype)));
}
// Returns the value of a scalar constant, such as a number that was converted to a NamedArray.
std::optional<std::int64_t> constant_of(const char* op, NodeRef n) {
  if (!prim::is_number(n) || !visible(*n).empty()) return {};
  auto& number = *prim::stripped(n);
  if (!is_float(n->dtype)) return integer_of(number);
  auto v = real_of(number);
  if (v != std::floor(v) || std::abs(v) > 0x1p53) check_integer(op, n);
  return std::int64_t(v);
}
// Clamps to [0, most], in the dtype of positions up to `most`.
NodePtr clamped(NodeRef start, std::int64_t most) {
  auto d = prim::position_dtype(most);
  // A cast to a smaller dtype would truncate the value.
  if (bytes_of(start->dtype) > 4 || start->dtype == DType::u32) d = start->dtype;
  auto x = prim::cast(start, d);
  return prim::cast(prim::max(prim::integer(0, d), prim::min(x, prim::integer(most, d))),
                    prim::position_dtype(most));
}
// Returns the positions start, start + 1, ... of a window of the axis, moved so that the window
// fits. Axes: (the axes of `start`, window).
NodePtr clamped_window(NodeRef start, const Axis& full, const Axis& window) {
  auto first = clamped(start, full.size - window.size);
  return prim::add(first, prim::iota(window, first->dtype));
}
// Returns the positions start, start + 1, ... of a dynamic slice, which may be out of range. Axes:
// (the axes of `start`, window).
NodePtr unclamped_window(NodeRef start, const Axis& full, const Axis& window) {
  const auto least = -(full.size + window.size), most = full.size;
  const auto d = prim::position_dtype(-least);
  auto x = start;
  // Limits the start so that the sum does not overflow. A position beyond the limits stays out of
  // range. The limits themselves must fit in the dtype.
  if (x->dtype == DType::u64) x = prim::min(x, prim::integer(most, DType::u64));
  const bool wide = bytes_of(x->dtype) == 8 || x->dtype == DType::u32;
  x = prim::cast(x, wide ? DType::i64 : d);
  x = prim::max(prim::integer(least, x->dtype), prim::min(x, prim::integer(most, x->dtype)));
  return prim::add(prim::cast(x, d), prim::iota(window, d));
}
void check_length(const char* op, const Axis& a, std::int64_t length) {
  if (length < 0 || length > a.size)
    fail(op, fmt::format("a slice of length {} does not fit axis {}", length, a));
}
void check_start(const char* op, NodeRef start) {
  if (!constant_of(op, start)) check_integer(op, start);
  if (auto axes = visible(*start); !axes.empty())
    fail(op, "the start of a slice must be a scalar, got an array with axes " + to_string(axes));
}
NodePtr window_of(NodeRef x, const Axis& a, NodeRef start, std::int64_t length) {
  if (start->axes.empty()) {
    bool as_is =
        start->dtype == DType::i32 || start->dtype == DType::i64 || start->dtype == DType::u32;
    if (start->dtype == DType::u64)
      return prim::slice(x, a.name, 0, length, 1, false, clamped(start, a.size - length));
    return prim::slice(x, a.name, 0, length, 1, false,
                       as_is ? start : prim::cast(start, DType::i32));
  }
  auto window = a.resize(length);
  auto out = with_hidden({start, x}, replaced(visible(*x), a.name, {window}));
  return prim::gather(x, {{a.name, clamped_window(start, a, window)}}, out, Outside::clamp);
}

}  // namespace

NamedArray take(Arr x, const AxisSelector& axis, Arr index) {
  constexpr auto op = "take";
  auto [here, n, a] = CallAlong(op, x, axis);
  if (index.is_number()) {
    auto i = position_on(op, a, integer_of(*node_of(op, index, DType::i64)));
    return wrap(prim::at_position(n, a.name, i));
  }
  auto ids = node_of(op, index);
  check_integer(op, ids);
  auto own = visible(*ids), rest = without(visible(*n), {a});
  check_sizes(op, own, rest);
  // If the index shares axes with the array, the result has the new axes of the index, then the
  // axes of the array.
  bool shared = !common(own, rest).empty();
  auto shown = shared ? joined(without(own, rest), rest) : replaced(visible(*n), a.name, own);
  return constrained(
      "take", wrap(prim::gather(n, {{a.name, ids}}, with_hidden({ids, n}, shown), Outside::fill)));
}

NamedArray slice(Arr x, const AxisSelector& axis, Arr start, std::int64_t length,
                 std::optional<Name> new_axis) {
  constexpr auto op = "slice";
  auto [here, n, a] = CallAlong(op, x, axis);
  check_length(op, a, length);
  auto s = node_of(op, start);
  if (auto at = constant_of(op, s)) {
    auto from = from_start(*at, a);
    if (from < 0 || from + length > a.size)
      fail(op, fmt::format("a slice of length {} from {} does not fit axis {}", length, *at, a));
    n = prim::slice(n, a.name, from, length);
  } else {
    check_start(op, s);
    n = window_of(n, a, s, length);
  }
  return wrap(renamed(op, n, a, new_axis.value_or(a.name)));
}
NamedArray at(Arr x, const AxisSelector& axis, Arr position) {
  auto [here, n, a] = CallAlong("at", x, axis);
  if (!position.is_number()) return index(x, {{a.name, Index(position.array())}});
  return index(
      x, {{a.name, Index(position_on("at", a, integer_of(*node_of("at", position, DType::i64))))}});
}
NamedArray slice(Arr x, const std::vector<std::pair<AxisSelector, Arr>>& start,
                 const std::vector<std::pair<AxisSelector, SliceLength>>& length) {
  constexpr auto op = "slice";
  auto [here, n] = Call(op, x);
  auto of = [](auto& list, Name a) {
    return std::find_if(list.begin(), list.end(), [&](auto& p) { return p.first.name == a; });
  };
  auto axes = n->axes;
  auto out = wrap(n);
  for (auto& [axis, size] : length)
    if (of(start, axis.name) == start.end())
      fail(op, "axis " + text(axis.name) + " has a length, but no start");
  Names sliced, names;  // all axes are renamed at once, so that two of them can swap names
  for (auto& [axis, from] : start) {
    auto a = axis_of(op, axes, axis);
    auto size = of(length, a.name);
    if (size == length.end()) fail(op, "axis " + text(a.name) + " has a start, but no length");
    if (std::count_if(start.begin(), start.end(), [&](auto& p) { return p.first.name == a.name; }) >
        1)
      fail(op, "axis " + text(a.name) + " has two starts");
    out = slice(Arr(out, x.at()), a, from, size->second.size);
    sliced.push_back(a.name);
    names.push_back(size->second.name.value_or(a.name));
  }
  auto fresh = visible(*out.node());
  for (auto& a : fresh)
    for (std::size_t i = 0; i < sliced.size(); ++i)
      if (a.name == sliced[i]) {
        a.name = names[i];
        break;
      }
  check_unique(op, fresh);
  return wrap(prim::rename(out.node(), sliced, names));
}
DSlice ds(Arr start, std::int64_t length) {
  if (length < 0) {
    CallSite here(start.at());
    fail("ds", fmt::format("the length is {}; it must not be negative", length));
  }
  return {start, length};
}
DSlice ds(Arr start, const AxisSelector& length) {
  if (length.size < 0) {
    CallSite here(start.at());
    fail("ds", "the length of axis " + text(length.name) + " is unknown; pass an Axis or a number");
  }
  return {start, length.size};
}
DSlice dblock(Arr i, std::int64_t n) {
  if (i.is_number()) return ds(Arr(i.integer() * n, i.at()), n);
  return ds(Arr(multiply(i, Arr(n, i.at())), i.at()), n);
}
DSlice DSlice::block(Arr i, std::int64_t n, SourceLocation) { return dblock(i, n); }

// ---- index: the rules of NumPy, by name ----
namespace {

struct Range {
  std::int64_t start = 0, size = 0, step = 1;
};
// Evaluates start:stop:step as Python does for a sequence.
Range range_of(const char* op, const Axis& a, const Slice& s) {
  if (s.step == 0) fail(op, fmt::format("the step of a slice of axis {} is 0", a));
  std::int64_t least = s.step > 0 ? 0 : -1, most = s.step > 0 ? a.size : a.size - 1;
  auto limit = [&](std::int64_t i) {
    if (i < -a.size || i > a.size)
      fail(op, fmt::format(
                   "a slice from or to {} is outside of axis {}; omit a bound to slice to the end",
                   i, a));
    return std::clamp(from_start(i, a), least, most);
  };
  auto start = s.start      ? limit(*s.start)
               : s.step > 0 ? least
                            : most,
       stop = s.stop       ? limit(*s.stop)
              : s.step > 0 ? most
                           : least;
  auto span = s.step > 0 ? stop - start : start - stop, step = std::abs(s.step);
  auto size = span > 0 ? (span - 1) / step + 1 : 0;
  return {size ? start : 0, size, size ? s.step : 1};
}
// The index of one axis of the array.
struct AxisIndex {
  Axis axis;
  const Index* index = nullptr;  // null: the full axis
  Range range = {};              // for a range or a position
  NodePtr ids = {};              // positions of an array or a window
  NodePtr start = {};            // start of a window
  Axes replacement =
      {};               // axes that replace `axis`: for an array its own axes, for a position none
  bool paired = false;  // an axis that remains, and that an index array has as well
  bool is(IndexKind kind) const { return index && index->kind == kind; }
  bool has_ids() const { return is(IndexKind::array) || is(IndexKind::window); }
  bool picked() const { return paired || (index && index->kind != IndexKind::range); }
};
// Sets the index of one axis.
void set_index(const char* op, AxisIndex& p, const Index& index) {
  const Axis& a = p.axis;
  p.index = &index;
  switch (index.kind) {
    case IndexKind::position:
      p.range = {position_on(op, a, index.position), 1, 1};
      p.replacement = {};
      break;
    case IndexKind::range:
      p.range = range_of(op, a, index.range);
      p.replacement = {a.resize(p.range.size)};
      break;
    case IndexKind::window:
      p.start = node_of(op, index.array);
      check_start(op, p.start);
      if (auto at = constant_of(op, p.start))
        p.start = prim::integer(*at, prim::position_dtype(std::abs(*at)));
      p.replacement = {a.resize(index.length)};
      p.ids = unclamped_window(p.start, a, p.replacement[0]);
      break;
    case IndexKind::array:
      p.ids = node_of(op, index.array);
      check_integer(op, p.ids);
      if (index.keeps_axis) p.ids = prim::rename(p.ids, {visible(*p.ids)[0].name}, {a.name});
      p.replacement = visible(*p.ids);
  }
}
// Returns one entry per axis of the array, in its order.
std::vector<AxisIndex> parts_of(const char* op, NodeRef x, const Indices& indices) {
  std::vector<AxisIndex> parts;
  for (auto& a : visible(*x)) parts.push_back({.axis = a, .replacement = {a}});
  for (auto& [name, index] : indices) {
    auto a = axis_of(op, x, name);
    auto& p = *std::find_if(parts.begin(), parts.end(), [&](auto& of) { return of.axis == a; });
    if (p.index) fail(op, "axis " + text(a.name) + " is indexed twice");
    set_index(op, p, index);
  }
  // An axis that remains and that an index array also has: a batched gather.
  for (auto& p : parts)
    if (!p.picked())
      for (auto& q : parts)
        if (q.is(IndexKind::array) && has(q.replacement, p.axis.name)) {
          check_sizes(op, q.replacement, p.replacement);
          p.paired = true;
        }
  return parts;
}
bool any_window(const std::vector<AxisIndex>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](auto& p) { return p.is(IndexKind::window); });
}
// Returns true if all positions of the window are known to be in range.
bool fits(const AxisIndex& p) {
  auto bounds = bounds_of(p.start);
  return bounds && bounds->low >= 0 && bounds->high <= p.axis.size - p.index->length;
}
// Returns the axes of the group of indices: arrays, windows (which Haliax treats as arrays of
// positions), positions and paired axes. The axes of the largest index come last, after axes that
// only the others have. Among indices of equal size, the one given first counts as the larger.
// Paired axes count as given last.
Axes group_axes(const char* op, const std::vector<AxisIndex>& parts) {
  std::vector<const AxisIndex*> group;
  for (auto& p : parts)
    if (p.picked()) group.push_back(&p);
  std::stable_sort(group.begin(), group.end(), [](auto* a, auto* b) {
    return std::pair(a->paired, a->paired ? nullptr : a->index) <
           std::pair(b->paired, b->paired ? nullptr : b->index);
  });
  std::stable_sort(group.begin(), group.end(), [](auto* a, auto* b) {
    return axis_size(a->replacement) > axis_size(b->replacement);
  });
  Axes out;
  for (auto* p : group) {
    check_sizes(op, p->replacement, out);
    out = joined(without(p->replacement, out), out);
  }
  return out;
}
// Returns the axes of the indexed part. If the indices of the group index neighboring axes, the
// axes of the group are at the place of the first one, otherwise they come first. For example, for
// an index over i, (a, b, c) indexed along b is (a, i, c), and indexed along a and c it is (i, b).
Axes picked_axes(const char* op, const std::vector<AxisIndex>& parts) {
  auto picked = [](const AxisIndex& p) { return p.picked(); };
  const Axes group = group_axes(op, parts);
  auto first = std::find_if(parts.begin(), parts.end(), picked),
       after = std::find_if_not(first, parts.end(), picked);
  if (std::any_of(after, parts.end(), picked)) first = parts.begin();
  Axes shown;
  auto add = [&](const Axes& more) { shown.insert(shown.end(), more.begin(), more.end()); };
  for (auto p = parts.begin(); p != parts.end(); ++p) {
    if (p == first) add(group);
    if (!p->picked()) add(p->replacement);
  }
  check_unique(op, shown);
  return shown;
}
// Returns x after all indices but arrays and the windows of `picks`: they are views.
NodePtr sliced(NodeRef x, const std::vector<AxisIndex>& parts, const std::vector<AxisIds>& picks) {
  auto n = x;
  for (auto& p : parts) {
    if (p.is(IndexKind::position) || p.is(IndexKind::range))
      n = prim::slice(n, p.axis.name, p.range.start, p.range.size, p.range.step,
                      p.is(IndexKind::position));
    auto by_ids = [&](auto& w) { return w.axis == p.axis.name; };
    if (p.is(IndexKind::window) && std::none_of(picks.begin(), picks.end(), by_ids)) {
      auto at = constant_of("index", p.start);
      n = at ? prim::slice(n, p.axis.name, *at, p.index->length)
             : window_of(n, p.axis, p.start, p.index->length);
    }
  }
  return n;
}
NamedArray gathered(NodeRef n, const std::vector<AxisIds>& picks, const Axes& shown,
                    Outside outside) {
  if (picks.empty()) return wrap(prim::fit(n, with_hidden({n}, shown)));
  Nodes all{n};
  for (auto& w : picks) all.push_back(w.ids);
  return wrap(prim::gather(n, picks, with_hidden(all, shown), outside));
}
// Returns true elements where all ids are in range.
NodePtr in_range(const std::vector<AxisIds>& picks, const Axes& table) {
  NodePtr all;
  for (auto& [axis, ids] : picks) {
    auto size = find_axis(table, axis)->size;
    auto at = prim::signed_ids(ids, size);
    auto one = prim::both(prim::less_equal(prim::integer(0, at->dtype), at),
                          prim::less(at, prim::integer(size, at->dtype)));
    all = all ? prim::both(all, one) : one;
  }
  return all;
}
// Returns the ids of all indexed axes, as a scatter needs them. Index arrays come first, so their
// axes are the first dims of the scatter.
std::vector<AxisIds> all_ids(const std::vector<AxisIndex>& parts) {
  std::vector<AxisIds> picks;
  for (auto& p : parts)
    if (p.is(IndexKind::array)) picks.push_back({p.axis.name, p.ids});
  for (auto& p : parts) {
    if (!p.index || p.is(IndexKind::array)) continue;
    const auto d = prim::position_dtype(p.axis.size);
    auto number = [&](std::int64_t v) { return prim::integer(v, d); };
    auto ids = p.is(IndexKind::window) ? p.ids
               : p.is(IndexKind::position)
                   ? number(p.range.start)
                   : prim::add(prim::mul(prim::iota(p.replacement[0], d), number(p.range.step)),
                               number(p.range.start));
    picks.push_back({p.axis.name, ids});
  }
  return picks;
}

NamedArray updated_part(const char* op, Arr x, const Indices& indices, Arr update, Update how,
                        IndexMode mode) {
  auto [here, n] = Call(op, x);
  auto u = node_of(op, update, n->dtype);
  if (!update.is_number() && is_float(update.dtype()) && !is_float(n->dtype))
    fail(op, fmt::format("cannot update an array of {1} with {0}; use astype", update.dtype(),
                         n->dtype));
  auto parts = parts_of(op, n, indices);
  auto picks = all_ids(parts);
  auto shown = picked_axes(op, parts), given = visible(*u);
  check_sizes(op, given, shown);
  for (auto& a : without(given, shown))
    fail(op, fmt::format("axis {} of the update is not in the part {}{}", a.name, to_string(shown),
                         did_you_mean(a.name, shown)));
  Nodes all{n, u};
  for (auto& w : picks) all.push_back(w.ids);
  auto base = prim::fit(n, with_hidden(all, visible(*n)));
  u = prim::fit(u, with_hidden(all, shown));
  bool may_repeat = std::any_of(parts.begin(), parts.end(), [](auto& p) {
    return p.is(IndexKind::array) || (p.is(IndexKind::window) && !fits(p));
  });
  // Each position occurs once, so the update is a function of the part.
  if (!may_repeat && how != Update::set && how != Update::add) {
    auto part = index(x, indices).node();
    u = how == Update::mul   ? prim::mul(part, u)
        : how == Update::min ? prim::min(part, u)
                             : prim::max(part, u);
    how = Update::set;
  }
  return wrap(prim::scatter(base, u, picks, how, mode == IndexMode::clip));
}
// Returns ones with `update` multiplied into the part: the divisor or the exponent of each element.
NamedArray spread_update(const char* op, const Arr& x, const Indices& indices, const Arr& update,
                         IndexMode mode, DType dtype) {
  auto ones = full_like(x, Arr(1, x.at()), dtype);
  return updated_part(op, Arr(ones, x.at()), indices, update, Update::mul, mode);
}

}  // namespace

NamedArray index(Arr x, const Indices& indices) {
  constexpr auto op = "index";
  auto [here, n] = Call(op, x);
  auto parts = parts_of(op, n, indices);
  auto shown = picked_axes(op, parts);
  std::vector<AxisIds> picks;
  for (auto& p : parts)
    if (p.is(IndexKind::array) || (p.is(IndexKind::window) && !fits(p)))
      picks.push_back({p.axis.name, p.ids});
  auto outside = any_window(parts) ? Outside::zero : Outside::clamp;
  n = sliced(n, parts, picks);
  // The index of a loop is never out of range, so its row is a view.
  if (picks.size() == 1 && picks[0].ids->op == &prim::kIndex && outside == Outside::clamp) {
    n = prim::slice(n, picks[0].axis, 0, 1, 1, true, picks[0].ids);
    picks.clear();
  }
  return gathered(n, picks, shown, outside);
}
Index::Index(const std::vector<int>& list)
    : kind(Kind::array), array(haliax::array(list, Axis("(positions)", std::int64_t(list.size())))),
      keeps_axis(true) {}
Index::Index(const std::vector<std::int64_t>& list)
    : kind(Kind::array), array(haliax::array(list, Axis("(positions)", std::int64_t(list.size())))),
      keeps_axis(true) {}
SliceLength::SliceLength(const Axis& axis) : size(axis.size), name(axis.name) {}

NamedArray at_get(Arr x, const Indices& indices, IndexMode mode) {
  return at_get(std::move(x), indices, mode, std::nullopt);
}
NamedArray at_get(Arr x, const Indices& indices, IndexMode mode, std::optional<Arr> fill_value) {
  constexpr auto op = "at_get";
  auto [here, n] = Call(op, x);
  auto parts = parts_of(op, n, indices);
  auto shown = picked_axes(op, parts);
  std::vector<AxisIds> picks;
  for (auto& p : parts)
    if (p.has_ids()) picks.push_back({p.axis.name, p.ids});
  const bool fills = mode == IndexMode::fill || mode == IndexMode::drop;
  const auto table = visible(*n);
  n = sliced(n, parts, picks);
  if (!fills || picks.empty()) return gathered(n, picks, shown, Outside::clamp);
  if (!fill_value) return gathered(n, picks, shown, Outside::fill);
  auto fill = node_of(op, *fill_value, n->dtype);
  if (!visible(*fill).empty())
    fail(op, "fill_value: expected a scalar, got an array with axes " + to_string(visible(*fill)));
  auto zero = gathered(n, picks, shown, Outside::zero).node();
  if (prim::is_number(fill, 0)) return wrap(zero);
  auto inside = in_range(picks, table);
  return wrap(prim::select(inside, zero, fill, with_hidden({zero, inside, fill}, shown)));
}
NamedArray at_set(Arr x, const Indices& i, Arr update, IndexMode mode) {
  return updated_part("at_set", x, i, update, Update::set, mode);
}
NamedArray at_add(Arr x, const Indices& i, Arr update, IndexMode mode) {
  return updated_part("at_add", x, i, update, Update::add, mode);
}
NamedArray at_mul(Arr x, const Indices& i, Arr update, IndexMode mode) {
  return updated_part("at_mul", x, i, update, Update::mul, mode);
}
NamedArray at_divide(Arr x, const Indices& i, Arr update, IndexMode mode) {
  constexpr auto op = "at_divide";
  auto [here, n] = Call(op, x);
  auto divisor = spread_update(op, x, i, update, mode, float_of(n->dtype));
  return divide(x, Arr(divisor, x.at()));
}
NamedArray at_power(Arr x, const Indices& i, Arr update, IndexMode mode) {
  constexpr auto op = "at_power";
  auto [here, n] = Call(op, x);
  auto exponent = spread_update(op, x, i, update, mode, no_bool(n->dtype));
  return power(x, Arr(exponent, x.at()));
}
NamedArray at_min(Arr x, const Indices& i, Arr update, IndexMode mode) {
  return updated_part("at_min", x, i, update, Update::min, mode);
}
NamedArray at_max(Arr x, const Indices& i, Arr update, IndexMode mode) {
  return updated_part("at_max", x, i, update, Update::max, mode);
}

namespace {
// Returns the ids of the positions that an update overwrites along an axis.
AxisIds updated_ids(const char* op, NodePtr start, const Axis& a, const Axis& window,
                    const Axes& full) {
  if (window.size > a.size)
    fail(op, fmt::format("the update has {}, more than the array's {}", window, a));
  if (auto at = constant_of(op, start)) {
    auto from = from_start(*at, a);
    if (from < 0 || from + window.size > a.size)
      fail(op, fmt::format("an update of {} from {} does not fit axis {}", window, *at, a));
    start = prim::integer(from, prim::position_dtype(a.size));
  } else {
    check_integer(op, start);
  }
  for (auto& v : without(visible(*start), without(full, {a})))
    fail(op, fmt::format("axis {} of the start is not among the other axes of the array {}", v.name,
                         to_string(full)));
  check_sizes(op, visible(*start), full);
  return {a.name, clamped_window(start, a, window)};
}
}  // namespace

// A start may have axes of the array. Then each position along them has its own start, as in a
// cache of ragged sequences.
NamedArray updated_slice(Arr x, const std::vector<std::pair<AxisSelector, NamedArray>>& start,
                         Arr update) {
  constexpr auto op = "updated_slice";
  auto [here, n] = Call(op, x);
  auto u = node_of(op, update, n->dtype);
  auto full = visible(*n), given = visible(*u);
  std::vector<AxisIds> picks;
  Axes part = full;  // axes of the update after broadcasting
  Nodes all{n, u};
  for (auto& [name, value] : start) {
    auto a = axis_of(op, n, name);
    for (auto& w : picks)
      if (w.axis == a.name) fail(op, "axis " + text(a.name) + " has two starts");
    auto* mine = find_axis(given, a.name);
    const Axis window = a.resize(mine ? mine->size : 1);
    picks.push_back(updated_ids(op, node_of(op, value), a, window, full));
    part = replaced(part, a.name, {window});
    all.push_back(picks.back().ids);
  }
  for (auto& a : without(given, part))
    fail(op, fmt::format("axis {} of the update is not in the array {}{}", a.name, to_string(full),
                         did_you_mean(a.name, full)));
  check_sizes(op, given, part);
  auto base = prim::fit(n, with_hidden(all, full));
  return wrap(prim::scatter(base, prim::fit(u, with_hidden(all, part)), picks, Update::set));
}

}  // namespace haliax
