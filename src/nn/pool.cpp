// Pools: reductions of windows, as elementwise ops on slices along one axis after the other.
#include "graph/fail.h"
#include "haliax/conv.h"
#include "haliax/nn.h"
#include "ops/named.h"

namespace haliax::nn {
namespace {

struct PoolAxis {
  Axis window;
  std::int64_t stride = 1, before = 0, after = 0, size = 0, out = 0;
};

std::vector<PoolAxis> sides_of(const char* op, const Axes& x, const AxisSpec& Window,
                               const PoolOptions& options) {
  std::vector<PoolAxis> all;
  std::vector<std::int64_t> sizes, windows;
  for (auto& a : Window) {
    auto* mine = find_axis(x, a.name);
    if (!mine)
      fail(op, "the window axis {} is not in the input {}{}", a.name, x, did_you_mean(a.name, x));
    if (a.size < 1) fail(op, "the window {} must have 1 position or more", a);
    sizes.push_back(mine->size);
    windows.push_back(a.size);
  }
  auto strides = options.stride.of(op, "stride", sizes.size());
  for (auto n : strides)
    if (n < 1) fail(op, "stride is {}; it must be 1 or more", n);
  auto pairs = options.padding.of(op, sizes, windows, strides);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    PoolAxis s{Window.axes()[i], strides[i], pairs[i].first, pairs[i].second, sizes[i]};
    auto free = s.size + s.before + s.after - s.window.size;
    if (free < 0)
      fail(op, "the window {} exceeds its axis, which has {} positions with padding", s.window,
           s.size + s.before + s.after);
    s.out = free / s.stride + 1;
    if (options.use_ceil && free % s.stride != 0) {
      s.after += s.stride - free % s.stride;
      ++s.out;
    }
    all.push_back(s);
  }
  return all;
}

// Reduces the windows of one axis.
NodePtr pooled(const NodePtr& x, const PoolAxis& s, Monoid m, const NodePtr& padding) {
  auto name = s.window.name;
  auto in = s.before || s.after ? prim::pad(x, name, s.before, s.after, padding) : x;
  if (s.stride == s.window.size && s.stride > 1) {  // the windows do not overlap
    auto axes = in->axes;
    std::string kernel = std::string(name.text()) + " window";
    while (has(axes, kernel)) kernel += "'";
    auto rows = prim::unflatten(prim::slice(in, name, 0, s.out * s.stride), name,
                                {Axis(name, s.out), Axis(kernel, s.stride)});
    return prim::reduce(m, rows, without(rows->axes, {Axis(kernel, s.stride)}));
  }
  NodePtr total;
  for (std::int64_t k = 0; k < s.window.size; ++k) {
    auto part = prim::slice(in, name, k, s.out, s.stride);
    total = total ? prim::map(prim::pairwise(m), {total, part}, x->dtype, &total->axes) : part;
  }
  return total;
}
NodePtr pooled(NodePtr x, const std::vector<PoolAxis>& sides, Monoid m) {
  const auto padding = prim::identity(m, x->dtype);
  for (auto& s : sides) x = pooled(x, s, m, padding);
  return x;
}
NamedArray extreme_pool(const char* op, const Arr& x, const AxisSpec& Window,
                        const PoolOptions& options, Monoid m) {
  auto [here, n] = ops::Call(op, x);
  return ops::constrained(op,
                          ops::wrap(pooled(n, sides_of(op, ops::visible(*n), Window, options), m)));
}

}  // namespace

NamedArray max_pool(Arr x, const AxisSpec& Window, PoolOptions options) {
  return extreme_pool("max_pool", x, Window, options, Monoid::max);
}
NamedArray min_pool(Arr x, const AxisSpec& Window, PoolOptions options) {
  return extreme_pool("min_pool", x, Window, options, Monoid::min);
}
NamedArray mean_pool(Arr x, const AxisSpec& Window, PoolOptions options) {
  const char* op = "mean_pool";
  auto [here, n] = ops::Call(op, x);
  auto dtype = ops::float_of(n->dtype), wide = ops::wide_of(dtype);
  auto sides = sides_of(op, ops::visible(*n), Window, options);
  auto sums = pooled(prim::cast(n, wide), sides, Monoid::sum);
  // the number of positions of each window, one axis at a time
  double all = 1;
  for (auto& s : sides) {
    if (options.count_include_pad || (!s.before && !s.after)) {
      all *= double(s.window.size);
      continue;
    }
    const Axis out(s.window.name, s.out);
    auto first = prim::sub(prim::scale(prim::iota(out, wide), double(s.stride)),
                           prim::number(double(s.before), wide));
    auto last = prim::add(first, prim::number(double(s.window.size), wide));
    auto count = prim::sub(prim::min(last, prim::number(double(s.size), wide)),
                           prim::max(first, prim::number(0, wide)));
    sums = prim::div(sums, prim::max(count, prim::number(1, wide)));
  }
  auto means = all == 1 ? sums : prim::div(sums, prim::number(all, wide));
  return ops::constrained(op, ops::wrap(prim::cast(means, dtype)));
}

}  // namespace haliax::nn
