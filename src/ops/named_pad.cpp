// Padding with constants and with values of the array, and repetition by counts.
#include <algorithm>
#include <cmath>

#include "base/dtype_hint.h"
#include "haliax/fmt.h"
#include "ops/named.h"

namespace haliax {
namespace {

using namespace ops;

void check_widths(const char* op, const Axis& a, std::pair<std::int64_t, std::int64_t> width) {
  if (width.first < 0 || width.second < 0 ||
      std::max(width.first, width.second) > most_elements / 4)
    fail(op, fmt::format("axis {} cannot be padded by ({}, {}); index it to make it smaller", a,
                         width.first, width.second));
}
// Returns the position in the array of each position of the padded axis.
NodePtr padded_positions(PadMode mode, const Axis& a, std::int64_t before, const Axis& padded) {
  const auto n = a.size;
  const auto d = prim::position_dtype(2 * (padded.size + n));
  auto number = [&](std::int64_t v) { return prim::integer(v, d); };
  auto at = prim::sub(prim::iota(padded, d), number(before));
  auto mod = [&](NodeRef x, std::int64_t by) { return prim::map(prim::kMod, {x, number(by)}, d); };
  if (mode == PadMode::edge) return prim::max(number(0), prim::min(at, number(n - 1)));
  if (mode == PadMode::wrap) return mod(at, n);
  // A mirror image has a period of two copies; `reflect` shares the elements at both edges.
  const auto period = mode == PadMode::reflect ? std::max<std::int64_t>(1, 2 * n - 2) : 2 * n;
  auto in_period = mod(at, period);
  auto mirrored = prim::sub(number(mode == PadMode::reflect ? period : period - 1), in_period);
  return prim::select(prim::less(in_period, number(n)), in_period, mirrored);
}
// Positions of a padded axis that read the positions `first`, `first + step`, ... of the array.
struct Run {
  std::int64_t first, step, size;
};
// Returns the runs of a padded axis, in order. Empty: there are more than `most` runs. For example,
// `reflect` pads 3 positions by (1, 2), which reads 1 | 0 1 2 | 1 | 0: {1, -1, 1}, {0, 1, 3},
// {1, -1, 1} and {0, 1, 1}.
std::vector<Run> padded_runs(PadMode mode, std::int64_t n, std::int64_t before, std::int64_t after,
                             std::size_t most) {
  std::vector<Run> runs;
  if (n == 1) mode = PadMode::edge;
  const auto mirror = mode == PadMode::reflect ? std::int64_t(1) : std::int64_t(0);
  for (std::int64_t at = -before, left = 0; at < n + after; at += left) {
    Run run{at, 1, n - at};
    if (mode == PadMode::edge && at < 0)
      run = {0, 0, -at};
    else if (mode == PadMode::edge && at >= n)
      run = {n - 1, 0, n + after - at};
    else if (mode != PadMode::edge) {
      const auto period = mode == PadMode::wrap ? n : 2 * (n - mirror);
      const auto in_period = (at % period + period) % period;
      run = in_period < n ? Run{in_period, 1, n - in_period}
                          : Run{period - 1 + mirror - in_period, -1, period - in_period};
    }
    left = run.size = std::min(run.size, n + after - at);
    if (runs.size() == most) return {};
    runs.push_back(run);
  }
  return runs;
}
// Returns the value that a mode computes from the full axis, without the axis.
NamedArray statistic(PadMode mode, const NamedArray& x, const Axis& a) {
  if (mode == PadMode::maximum) return max(x, a);
  if (mode == PadMode::minimum) return min(x, a);
  NamedArray middle;
  if (mode == PadMode::mean) {
    middle = mean(x, a);
  } else {
    auto sorted = astype(sort(x, a), float_of(x.dtype()));
    auto low = index(sorted, {{a, Index((a.size - 1) / 2)}});
    middle = (low + index(sorted, {{a, Index(a.size / 2)}})) / 2;
  }
  return astype(is_float(x.dtype()) ? middle : round(middle), x.dtype());
}
NamedArray padded_by_positions(PadMode mode, const NamedArray& x, const Axis& a,
                               std::int64_t before, std::int64_t after) {
  const auto padded = a.resize(a.size + before + after);
  // A few runs are copies, and their gradients are sums of slices. More runs are a gather.
  Nodes parts;
  for (auto& run : padded_runs(mode, a.size, before, after, 8)) {
    const auto shape = replaced(x.node()->axes, a.name, {a.resize(run.size)});
    parts.push_back(run.step == 0 ? prim::fit(index(x, {{a, Index(run.first)}}).node(), shape)
                                  : prim::slice(x.node(), a.name, run.first, run.size, run.step));
  }
  if (!parts.empty()) return wrap(prim::concat(parts, padded));
  auto ids = padded_positions(mode, a, before, padded);
  auto axes = with_hidden({x.node()}, replaced(visible(*x.node()), a.name, {padded}));
  return wrap(prim::gather(x.node(), {{a.name, ids}}, axes, program::Outside::clamp));
}
bool reads_positions(PadMode mode) {
  return mode == PadMode::edge || mode == PadMode::reflect || mode == PadMode::symmetric ||
         mode == PadMode::wrap;
}
NamedArray padded_by_values(PadMode mode, const NamedArray& x, const Axis& a, std::int64_t before,
                            std::int64_t after) {
  if (reads_positions(mode)) return padded_by_positions(mode, x, a, before, after);
  const auto axes = visible(*x.node());
  // The parts before and after the array, in the order of its axes.
  auto part = [&](std::int64_t size, bool first) {
    const auto along = a.resize(size);
    const auto shape = replaced(axes, a.name, {along});
    if (mode != PadMode::linear_ramp) return broadcast_to(statistic(mode, x, a), shape);
    auto edge = index(x, {{a, Index(first ? std::int64_t(0) : a.size - 1)}});
    const double step = 1 / double(std::max<std::int64_t>(1, size));
    auto share = linspace(along, {.start = first ? 0 : 1 - step, .stop = first ? 1 - step : 0});
    auto ramp = broadcast_to(edge, shape) * broadcast_to(share, shape);
    return astype(is_float(x.dtype()) ? ramp : floor(ramp), x.dtype());
  };
  return concatenate(a.name, {part(before, true), x, part(after, false)}, context().origin.at);
}

}  // namespace

NamedArray pad(Arr x, const PadWidths& widths, Arr value) {
  constexpr auto op = "pad";
  auto [here, n] = Call(op, x);
  auto fill = node_of(op, value, n->dtype);
  if (!visible(*fill).empty())
    fail(op, "value: expected a scalar, got an array with axes " + to_string(visible(*fill)));
  n = prim::fit(n, with_hidden({fill, n}, visible(*n)));
  for (auto& [axis, width] : widths) {
    auto a = axis_of(op, n, axis);
    check_widths(op, a, width);
    n = prim::pad(n, a.name, width.first, width.second, fill);
  }
  return wrap(n);
}
NamedArray pad(Arr x, const PadWidths& widths, PadMode mode) {
  constexpr auto op = "pad";
  auto [here, n] = Call(op, x);
  if (mode == PadMode::constant || mode == PadMode::empty) return pad(x, widths, Arr(0, x.at()));
  for (auto& [axis, width] : widths) check_widths(op, axis_of(op, n, axis), width);
  auto out = wrap(n);
  for (auto& a : visible(*n))  // in the order of the array, as NumPy
    for (auto& [axis, width] : widths) {
      if (axis.name != a.name || (width.first == 0 && width.second == 0)) continue;
      if (a.size == 0)
        fail(op, fmt::format("axis {} is empty, so it has no values to pad with", a));
      out = padded_by_values(mode, out, a, width.first, width.second);
    }
  return out;
}
NamedArray pad_left(Arr x, const AxisSelector& axis, const Axis& new_axis, Arr value) {
  constexpr auto op = "pad_left";
  auto [here, n, a] = CallAlong(op, x, axis);
  if (new_axis.size < a.size)
    fail(op, fmt::format("axis {} cannot be padded to {}, which is smaller", a, new_axis));
  auto padded = pad(x, {{a.name, {new_axis.size - a.size, 0}}}, value).node();
  return wrap(renamed(op, padded, a, new_axis.name));
}

NamedArray repeat(Arr x, const AxisSelector& axis, const NamedArray& counts,
                  std::optional<std::int64_t> total_repeat_length) {
  constexpr auto op = "repeat";
  auto [here, n, a] = CallAlong(op, x, axis);
  auto times = node_of(op, counts);
  auto shown = visible(*times);
  if (!is_integer(times->dtype))
    fail(op, "counts: expected integers, got " + text(times->dtype) + integer_hint(times->dtype));
  if (shown.size() != 1 || shown[0].size != a.size)
    fail(op, fmt::format("counts: expected one axis of size {}, got {}", a.size, to_string(shown)));
  std::int64_t total = 0;
  if (total_repeat_length) {
    total = *total_repeat_length;
  } else {
    for (auto c : counts.integers(x.at())) {
      if (c < 0) fail(op, fmt::format("a count is {}; counts must not be negative", c));
      total += c;
    }
  }
  if (total < 0 || total > most_elements)
    fail(op, fmt::format("total_repeat_length is {}; it must not be negative", total));
  if (a.size == 0 && total > 0)
    fail(op, fmt::format("axis {} is empty, so it cannot be repeated to {} positions", a, total));
  // A position of the result belongs to the element after all elements that end before it. Elements
  // beyond the last one repeat the last one.
  const auto d = prim::position_dtype(total);
  const Axis result = a.resize(total);
  auto ends = prim::cumulative(Monoid::sum, prim::cast(times, d), shown[0].name);
  ends = prim::rename(ends, {shown[0].name}, {Name("(elements)")});
  auto one = prim::filled(1, d, ends->axes);
  auto zeros = prim::filled(0, d, with_hidden({ends}, {result}));
  auto steps = prim::scatter(zeros, one, {{a.name, ends}}, program::Update::add);
  auto ids = prim::cumulative(Monoid::sum, steps, a.name);
  return wrap(prim::gather(n, {{a.name, ids}},
                           with_hidden({ids, n}, replaced(visible(*n), a.name, {result})),
                           program::Outside::clamp));
}

}  // namespace haliax
