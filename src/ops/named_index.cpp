// Picking by position and placing there; running sums; order along an axis.
#include <algorithm>
#include <cmath>

#include "ops/attr.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;
using program::Outside;
using program::Update;
using G = const NodePtr&;

NamedArray wrap(NodePtr n) { return NamedArray(std::move(n)); }

// A number given as a position: counted from the end if negative; raises outside of the axis.
std::int64_t position_on(const char* op, const Axis& a, std::int64_t i) {
  if (i < -a.size || i >= a.size) fail(op, "position " + std::to_string(i) + " is outside of axis " + to_string(a));
  return i < 0 ? i + a.size : i;
}
void check_integer(const char* op, G ids) {
  if (!is_integer(ids->dtype))
    fail(op, "an index is an integer, not " + text(ids->dtype) + (ids->dtype == DType::boolean ? "; use where with a mask" : ""));
}
// A scalar that is known now, e.g. from a number given as a NamedArray.
std::optional<std::int64_t> known(const char* op, G n) {
  if (!prim::is_number(n) || !visible(*n).empty()) return {};
  auto& number = n->op == &prim::kNumber ? n : n->in[0];
  if (!is_float(n->dtype)) return integer_of(*number);
  auto v = number->attr.number;
  if (v != std::floor(v) || std::abs(v) > 0x1p53) check_integer(op, n);
  return std::int64_t(v);
}
NodePtr clamped(G start, std::int64_t most) {
  auto i = prim::cast(start, DType::i32);
  return prim::max(prim::integer(0, DType::i32), prim::min(i, prim::integer(most, DType::i32)));
}
// Positions start, start + 1, ... of a window of the axis that fits in it.   (the start's axes, window)
NodePtr window_ids(G start, const Axis& whole, const Axis& window) {
  return prim::add(clamped(start, whole.size - window.size), prim::iota(window));
}
void check_length(const char* op, const Axis& a, std::int64_t length) {
  if (length < 0 || length > a.size)
    fail(op, "a slice of length " + std::to_string(length) + " does not fit axis " + to_string(a));
}
void check_start(const char* op, G start) {
  if (!known(op, start)) check_integer(op, start);
  if (!visible(*start).empty())
    fail(op, "the start of a slice is a number or a 0-d array, not one with axes " + to_string(visible(*start)));
}
NodePtr window_of(const char* op, G x, const Axis& a, G start, std::int64_t length) {
  check_start(op, start);
  if (start->axes.empty()) {
    bool as_is = start->dtype == DType::i32 || start->dtype == DType::i64 || start->dtype == DType::u32;
    return prim::slice(x, a.name, 0, length, 1, false, as_is ? start : prim::cast(start, DType::i32));
  }
  Axes shown;
  for (auto& v : visible(*x)) shown.push_back(v.name == a.name ? a.resize(length) : v);
  return prim::gather(x, {{a.name, window_ids(start, a, a.resize(length))}}, with_hidden({start, x}, shown), Outside::clamp);
}
NodePtr renamed(const char* op, G x, const Axis& a, Name name) {
  if (!name || name == a.name) return x;
  check_free(op, name, x->axes);
  return prim::rename(x, {a.name}, {name});
}

}  // namespace

NamedArray take(Arr x, const AxisSelector& axis, Arr index) {
  Here here(x.at());
  constexpr auto op = "take";
  auto n = node_of(op, x);
  auto a = axis_of(op, n, axis);
  if (index.is_number()) {
    auto i = position_on(op, a, integer_of(*node_of(op, index, DType::i64)));
    return wrap(prim::slice(n, a.name, i, 1, 1, true));
  }
  auto ids = node_of(op, index);
  check_integer(op, ids);
  Axes rest, own = visible(*ids), shown;
  for (auto& v : visible(*n)) if (v.name != a.name) rest.push_back(v);
  check_sizes(op, own, rest);
  bool shared = std::any_of(own.begin(), own.end(), [&](auto& v) { return has(rest, v.name); });
  if (shared) {   // what the index adds, then the array's own
    for (auto& v : own) if (!has(rest, v.name)) shown.push_back(v);
    shown.insert(shown.end(), rest.begin(), rest.end());
  } else {
    for (auto& v : visible(*n))
      if (v.name == a.name) shown.insert(shown.end(), own.begin(), own.end());
      else shown.push_back(v);
  }
  return constrained("take", wrap(prim::gather(n, {{a.name, ids}}, with_hidden({ids, n}, shown), Outside::fill)));
}

NamedArray slice(Arr x, const AxisSelector& axis, Arr start, std::int64_t length, std::optional<Name> new_axis) {
  Here here(x.at());
  constexpr auto op = "slice";
  auto n = node_of(op, x);
  auto a = axis_of(op, n, axis);
  check_length(op, a, length);
  auto s = node_of(op, start);
  if (auto at = known(op, s)) {
    auto from = *at < 0 ? *at + a.size : *at;
    if (from < 0 || from + length > a.size)
      fail(op,
           "a slice of length " + std::to_string(length) + " from " + std::to_string(*at) + " does not fit axis " + to_string(a));
    n = prim::slice(n, a.name, from, length);
  } else {
    n = window_of(op, n, a, s, length);
  }
  return wrap(renamed(op, n, a, new_axis.value_or(a.name)));
}
NamedArray at(Arr x, const AxisSelector& axis, Arr position) {
  Here here(x.at());
  auto n = node_of("at", x);
  auto a = axis_of("at", n, axis);
  if (position.is_number())
    return index(x, {{a.name, Index(position_on("at", a, integer_of(*node_of("at", position, DType::i64))))}});
  return index(x, {{a.name, Index(position.array())}});
}
DSlice ds(Arr start, const AxisSelector& length) {
  if (length.size < 0) fail("ds", "the length of axis " + text(length.name) + " is not known here; give an Axis");
  return {start, length.size, length.name};
}

// ---- index: numpy's rules, by name ----
namespace {

// What an index asks of one axis of the array, in the order of the array's axes.
struct Part {
  Axis axis;
  const Index* index = nullptr;   // null: all of it
};
std::vector<Part> parts_of(const char* op, G x, const Indices& indices) {
  std::vector<Part> parts;
  for (auto& a : visible(*x)) parts.push_back({a, nullptr});
  for (auto& [name, index] : indices) {
    auto a = axis_of(op, x, name);
    for (auto& p : parts) {
      if (p.axis.name != a.name) continue;
      if (p.index) fail(op, "axis " + text(a.name) + " is indexed twice");
      p.index = &index;
    }
  }
  return parts;
}
struct Range { std::int64_t start, size, step; };
// As Python reads start:stop:step of a sequence.
Range range_of(const char* op, const Axis& a, const Slice& s) {
  if (s.step == 0) fail(op, "the step of a slice of axis " + to_string(a) + " is 0");
  std::int64_t least = s.step > 0 ? 0 : -1, most = s.step > 0 ? a.size : a.size - 1;
  auto limit = [&](std::int64_t i) {
    if (i < -a.size || i > a.size)
      fail(op, "a slice from or to " + std::to_string(i) + " is outside of axis " + to_string(a) +
                   "; leave a bound out to go to the end");
    return std::clamp(i < 0 ? i + a.size : i, least, most);
  };
  auto start = s.start ? limit(*s.start) : s.step > 0 ? least : most, stop = s.stop ? limit(*s.stop) : s.step > 0 ? most : least;
  auto span = s.step > 0 ? stop - start : start - stop, step = std::abs(s.step);
  auto size = span > 0 ? (span - 1) / step + 1 : 0;
  return {size ? start : 0, size, size ? s.step : 1};
}
// The axes of several index arrays together: those of the largest, after what the others add.
Axes together(const char* op, std::vector<Axes> all) {
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return axis_size(a) > axis_size(b); });
  Axes out;
  for (auto& axes : all) {
    check_sizes(op, axes, out);
    Axes fresh;
    for (auto& a : axes) if (!has(out, a.name)) fresh.push_back(a);
    out.insert(out.begin(), fresh.begin(), fresh.end());
  }
  return out;
}
// What an index leaves of its axis: an array its own axes, a position none.
Axes left_of(const char* op, const Part& p) {
  if (!p.index) return {p.axis};
  switch (p.index->kind) {
    case Index::Kind::position: return {};
    case Index::Kind::range: return {p.axis.resize(range_of(op, p.axis, p.index->range).size)};
    case Index::Kind::window: return {Axis(p.index->name ? p.index->name : p.axis.name, p.index->length)};
    default: return visible(*node_of(op, p.index->array));
  }
}
// The axes of the picked part. Arrays, windows (to Haliax arrays of their own positions) and positions belong together: their
// axes come where the first of them is if they are neighbours, else first.
Axes picked_axes(const char* op, G x, const std::vector<Part>& parts) {
  auto picked = [](const Part& p) { return p.index && p.index->kind != Index::Kind::range; };
  std::vector<const Part*> indexed;
  Axes own, kept;   // axes of index arrays; all others
  for (auto& p : parts) {
    bool is_array = p.index && p.index->kind == Index::Kind::array;
    for (auto& a : left_of(op, p)) (is_array ? own : kept).push_back(a);
    if (picked(p)) indexed.push_back(&p);
  }
  for (auto& a : own)
    if (has(kept, a.name))
      fail(op, "axis " + text(a.name) + " of the index is also one that the array keeps: " + to_string(visible(*x)) +
                   "; use take to pair them");
  check_unique(op, kept);
  // As they were given: of two of one size the first counts as the larger.
  std::sort(indexed.begin(), indexed.end(), [](auto* a, auto* b) { return a->index < b->index; });
  std::vector<Axes> axes;
  for (auto* p : indexed) axes.push_back(left_of(op, *p));
  auto first = std::find_if(parts.begin(), parts.end(), picked), rest = std::find_if_not(first, parts.end(), picked);
  if (std::any_of(rest, parts.end(), picked)) first = parts.begin();
  Axes shown;
  auto show = [&](const Axes& more) { shown.insert(shown.end(), more.begin(), more.end()); };
  for (auto p = parts.begin(); p != parts.end(); ++p) {
    if (p == first) show(together(op, axes));
    if (!picked(*p)) show(left_of(op, *p));
  }
  return shown;
}

// An index, resolved: which axes are gathered, and what the picked part looks like.
struct Selection {
  prim::Where where;   // ids of the axes that have them
  Axes shown;          // of the part
};
// With `all_ids` every indexed axis is given ids (for a scatter); else only arrays are, the rest is for slices.
Selection select(const char* op, G x, const std::vector<Part>& parts, bool all_ids) {
  Selection s;
  for (auto& p : parts) {
    if (!p.index || p.index->kind != Index::Kind::array) continue;
    auto ids = node_of(op, p.index->array);
    check_integer(op, ids);
    s.where.push_back({p.axis.name, ids});
  }
  for (auto& p : parts) {
    if (!p.index) continue;
    auto& a = p.axis;
    auto with_ids = [&](NodePtr ids) { if (all_ids) s.where.push_back({a.name, std::move(ids)}); };
    if (p.index->kind == Index::Kind::range) {
      auto r = range_of(op, a, p.index->range);
      with_ids(prim::add(prim::mul(prim::iota(a.resize(r.size)), prim::integer(r.step, DType::i32)),
                         prim::integer(r.start, DType::i32)));
    } else if (p.index->kind == Index::Kind::window) {
      auto start = node_of(op, p.index->array);
      check_length(op, a, p.index->length);
      check_start(op, start);
      with_ids(window_ids(start, a, left_of(op, p)[0]));
    } else if (p.index->kind == Index::Kind::position) {
      with_ids(prim::integer(position_on(op, a, p.index->position), DType::i32));
    }
  }
  s.shown = picked_axes(op, x, parts);
  return s;
}

NamedArray placed(const char* op, Arr x, const Indices& indices, Arr update, Update how) {
  Here here(x.at());
  auto n = node_of(op, x), u = node_of(op, update, n->dtype);
  if (!update.is_number() && is_float(update.dtype()) && !is_float(n->dtype))
    fail(op, "an update of " + text(update.dtype()) + " does not go into an array of " + text(n->dtype) + "; use astype");
  auto s = select(op, n, parts_of(op, n, indices), true);
  auto given = visible(*u);
  check_sizes(op, given, s.shown);
  for (auto& a : given)
    if (!has(s.shown, a.name))
      fail(op,
           "axis " + text(a.name) + " of the update is not in the part " + to_string(s.shown) + did_you_mean(a.name, s.shown));
  Nodes all{n, u};
  for (auto& w : s.where) all.push_back(w.second);
  auto base = prim::fit(n, with_hidden(all, visible(*n)));
  u = prim::fit(u, with_hidden(all, s.shown));
  bool may_repeat = std::any_of(indices.begin(), indices.end(), [](auto& i) { return i.second.kind == Index::Kind::array; });
  if (!may_repeat && how != Update::set && how != Update::add) {   // each place is met once: this way it has a gradient
    auto part = index(x, indices).node();
    u = how == Update::mul ? prim::mul(part, u) : how == Update::min ? prim::min(part, u) : prim::max(part, u);
    how = Update::set;
  }
  return wrap(prim::scatter(base, u, s.where, how, false));
}

}  // namespace

NamedArray index(Arr x, const Indices& indices) {
  Here here(x.at());
  constexpr auto op = "index";
  auto n = node_of(op, x);
  auto parts = parts_of(op, n, indices);
  auto s = select(op, n, parts, false);
  for (auto& p : parts) {   // what needs no ids first: these are views
    if (!p.index) continue;
    auto& i = *p.index;
    if (i.kind == Index::Kind::position) {
      n = prim::slice(n, p.axis.name, position_on(op, p.axis, i.position), 1, 1, true);
    } else if (i.kind == Index::Kind::range) {
      auto r = range_of(op, p.axis, i.range);
      n = prim::slice(n, p.axis.name, r.start, r.size, r.step);
    } else if (i.kind == Index::Kind::window) {
      auto start = node_of(op, i.array);
      if (auto at = known(op, start)) {
        auto from = std::clamp<std::int64_t>(*at < 0 ? *at + p.axis.size : *at, 0, p.axis.size - i.length);
        n = prim::slice(n, p.axis.name, from, i.length);
      } else {
        n = window_of(op, n, p.axis, start, i.length);
      }
      n = renamed(op, n, p.axis, i.name);
    }
  }
  // A loop's own index is never out of range: its row is a view.
  if (s.where.size() == 1 && s.where[0].second->op == &prim::kIndex) {
    n = prim::slice(n, s.where[0].first, 0, 1, 1, true, s.where[0].second);
    s.where.clear();
  }
  if (s.where.empty()) return wrap(prim::fit(n, with_hidden({n}, s.shown)));
  Nodes all{n};
  for (auto& w : s.where) all.push_back(w.second);
  return wrap(prim::gather(n, s.where, with_hidden(all, s.shown), Outside::clamp));
}
NamedArray at_set(Arr x, const Indices& i, Arr update) { return placed("at_set", x, i, update, Update::set); }
NamedArray at_add(Arr x, const Indices& i, Arr update) { return placed("at_add", x, i, update, Update::add); }
NamedArray at_mul(Arr x, const Indices& i, Arr update) { return placed("at_mul", x, i, update, Update::mul); }
NamedArray at_min(Arr x, const Indices& i, Arr update) { return placed("at_min", x, i, update, Update::min); }
NamedArray at_max(Arr x, const Indices& i, Arr update) { return placed("at_max", x, i, update, Update::max); }

// A start may have axes of the array: then each position along them has a place of its own, as in a cache of ragged sequences.
NamedArray updated_slice(Arr x, const std::vector<std::pair<Name, NamedArray>>& start, Arr update) {
  Here here(x.at());
  constexpr auto op = "updated_slice";
  auto n = node_of(op, x), u = node_of(op, update, n->dtype);
  auto whole = visible(*n), given = visible(*u);
  prim::Where where;
  Axes part = whole;   // the axes of the update, once broadcast
  Nodes all{n, u};
  for (auto& [name, value] : start) {
    auto a = axis_of(op, n, name);
    if (std::any_of(where.begin(), where.end(), [&](auto& w) { return w.first == a.name; }))
      fail(op, "axis " + text(a.name) + " has two starts");
    auto s = node_of(op, value);
    auto* mine = find_axis(given, a.name);
    Axis window = a.resize(mine ? mine->size : 1);
    if (window.size > a.size) fail(op, "the update has " + to_string(window) + ", more than the array's " + to_string(a));
    if (auto at = known(op, s)) {
      auto from = *at < 0 ? *at + a.size : *at;
      if (from < 0 || from + window.size > a.size)
        fail(op, "an update of " + to_string(window) + " from " + std::to_string(*at) + " does not fit axis " + to_string(a));
      s = prim::integer(from, DType::i32);
    } else {
      check_integer(op, s);
    }
    for (auto& v : visible(*s)) {
      auto* there = find_axis(whole, v.name);
      if (!there || v.name == a.name)
        fail(op, "axis " + text(v.name) + " of the start is not one of the other axes of the array " + to_string(whole));
    }
    check_sizes(op, visible(*s), whole);
    for (auto& p : part) if (p.name == a.name) p = window;
    where.push_back({a.name, window_ids(s, a, window)});
    all.push_back(where.back().second);
  }
  for (auto& a : given)
    if (!has(part, a.name))
      fail(op, "axis " + text(a.name) + " of the update is not in the array " + to_string(whole) + did_you_mean(a.name, whole));
  check_sizes(op, given, part);
  auto base = prim::fit(n, with_hidden(all, whole));
  return wrap(prim::scatter(base, prim::fit(u, with_hidden(all, part)), where, Update::set, false));
}

// ---- along an axis ----
namespace {
NamedArray running(const char* op, Arr x, const AxisSelector& axis, Monoid m) {
  Here here(x.at());
  auto n = node_of(op, x);
  auto a = axis_of(op, n, axis);
  auto d = n->dtype;
  if (d == DType::boolean || (is_integer(d) && bytes_of(d) < 4))
    d = is_signed(d) || d == DType::boolean ? DType::i32 : DType::u32;
  return wrap(prim::cumulative(m, prim::cast(n, d), a.name, false));
}
// A key that sorts ascending where the values go descending; NaN first, as the greatest.
NodePtr descending(G x) {
  if (x->dtype == DType::boolean) return prim::logical_not(x);
  if (is_integer(x->dtype)) return prim::map(prim::kBitNot, {x}, x->dtype, &x->axes);   // -1 - x, or most - x: no overflow
  auto nan = prim::map(prim::kIsNan, {x}, DType::boolean, &x->axes);
  return prim::select(nan, prim::extreme(x->dtype, false), prim::neg(x));
}
}  // namespace

NamedArray cumsum(Arr x, const AxisSelector& axis) { return running("cumsum", x, axis, Monoid::sum); }
NamedArray cumprod(Arr x, const AxisSelector& axis) { return running("cumprod", x, axis, Monoid::prod); }
NamedArray sort(Arr x, const AxisSelector& axis) {
  Here here(x.at());
  auto n = node_of("sort", x);
  return wrap(prim::sort(n, axis_of("sort", n, axis).name));
}
NamedArray argsort(Arr x, const AxisSelector& axis) {
  Here here(x.at());
  auto n = node_of("argsort", x);
  return wrap(prim::argsort(n, axis_of("argsort", n, axis).name));
}
std::pair<NamedArray, NamedArray> top_k(Arr x, const AxisSelector& axis, std::int64_t k, std::optional<Name> new_axis) {
  Here here(x.at());
  constexpr auto op = "top_k";
  auto n = node_of(op, x);
  auto a = axis_of(op, n, axis);
  if (k < 0 || k > a.size) fail(op, "the " + std::to_string(k) + " greatest of axis " + to_string(a) + " cannot be taken");
  auto first = prim::slice(prim::argsort(descending(n), a.name), a.name, 0, k);   // (..., axis = k)
  auto values = prim::gather(n, {{a.name, first}}, first->axes, Outside::clamp);
  auto name = new_axis.value_or(a.name);
  return {wrap(renamed(op, values, a, name)), wrap(renamed(op, first, a, name))};
}

}  // namespace haliax
