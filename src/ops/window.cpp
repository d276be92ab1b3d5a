// Windows of axes, and their adjoint.
#include "ops/window.h"

#include <algorithm>
#include <numeric>

#include "graph/emit.h"
#include "haliax/fmt.h"
#include "ops/attr.h"
#include "ops/fault.h"

namespace haliax::prim {
namespace {

using Way = Along::Way;
using WindowedAxes = std::vector<WindowAttr::WindowedAxis>;

std::size_t dim_of(const Axes& axes, Name n) {
  return std::size_t(find_axis(axes, n) - axes.data());
}

Place window_view(const Node& n, const Place& in, Emit&) {
  auto w = WindowAttr::of(n);
  auto& from = n.in[0]->axes;
  Place p = in;
  p.strides.clear();
  for (auto& a : n.axes) {
    auto* k = w.kernel(a.name);
    auto* side = k ? &w.sides[k->side] : w.side(a.name);
    auto stride = in.strides[dim_of(from, side ? side->axis : a.name)];
    p.strides.push_back(stride * (k ? k->dilation : side ? side->stride : 1));
  }
  return p;
}
// Windows need each of their axes in full. Other axes map. An axis of the operand and the axis of
// its windows are two axes of the iteration space, with two sizes.
Along window_along(const Node& n, std::size_t k, Name a) {
  auto w = WindowAttr::of(n);
  if (k != kResultSide && w.side(a)) return {Way::full, std::string(a.text()) + " windowed"};
  return {w.side(a) || w.kernel(a) ? Way::full : Way::map, a};
}
std::string window_fault(const Node& n) {
  if (auto wrong = fault_of_dtypes(n, 1); !wrong.empty()) return wrong;
  auto w = WindowAttr::of(n);
  for (std::size_t s = 0; s < w.sides.size(); ++s) {
    auto& side = w.sides[s];
    auto *from = find(*n.in[0], side.axis), *to = find(n, side.axis);
    const bool inside = from && to && to->size == side.size && side.stride > 0 &&
                        (side.size - 1) * side.stride + w.reach(s) < from->size;
    if (!inside) return fmt::format("windows of {} reach outside of {}", side.axis, n.in[0]->axes);
  }
  for (auto& k : w.kernels)
    if (find(*n.in[0], k.axis.name) || !find(n, k.axis.name)) return fault_of_sizes(n);
  return "";
}
// Returns the windows as a concatenation of slices along each kernel axis. A slice needs its
// neighbors only at the ends of a block.
NodePtr window_blockwise(NodeRef n, Name, int) {
  auto w = WindowAttr::of(*n);
  // Adds the kernel axes one by one; `at` is the offset within each axis.
  auto from = [&](auto& self, std::size_t k, std::vector<std::int64_t> at) -> NodePtr {
    if (k == w.kernels.size()) {
      auto x = n->in[0];
      for (std::size_t s = 0; s < w.sides.size(); ++s)
        x = slice(x, w.sides[s].axis, at[s], w.sides[s].size, w.sides[s].stride);
      return x;
    }
    Nodes parts;
    auto& kernel = w.kernels[k];
    for (std::int64_t i = 0; i < kernel.axis.size; ++i) {
      auto part = self(self, k + 1, at);
      auto axes = part->axes;
      axes.push_back(kernel.axis.resize(1));
      parts.push_back(fit(part, axes));
      at[kernel.side] += kernel.dilation;
    }
    return concat(parts, kernel.axis);
  };
  return from(from, 0, std::vector<std::int64_t>(w.sides.size(), 0));
}

// Returns a name for an axis that differs from all names in `taken`.
Name unused(Name like, const char* suffix, const Axes& taken) {
  auto text = std::string(like.text()) + suffix;
  while (has(taken, text)) text += "'";
  return text;
}
NodePtr reversed(NodeRef x, const Axis& axis) {
  return axis.size < 2 ? x : slice(x, axis.name, axis.size - 1, axis.size, -1);
}
// Adds zeros before and after an axis, or removes positions if a count is negative.
NodePtr padded(NodeRef x, Name axis, std::int64_t before, std::int64_t after) {
  auto size = find(*x, axis)->size;
  auto skipped = std::max<std::int64_t>(0, -before), end = std::max<std::int64_t>(0, -after);
  auto inner = skipped || end ? slice(x, axis, skipped, size - skipped - end) : x;
  before = std::max<std::int64_t>(0, before);
  after = std::max<std::int64_t>(0, after);
  return before || after ? pad(inner, axis, before, after, number(0, x->dtype)) : inner;
}

// The adjoint of windows of a contraction y * weight, as contractions of windows of y:
//
//     x[t] = sum over k with t = p * stride + k * dilation of weight[k] y[p]
//
// The weights k of each phase t mod stride form an arithmetic progression, and the sum of a phase
// is a convolution with stride 1 and a reversed weight. The phases are interleaved at the end.
class WindowAdjoint {
 public:
  WindowAdjoint(const WindowAttr& w, const Axes& full, DType dtype)
      : w_(w), full_(full), dtype_(dtype) {}
  // Returns true if the sides can be split into phases.
  static bool supports(const WindowAttr& w) {
    for (std::size_t s = 0; s < w.sides.size(); ++s)
      if (w.sides[s].stride > 1 && kernels_of(w, s) != 1) return false;
    return true;
  }
  NodePtr of(NodeRef y, NodeRef weight) const {
    auto x = from_side(y, weight, 0);
    for (std::size_t s = 0; s < w_.sides.size(); ++s) x = slice(x, w_.sides[s].axis, 0, size(s));
    return x;
  }

 private:
  static std::ptrdiff_t kernels_of(const WindowAttr& w, std::size_t s) {
    return std::count_if(w.kernels.begin(), w.kernels.end(), [&](auto& k) { return k.side == s; });
  }
  std::int64_t size(std::size_t s) const { return find_axis(full_, w_.sides[s].axis)->size; }
  std::int64_t phase_size(std::size_t s) const {
    auto stride = w_.sides[s].stride;
    return (size(s) + stride - 1) / stride;
  }
  // Returns the positions of all phases together, which may exceed the size.
  std::int64_t size_of_phases(std::size_t s) const { return phase_size(s) * w_.sides[s].stride; }
  std::int64_t common_step(const WindowAttr::KernelAxis& k) const {
    return std::gcd(w_.sides[k.side].stride, k.dilation);
  }
  // Returns the adjoint of the sides from s on, with all positions of their phases. Along the sides
  // before, y is padded, and the weight is reversed or restricted to one phase.
  NodePtr from_side(NodeRef y, NodeRef weight, std::size_t s) const {
    if (s == w_.sides.size()) return one_contraction(y, weight);
    return w_.sides[s].stride == 1 ? with_stride_1(y, weight, s) : by_phases(y, weight, s);
  }
  // Contracts windows of y with a stride of 1, along all sides.
  NodePtr one_contraction(NodeRef y, NodeRef weight) const {
    WindowAttr now = w_;
    Axes axes = full_;
    for (std::size_t i = 0; i < now.sides.size(); ++i) {
      now.sides[i] = {now.sides[i].axis, phase_size(i), 1};
      axes[dim_of(axes, now.sides[i].axis)].size = phase_size(i);
    }
    for (auto& k : now.kernels) {
      k.axis.size = find(*weight, k.axis.name)->size;
      if (w_.sides[k.side].stride > 1) k.dilation /= common_step(k);
    }
    return contract_windows(y, weight, now, axes, dtype_);
  }
  NodePtr with_stride_1(NodeRef y, NodeRef weight, std::size_t s) const {
    auto reach = w_.reach(s);
    auto turned = weight;
    for (auto& k : w_.kernels)
      if (k.side == s) turned = reversed(turned, k.axis);
    return from_side(padded(y, w_.sides[s].axis, reach, size(s) - w_.sides[s].size), turned, s + 1);
  }
  NodePtr by_phases(NodeRef y, NodeRef weight, std::size_t s) const {
    auto& side = w_.sides[s];
    auto kernel =
        std::find_if(w_.kernels.begin(), w_.kernels.end(), [&](auto& k) { return k.side == s; });
    Nodes parts;
    const Axis phase(unused(side.axis, " phase", joined(y->axes, joined(weight->axes, full_))),
                     side.stride);
    for (std::int64_t p = 0; p < side.stride; ++p) {
      auto part = one_phase(y, weight, s, *kernel, p);
      auto axes = full_;
      for (std::size_t i = 0; i < w_.sides.size(); ++i)
        axes[dim_of(axes, w_.sides[i].axis)].size = i <= s ? phase_size(i) : size_of_phases(i);
      part = part ? fit(part, axes) : filled(0, dtype_, axes);
      // The gradient of `unflatten` needs no sum over the axis of size 1.
      const Axis positions(side.axis, phase_size(s));
      parts.push_back(unflatten(part, side.axis, {positions, phase.resize(1)}));
    }
    auto all = concat(parts, phase);
    return flatten(all, {side.axis, phase.name}, {side.axis, size_of_phases(s)});
  }
  // Returns y at the positions that one phase reads: windows of `count` positions at this distance,
  // the first of which begins at `from`.
  NodePtr y_of(NodeRef y, std::size_t s, std::int64_t from, std::int64_t distance,
               std::int64_t count) const {
    auto positions = phase_size(s) + (count - 1) * distance;
    return padded(y, w_.sides[s].axis, -from, positions + from - w_.sides[s].size);
  }
  // Returns phase p of the adjoint, or null if no weight reaches it. For example, with a stride of
  // 2 the weights 0 and 2 of a kernel of size 3 reach phase 0, and weight 1 reaches phase 1.
  NodePtr one_phase(NodeRef y, NodeRef weight, std::size_t s, const WindowAttr::KernelAxis& k,
                    std::int64_t p) const {
    const auto stride = w_.sides[s].stride, common = common_step(k), spacing = stride / common;
    std::int64_t first = 0;
    while (first < spacing && (p - first * k.dilation) % stride != 0) ++first;
    if (first == spacing || first >= k.axis.size) return nullptr;
    auto count = (k.axis.size - first + spacing - 1) / spacing, distance = k.dilation / common;
    auto last = first + (count - 1) * spacing;
    auto picked = slice(weight, k.axis.name, last, count, -spacing);
    auto from = (p - last * k.dilation) / stride;
    return from_side(y_of(y, s, from, distance, count), picked, s + 1);
  }

  const WindowAttr& w_;
  const Axes& full_;
  DType dtype_;
};

bool has_all_kernels(const Node& n, const WindowAttr& w) {
  return std::all_of(w.kernels.begin(), w.kernels.end(),
                     [&](auto& k) { return find(n, k.axis.name); }) &&
         std::none_of(w.sides.begin(), w.sides.end(), [&](auto& s) { return find(n, s.axis); });
}
bool has_all_sides(const Node& n, const WindowAttr& w) {
  return std::all_of(w.sides.begin(), w.sides.end(), [&](auto& s) { return find(n, s.axis); }) &&
         std::none_of(w.kernels.begin(), w.kernels.end(),
                      [&](auto& k) { return find(n, k.axis.name); });
}

// The most terms of a sum, and channels per channel of x, for which elementwise products are faster
// than matmuls.
constexpr std::int64_t kMostTerms = 1024, kMostChannels = 8;
// Returns true if the contraction of windows with a weight has only degenerate matmuls: the weight
// has one input channel or one result channel for each channel of x, and the sum has few terms.
bool is_depthwise(const Axes& windows, const Axes& weight, const WindowAttr& w,
                  const Axes& remaining) {
  const auto shared = common(windows, weight), summed = without(shared, remaining);
  if (axis_size(common(shared, remaining)) == 1 || axis_size(summed) > kMostTerms) return false;
  // each contracted axis is in both operands, and all kernel axes are contracted
  if (!without(without(joined(windows, weight), remaining), shared).empty()) return false;
  std::int64_t inputs = axis_size(summed);
  for (auto& k : w.kernels) {
    if (!has(summed, k.axis.name)) return false;
    inputs /= k.axis.size;
  }
  const auto outputs = axis_size(without(weight, shared));
  return std::min(inputs, outputs) == 1 && std::max(inputs, outputs) <= kMostChannels;
}

// Returns the windowed axes to flatten: the longest run of axes that are next to each other in x
// and have a stride of 1, in their order in x. Returns no axes if fewer than two of them have
// windows of several positions, since matmuls merge the other axes.
WindowedAxes flattened_sides(const Node& x, const WindowAttr& w) {
  WindowedAxes run, longest;
  for (auto& a : x.axes) {
    auto* side = w.side(a.name);
    if (side && side->stride == 1)
      run.push_back(*side);
    else
      run.clear();
    if (run.size() >= longest.size()) longest = run;
  }
  const auto overlapping = std::count_if(longest.begin(), longest.end(), [&](auto& side) {
    return w.reach(std::size_t(w.side(side.axis) - w.sides.data())) > 0;
  });
  return overlapping > 1 ? longest : WindowedAxes();
}
Names side_names(const WindowedAxes& sides) {
  Names out;
  for (auto& side : sides) out.push_back(side.axis);
  return out;
}
// Returns the windows `w` as windows of one axis, `positions`, in place of the axes `sides` of x.
// Windows of other axes stay as they are.
WindowAttr flattened_windows(const Node& x, const WindowAttr& w, const WindowedAxes& sides,
                             const Axis& positions) {
  const Names names = side_names(sides);
  std::vector<std::int64_t> distance(sides.size(), 1);  // distance of neighbors along each axis
  for (std::size_t s = sides.size() - 1; s-- > 0;)
    distance[s] = distance[s + 1] * find(x, sides[s + 1].axis)->size;
  WindowAttr flat;
  flat.sides = {{positions.name, positions.size, 1}};
  std::vector<std::size_t> side_of(w.sides.size(), 0);  // indices in `flat`
  for (std::size_t s = 0; s < w.sides.size(); ++s) {
    if (has(names, w.sides[s].axis)) continue;
    side_of[s] = flat.sides.size();
    flat.sides.push_back(w.sides[s]);
  }
  for (auto& k : w.kernels) {
    const auto at =
        std::size_t(std::find(names.begin(), names.end(), w.sides[k.side].axis) - names.begin());
    const auto scale = at < names.size() ? distance[at] : 1;
    flat.kernels.push_back({k.axis, side_of[k.side], k.dilation * scale});
  }
  return flat;
}
// Each kernel position is one offset along the flat axis. For example, the windows of x (b, r, s)
// along r and s are windows of one axis of r * s positions.
NodePtr contract_flat_windows(NodeRef x, NodeRef weight, const WindowAttr& w,
                              const WindowedAxes& sides, const Axes& remaining, DType dtype) {
  // One more position of the first axis keeps the windows of the last row inside.
  const Name rows = sides[0].axis;
  const auto longer = padded(x, rows, 0, 1);
  Axes parts;  // the result, before the positions that wrap around are sliced off
  std::int64_t size = 1;
  for (auto& side : sides) {
    parts.push_back(side.axis == rows ? Axis(rows, side.size) : *find(*x, side.axis));
    size *= find(*longer, side.axis)->size;
  }
  const auto taken = joined(joined(x->axes, weight->axes), remaining);
  const Axis positions(unused(rows, " positions", taken), axis_size(parts));
  const Names names = side_names(sides);
  Axes axes;  // `remaining`, with `positions` in place of the flattened axes
  for (auto& a : remaining)
    if (a.name == rows)
      axes.push_back(positions);
    else if (!has(names, a.name))
      axes.push_back(a);
  auto windows = window(flatten(longer, names, {positions.name, size}),
                        flattened_windows(*longer, w, sides, positions));
  auto y = unflatten(contract(windows, weight, axes, dtype), positions.name, parts);
  for (auto& side : sides) y = slice(y, side.axis, 0, side.size);
  return fit(y, remaining);
}

}  // namespace

Attr WindowAttr::attr() const {
  Attr a;
  a.ints = {std::int64_t(sides.size())};
  for (auto& s : sides) {
    a.names.push_back(s.axis);
    a.ints.insert(a.ints.end(), {s.size, s.stride});
  }
  for (auto& k : kernels) {
    a.names.push_back(k.axis.name);
    a.ints.insert(a.ints.end(), {k.axis.size, std::int64_t(k.side), k.dilation});
  }
  return a;
}
WindowAttr WindowAttr::of(const Attr& a) {
  WindowAttr w;
  std::size_t name = 0, i = 1;
  for (; name < std::size_t(a.ints[0]); i += 2)
    w.sides.push_back({a.names[name++], a.ints[i], a.ints[i + 1]});
  for (; name < a.names.size(); i += 3)
    w.kernels.push_back(
        {Axis(a.names[name++], a.ints[i]), std::size_t(a.ints[i + 1]), a.ints[i + 2]});
  return w;
}
const WindowAttr::WindowedAxis* WindowAttr::side(Name axis) const {
  for (auto& s : sides)
    if (s.axis == axis) return &s;
  return nullptr;
}
const WindowAttr::KernelAxis* WindowAttr::kernel(Name axis) const {
  for (auto& k : kernels)
    if (k.axis.name == axis) return &k;
  return nullptr;
}
std::int64_t WindowAttr::reach(std::size_t side) const {
  std::int64_t sum = 0;
  for (auto& k : kernels)
    if (k.side == side) sum += (k.axis.size - 1) * k.dilation;
  return sum;
}

const Op kWindow{
    .name = "window",
    .kind = Kind::view,
    .linear = Linear::moves,
    .grad = [](NodeRef o,
               NodeRef g) { return Nodes{unwindow(g, WindowAttr::of(*o), o->in[0]->axes)}; },
    .view = window_view,
    .along = window_along,
    .fault = window_fault,
    .blockwise = window_blockwise};

NodePtr window(NodeRef x, const WindowAttr& w) {
  if (w.sides.empty()) return x;
  Axes axes = x->axes;
  for (auto& s : w.sides) axes[dim_of(axes, s.axis)].size = s.size;
  for (auto& k : w.kernels) axes.push_back(k.axis);
  return build(kWindow, {x}, axes, x->dtype, w.attr());
}
NodePtr contract_windows(NodeRef x, NodeRef weight, const WindowAttr& w, const Axes& remaining,
                         DType dtype) {
  const bool all_sides =
      std::all_of(w.sides.begin(), w.sides.end(), [&](auto& s) { return has(remaining, s.axis); });
  const auto sides = all_sides ? flattened_sides(*x, w) : WindowedAxes();
  if (!sides.empty()) {
    auto windows = x->axes;
    for (auto& k : w.kernels) windows.push_back(k.axis);
    if (!is_depthwise(windows, weight->axes, w, remaining))
      return contract_flat_windows(x, weight, w, sides, remaining, dtype);
  }
  return contract(window(x, w), weight, remaining, dtype);
}
NodePtr sum_over_positions(const Node& n) {
  std::size_t k = 0;
  while (k < n.in.size() && n.in[k]->op != &kWindow) ++k;
  if (n.op != &kContract || k == n.in.size()) return nullptr;
  const auto w = WindowAttr::of(*n.in[k]);
  const auto &windows = n.in[k], &weight = n.in[1 - k];
  if (!is_depthwise(windows->axes, weight->axes, w, n.axes)) return nullptr;
  const DType sums = bytes_of(n.dtype) == 2 ? DType::f32 : n.dtype;
  const auto summed = without(common(windows->axes, weight->axes), n.axes);
  NodePtr total;
  for (std::int64_t at = 0; at < axis_size(summed); ++at) {
    auto x = windows->in[0], factor = weight;
    std::vector<std::int64_t> start(w.sides.size(), 0);
    auto rest = at;
    for (auto a = summed.rbegin(); a != summed.rend(); rest /= a->size, ++a) {
      const auto position = rest % a->size;
      if (auto* kernel = w.kernel(a->name))
        start[kernel->side] += position * kernel->dilation;
      else
        x = at_position(x, a->name, position);
      factor = at_position(factor, a->name, position);
    }
    for (std::size_t s = 0; s < w.sides.size(); ++s)
      x = slice(x, w.sides[s].axis, start[s], w.sides[s].size, w.sides[s].stride);
    auto term = map(kMul, {cast(x, sums), cast(factor, sums)}, sums, &n.axes);
    total = total ? add(total, term) : term;
  }
  return cast(total, n.dtype);
}
NodePtr unwindow_contraction(NodeRef y, NodeRef weight, const WindowAttr& w, const Axes& full,
                             DType dtype) {
  return WindowAdjoint(w, full, dtype).of(y, weight);
}
namespace {
// Contractions over fewer elements fuse with other ops.
constexpr std::int64_t kFewestSummed = 16;
// Returns true if the windows g, a contraction of y, have no more elements than y, as those of a
// convolution with few input channels do. Adding them is then faster than windows of y.
bool are_small(const Node& g, const Node& y) {
  return g.op == &kContract && axis_size(without(y.axes, g.axes)) >= kFewestSummed &&
         g.size() <= y.size() && bytes_of(g.dtype) > 2;
}
// Returns unwindow(g, ...) as contractions if g is a contraction or a sum of contractions, or null.
// The gradient of windows that several contractions read is such a sum.
NodePtr unwindow_contractions(NodeRef g, const WindowAttr& w, const Axes& full) {
  auto& c = stripped(g);
  if (c->op == &kAdd) {
    auto a = unwindow_contractions(c->in[0], w, full);
    auto b = a ? unwindow_contractions(c->in[1], w, full) : nullptr;
    return b ? add(a, b) : nullptr;
  }
  // A contraction that sums nothing is an elementwise multiplication.
  const bool multiplies = c->op == &kContract || combines(*c, Monoid::prod);
  for (std::size_t k = 0; multiplies && k < 2; ++k)
    if (auto& weight = c->in[k], &y = c->in[1 - k];
        has_all_kernels(*weight, w) && has_all_sides(*y, w) && !are_small(*c, *y))
      return unwindow_contraction(y, weight, w, full, g->dtype);
  return nullptr;
}
}  // namespace

NodePtr unwindow(NodeRef g, const WindowAttr& w, const Axes& full) {
  if (auto x = WindowAdjoint::supports(w) ? unwindow_contractions(g, w, full) : nullptr) return x;
  // the sum of the windows at each kernel position
  NodePtr total;
  std::int64_t positions = 1;
  for (auto& k : w.kernels) positions *= k.axis.size;
  for (std::int64_t at = 0; at < positions; ++at) {
    auto part = g;
    std::vector<std::int64_t> start(w.sides.size(), 0);
    auto rest = at;
    for (auto& k : w.kernels) {
      part = at_position(part, k.axis.name, rest % k.axis.size);
      start[k.side] += rest % k.axis.size * k.dilation;
      rest /= k.axis.size;
    }
    for (std::size_t s = 0; s < w.sides.size(); ++s) {
      auto& side = w.sides[s];
      auto axes = part->axes;
      axes[dim_of(axes, side.axis)] = *find_axis(full, side.axis);
      part = place(part, axes, side.axis, start[s], side.stride);
    }
    total = total ? add(total, part) : part;
  }
  return sum_to(total, full);
}

namespace {
const bool window_registered = register_ops({&kWindow});
}  // namespace
}  // namespace haliax::prim
