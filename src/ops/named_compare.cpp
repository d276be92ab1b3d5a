// Comparisons of arrays, positions of nonzero elements, and counts.
#include <algorithm>
#include <array>

#include "base/dtype_hint.h"
#include "haliax/fmt.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;

// Returns true if the axes of one array contain the axes of the other one.
bool broadcastable(const Axes& a, const Axes& b) {
  auto contains = [](const Axes& all, const Axes& some) {
    return std::all_of(some.begin(), some.end(), [&](auto& x) {
      auto* same = find_axis(all, x.name);
      return same && same->size == x.size;
    });
  };
  return contains(a, b) || contains(b, a);
}

}  // namespace

NamedArray isclose(Arr a, Arr b, CloseOptions options) {
  constexpr auto op = "isclose";
  CallSite here(a.at());
  const auto d = float_of(promoted(op, std::array<const Arr*, 2>{&a, &b}));
  auto x = node_of(op, a, d), y = node_of(op, b, d);
  auto axes = broadcast(op, {x, y});
  auto tolerance =
      prim::add(prim::number(options.atol, d), prim::scale(prim::abs(y), options.rtol));
  auto near =
      prim::both(prim::is_finite(y), prim::less_equal(prim::abs(prim::sub(x, y)), tolerance));
  auto close = prim::either(prim::equal(x, y), near);
  if (options.equal_nan) close = prim::either(close, prim::both(prim::is_nan(x), prim::is_nan(y)));
  return NamedArray(prim::fit(close, axes));
}
bool allclose(const NamedArray& a, const NamedArray& b, CloseOptions options, SourceLocation at) {
  return all(Arr(isclose(Arr(a, at), Arr(b, at), options), at)).item(at) != 0;
}
bool array_equal(const NamedArray& a, const NamedArray& b, SourceLocation at) {
  auto mine = a.axes(at), other = b.axes(at);
  if (!std::is_permutation(mine.begin(), mine.end(), other.begin(), other.end())) return false;
  return all(Arr(equal(Arr(a, at), Arr(b, at)), at)).item(at) != 0;
}
bool array_equiv(const NamedArray& a, const NamedArray& b, SourceLocation at) {
  if (!broadcastable(a.axes(at), b.axes(at))) return false;
  return all(Arr(equal(Arr(a, at), Arr(b, at)), at)).item(at) != 0;
}

std::vector<NamedArray> where(const NamedArray& condition, std::int64_t fill_value,
                              const Axis& new_axis, SourceLocation at) {
  constexpr auto op = "where";
  CallSite here(at);
  auto mask = to_bool(node_of(op, condition));
  const auto axes = visible(*mask);
  const auto count = axis_size(axes);
  const auto d = prim::position_dtype(std::max(count, new_axis.size));
  if (!holds(d, fill_value))
    fail(op, fmt::format("fill_value {} does not fit in {}", fill_value, d));
  const Axis elements(Name("(elements)"), count);
  std::vector<NamedArray> out;
  if (axes.empty()) return out;
  auto flat = prim::flatten(mask, names_of(axes), elements);
  // The slot of each nonzero element. The other elements get a slot out of range: a scatter drops
  // them.
  auto order = prim::cumulative(Monoid::sum, prim::cast(flat, d), elements.name);
  auto slot =
      prim::select(flat, prim::sub(order, prim::integer(1, d)), prim::integer(new_axis.size, d));
  // One scatter of flat positions; -1 marks a slot without an element.
  auto base = prim::filled(-1, d, with_hidden({slot}, {new_axis}));
  auto updates = prim::fit(prim::iota(elements, d), slot->axes);
  auto flat_position = prim::scatter(base, updates, {{new_axis.name, slot}}, program::Update::set);
  auto is_empty = prim::less(flat_position, prim::integer(0, d));
  std::int64_t stride = count;
  for (auto& a : axes) {
    auto position = flat_position;
    stride = a.size ? stride / a.size : 0;
    if (stride > 0) {
      position = prim::map(prim::kFloorDiv, {position, prim::integer(stride, d)}, d);
      position = prim::map(prim::kMod, {position, prim::integer(a.size, d)}, d);
    }
    out.push_back(wrap(prim::select(is_empty, prim::integer(fill_value, d), position)));
  }
  return out;
}
std::vector<NamedArray> nonzero(Arr x, const Axis& size, std::int64_t fill_value) {
  return where(x.array(), fill_value, size, x.at());
}

NamedArray bincount(Arr x, const Axis& Counts) {
  return bincount(std::move(x), Counts, std::nullopt);
}
NamedArray bincount(Arr x, const Axis& Counts, std::optional<Arr> weights) {
  constexpr auto op = "bincount";
  auto [here, n] = Call(op, x);
  if (!is_integer(n->dtype))
    fail(op, "expected integers, got " + text(n->dtype) + integer_hint(n->dtype));
  auto shown = visible(*n);
  if (shown.size() != 1) fail(op, "expected an array with one axis, got " + to_string(shown));
  auto value = weights ? node_of(op, *weights) : prim::integer(1, DType::i32);
  if (auto extra = without(visible(*value), shown); !extra.empty())
    fail(op, fmt::format("weights: axis {} is not in {}", extra[0].name, to_string(shown)));
  check_sizes(op, visible(*value), shown);
  const auto d = no_bool(value->dtype);
  auto ids = is_signed(n->dtype) ? prim::max(n, prim::integer(0, n->dtype)) : n;
  auto base = prim::filled(0, d, with_hidden({ids, value}, {Counts}));
  auto updates = prim::fit(prim::cast(value, d), with_hidden({ids, value}, shown));
  return wrap(prim::scatter(base, updates, {{Counts.name, ids}}, program::Update::add));
}

}  // namespace haliax
