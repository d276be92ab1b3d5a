// Loops over an axis, traced once.
#include <algorithm>
#include <cmath>

#include "base/name.h"
#include "haliax/transforms.h"
#include "ops/prim.h"
#include "transforms/leaves.h"
#include "transforms/rewrite.h"

namespace haliax {

ScanCheckpoint::ScanCheckpoint(const char* name, SourceLocation at) {
  Here here(at);
  std::string s(name);
  if (s == "none" || s == "save_all") policy = Policy::none;
  else if (s == "carries" || s == "full" || s == "recompute") policy = Policy::carries;
  else if (s == "nested") policy = Policy::nested;
  else
    fail("checkpoint",
         "there is no policy " + s + did_you_mean(s, std::vector<std::string>{"none", "carries", "full", "recompute", "nested"}));
}

namespace detail {
namespace {

struct Turn { Nodes next, out; };
Leaves stacked(const Nodes& values, const Axis& axis) {   // of an unrolled loop: one leaf from one value for each position
  Nodes parts;
  for (auto& v : values) {
    Axes axes{axis.resize(1)};
    axes.insert(axes.end(), v->axes.begin(), v->axes.end());
    parts.push_back(prim::fit(v, axes));
  }
  return {NamedArray(prim::concat(parts, axis))};
}
void check_carry(const Leaves& init, const Leaves& next, const std::vector<std::string>& paths) {
  if (init.size() != next.size()) fail("scan", "the carry has " + std::to_string(init.size()) + " arrays and the function gave " + std::to_string(next.size()));
  for (std::size_t k = 0; k < init.size(); ++k) {
    auto name = k < paths.size() && !paths[k].empty() ? "carry " + paths[k] : std::string("the carry");
    if (init[k].empty() != next[k].empty()) fail("scan", name + " is empty on one side of a turn");
    if (init[k].empty()) continue;
    if (init[k].dtype() != next[k].dtype())
      fail("scan", name + " changes its dtype from " + std::string(name_of(init[k].dtype())) + " to " + std::string(name_of(next[k].dtype())));
    if (init[k].axes() != next[k].axes()) fail("scan", name + " changes from " + to_string(init[k].axes()) + " to " + to_string(next[k].axes()) + "; it must keep its axes and their order");
  }
}

// A scan over blocks of positions, each of which is a scan of its own.
std::pair<Leaves, Leaves> scan_blocks(const Axis& axis, std::int64_t count, const ScanOptions& around, const ScanOptions& inside,
                                      const Leaves& init, const std::vector<std::string>& paths, const Leaves& xs,
                                      BodyFunction f) {
  Axis blocks("(blocks of " + std::string(axis.name.text()) + ")", count);
  struct Block {
    Axis axis;
    const ScanOptions& options;
    const std::vector<std::string>& paths;
    BodyFunction f;
  };
  Block block{axis.resize(axis.size / count), inside, paths, f};
  Leaves split;
  for (auto& x : xs)
    split.push_back(x.empty() || !find(*x.node(), axis.name) ? x : NamedArray(prim::unflatten(x.node(), axis.name, {blocks, block.axis})));
  auto [last, ys] = scan(blocks, around, init, paths, split,
                         {&block, [](void* self, const Leaves& carry, const Leaves& x, Leaves& next, Leaves& out) {
                            auto& b = *static_cast<Block*>(self);
                            std::tie(next, out) = scan(b.axis, b.options, carry, b.paths, x, b.f);
                          }});
  for (auto& y : ys)
    if (!y.empty()) y = NamedArray(prim::flatten(y.node(), {blocks.name, axis.name}, axis));
  return {last, ys};
}

// What is scanned, in one of the ways that the options ask for.
struct Scan {
  Axis axis;
  const ScanOptions& options;
  const std::vector<std::string>& paths;
  const Leaves& xs;
  BodyFunction f;

  bool walks(const NamedArray& x) const { return !x.empty() && find(*x.node(), axis.name); }
  Leaves part(std::int64_t from, std::int64_t n) const {
    Leaves out;
    for (auto& x : xs) out.push_back(walks(x) ? NamedArray(prim::slice(x.node(), axis.name, from, n)) : x);
    return out;
  }
  // A loop over blocks, whose inside is no loop; then the positions that are left.
  std::pair<Leaves, Leaves> in_blocks(const Leaves& init) const {
    auto left = axis.size % options.unroll, whole = axis.size - left;
    auto around = options;
    around.unroll = 1;
    auto blocks = [&](const Leaves& carry) {
      return scan_blocks(axis.resize(whole), whole / options.unroll, around, options, carry, paths, part(0, whole), f);
    };
    auto rest = [&](const Leaves& carry) { return scan(axis.resize(left), options, carry, paths, part(whole, left), f); };
    if (left == 0) return blocks(init);
    auto first = options.reverse ? rest(init) : blocks(init);
    auto second = options.reverse ? blocks(first.first) : rest(first.first);
    auto &head = options.reverse ? second.second : first.second, &tail = options.reverse ? first.second : second.second;
    Leaves ys;
    for (std::size_t k = 0; k < head.size(); ++k)
      ys.push_back(head[k].empty() ? head[k] : NamedArray(prim::concat({head[k].node(), tail[k].node()}, axis)));
    return {second.first, ys};
  }
  // No loop at all.
  std::pair<Leaves, Leaves> unrolled(const Leaves& init) const {
    Leaves carry = init;
    std::vector<Nodes> out;
    for (std::int64_t i = 0; i < axis.size; ++i) {
      auto at = options.reverse ? axis.size - 1 - i : i;
      Leaves now, next, y;
      for (auto& x : xs) now.push_back(walks(x) ? NamedArray(prim::slice(x.node(), axis.name, at, 1, 1, true)) : x);
      f.call(f.self, carry, now, next, y);
      check_carry(init, next, paths);
      carry = next;
      out.resize(y.size(), Nodes(std::size_t(axis.size)));
      for (std::size_t k = 0; k < y.size(); ++k) out[k][std::size_t(at)] = y[k].node();
    }
    Leaves ys;
    for (auto& values : out) ys.push_back(values[0] ? stacked(values, axis)[0] : NamedArray());
    return {carry, ys};
  }
  std::pair<Leaves, Leaves> as_loop(const Leaves& init) const;
};

std::pair<Leaves, Leaves> Scan::as_loop(const Leaves& init) const {
  auto& c = context();
  auto index = prim::index(axis, 0, 1, c.loop_depth);
  struct Deeper { Deeper() { ++context().loop_depth; } ~Deeper() { --context().loop_depth; } };
  Leaves start = init, slices;
  for (auto& x : xs) slices.push_back(walks(x) ? NamedArray(prim::slice_at(x.node(), index, true)) : x);
  for (int attempt = 0;; ++attempt) {
    Leaves carry, next, y;
    for (auto& a : start) carry.push_back(a.empty() ? a : NamedArray(prim::carry(index, a.node()->axes, a.dtype())));
    {
      Deeper deeper;
      f.call(f.self, carry, slices, next, y);
    }
    check_carry(start, next, paths);
    bool widened = false;   // a carry that starts without an axis that vmap hides may gain it in the first turn
    for (std::size_t k = 0; k < start.size(); ++k) {
      if (start[k].empty()) continue;
      auto axes = start[k].node()->axes;
      for (auto& a : next[k].node()->axes) if (!has(axes, a.name)) axes.insert(axes.begin(), a), widened = true;
      start[k] = NamedArray(prim::fit(start[k].node(), axes));
    }
    if (widened && attempt < 8) continue;
    Loop l;
    l.axis = axis, l.index = {index}, l.drop = true, l.reverse = options.reverse;
    l.save = options.checkpoint.policy == ScanCheckpoint::Policy::none ? Save::all : Save::carries;
    for (std::size_t k = 0; k < start.size(); ++k)
      if (!start[k].empty())
        l.results.push_back({Fold::carry, Monoid::sum, {prim::fit(next[k].node(), start[k].node()->axes)}, start[k].node(), carry[k].node()});
    for (auto& a : y) if (!a.empty()) l.results.push_back({Fold::stack, Monoid::sum, {a.node()}, {}, {}});
    auto loop = make_loop(std::move(l));
    Leaves last, ys;
    std::size_t k = 0;
    for (auto& a : start) last.push_back(a.empty() ? a : NamedArray(loop_result(loop, k++)));
    for (auto& a : y) {
      if (a.empty()) { ys.push_back(a); continue; }
      auto r = loop_result(loop, k++);   // hidden axes come first, then the axis
      Axes axes, rest;
      for (auto& x : r->axes) (x.name.hidden() ? axes : rest).push_back(x);
      axes.insert(axes.end(), rest.begin(), rest.end());
      ys.push_back(NamedArray(prim::fit(r, axes)));
    }
    return {last, ys};
  }
}

// Of the arrays that have it, and of the selector, which must agree.
Axis walked_axis(const AxisSelector& selector, const Leaves& xs) {
  auto name = std::string(selector.name.text());
  std::int64_t size = selector.size;
  for (std::size_t k = 0; k < xs.size(); ++k) {
    auto* mine = xs[k].empty() ? nullptr : find(*xs[k].node(), selector.name);
    if (!mine) continue;
    if (size >= 0 && mine->size != size)
      fail("scan", "axis " + name + " has size " + std::to_string(mine->size) + " in argument array " + std::to_string(k) + " " +
                       to_string(xs[k].axes()) + " and " + std::to_string(size) + " elsewhere");
    size = mine->size;
  }
  if (size >= 0) return Axis(selector.name, size);
  Axes seen;
  for (auto& x : xs) if (!x.empty()) for (auto& a : x.axes()) if (!has(seen, a.name)) seen.push_back(a);
  fail("scan", "no argument has axis " + name + "; give an Axis with its size" + did_you_mean(selector.name, seen));
}

}  // namespace

std::pair<Leaves, Leaves> scan(const AxisSelector& selector, const ScanOptions& options, const Leaves& init, const std::vector<std::string>& paths,
                               const Leaves& xs, BodyFunction f) {
  Here here(options.at);
  Tracing tracing;
  if (options.unroll < 1) fail("scan", "unroll must be at least 1; got " + std::to_string(options.unroll));
  Scan s{walked_axis(selector, xs), options, paths, xs, f};
  auto size = s.axis.size;
  if (options.checkpoint.policy == ScanCheckpoint::Policy::nested && size > 3) {
    std::int64_t outer = std::int64_t(std::sqrt(double(size)));
    while (size % outer) --outer;
    if (outer > 1) {   // blocks of positions, each of which makes its inside again
      auto around = options, inside = options;
      around.checkpoint = inside.checkpoint = true, around.unroll = 1;
      return scan_blocks(s.axis, outer, around, inside, init, paths, xs, f);
    }
  }
  if (options.unroll > 1 && options.unroll < size) return s.in_blocks(init);
  return options.unroll >= size && size > 0 ? s.unrolled(init) : s.as_loop(init);
}

std::pair<NamedArray, NamedArray> first_and_rest(const NamedArray& a, const AxisSelector& axis, SourceLocation at) {
  auto x = a.resolve_axis(axis, at);
  Here here(at);
  if (x.size == 0) fail("reduce", "there is nothing along " + to_string(Axes{x}) + " to start from; give an init");
  return {NamedArray(prim::slice(a.node(), x.name, 0, 1, 1, true)), NamedArray(prim::slice(a.node(), x.name, 1, x.size - 1))};
}

Leaves associative_scan_leaves(const AxisSelector& selector, const Leaves& xs, BodyFunction f, bool reverse, SourceLocation at) {
  Here here(at);
  if (xs.empty() || xs[0].empty()) fail("associative_scan", "there is nothing to scan");
  auto axis = xs[0].resolve_axis(selector, at);
  auto flipped = [&](Leaves v) {
    for (auto& x : v) x = NamedArray(prim::slice(x.node(), axis.name, axis.size - 1, axis.size, -1));
    return v;
  };
  auto part = [&](const Leaves& v, std::int64_t from, std::int64_t size) {
    Leaves out;
    for (auto& x : v) out.push_back(NamedArray(prim::slice(x.node(), axis.name, from, size)));
    return out;
  };
  for (auto& x : xs) x.resolve_axis(axis, at);
  Leaves y = reverse ? flipped(xs) : xs;
  for (std::int64_t d = 1; d < axis.size; d *= 2) {   // after a step each position holds the result of the 2d positions up to it
    Leaves combined, none;
    auto before = part(y, 0, axis.size - d);
    f.call(f.self, before, part(y, d, axis.size - d), combined, none);
    if (combined.size() != y.size())
      fail("associative_scan",
           "the function gave " + std::to_string(combined.size()) + " arrays for " + std::to_string(y.size()));
    auto head = part(y, 0, d);
    for (std::size_t k = 0; k < y.size(); ++k) {
      auto &c = combined[k], &b = before[k];
      if (c.empty() || c.dtype() != b.dtype() || !same_axes(c, b))
        fail("associative_scan",
             "of two arrays " + std::string(name_of(b.dtype())) + " " + to_string(b.axes()) +
                 " the function must make one like them" +
                 (c.empty() ? ", and it made none" : ", and it made " + std::string(name_of(c.dtype())) + " " + to_string(c.axes())));
      Axes hidden, shape;
      for (auto& a : c.node()->axes)
        if (a.name.hidden()) hidden.push_back(a);
      shape = with_hidden(y[k].node()->axes, hidden);
      auto piece = [&](const NamedArray& v, std::int64_t size) {
        for (auto& a : shape)
          if (a.name == axis.name) a.size = size;
        return prim::fit(v.node(), shape);
      };
      y[k] = NamedArray(prim::concat({piece(head[k], d), piece(c, axis.size - d)}, axis));
    }
  }
  return reverse ? flipped(y) : y;
}

}  // namespace detail
}  // namespace haliax
