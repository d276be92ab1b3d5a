// Loops over an axis, whose body is traced once: scan and its variants.
#include <cmath>
#include <utility>

#include "base/name.h"
#include "base/per_thread.h"
#include "base/where.h"
#include "graph/fail.h"
#include "ops/attr.h"
#include "ops/effect.h"
#include "ops/named.h"
#include "transforms/hoist.h"
#include "transforms/leaves.h"
#include "transforms/rewrite.h"

namespace haliax {

BlockInternals::BlockInternals(std::initializer_list<const char*> names)
    : names_(names.begin(), names.end()) {}
BlockInternals::BlockInternals(std::vector<std::string> names) : names_(std::move(names)) {}
ScanCheckpoint::ScanCheckpoint(const char* name, SourceLocation at) {
  CallSite here(at);
  const std::vector<std::string> names{"none",      "save_all", "carries", "full",
                                       "recompute", "offload",  "nested"};
  std::string s(name);
  if (s == "none" || s == "save_all")
    policy = Policy::none;
  else if (s == "carries" || s == "full" || s == "recompute" || s == "offload")
    policy = Policy::carries;
  else if (s == "nested")
    policy = Policy::nested;
  else
    fail("checkpoint", "there is no policy {}; the policies are {}{}", s,
         fmt::format("{}", fmt::join(names, ", ")), did_you_mean(s, names));
}
ScanCheckpoint::ScanCheckpoint(const ScanCheckpointPolicy& p, SourceLocation at) {
  CallSite here(at);
  const auto& internals = p.save_block_internals;
  if (internals.all() && !p.offload_block_internals.empty())
    fail("checkpoint",
         "all intermediates are saved, and {} of them are to be offloaded; list the names to save",
         p.offload_block_internals.size());
  if (p.nested < 0)
    fail("checkpoint", "nested is {}; it must be a number of blocks, or true", p.nested);
  if (p.disable || internals.all()) return;
  policy = p.nested > 0 ? Policy::nested : Policy::carries;
  blocks = p.nested > 1 ? p.nested : 0;
  saved = internals.names();
  saved.insert(saved.end(), p.offload_block_internals.begin(), p.offload_block_internals.end());
}
ScanCheckpoint::ScanCheckpoint(const ScanCheckpoint&) = default;
ScanCheckpoint::ScanCheckpoint(ScanCheckpoint&&) noexcept = default;
ScanCheckpoint& ScanCheckpoint::operator=(const ScanCheckpoint&) = default;
ScanCheckpoint& ScanCheckpoint::operator=(ScanCheckpoint&&) noexcept = default;
ScanCheckpoint::~ScanCheckpoint() = default;
bool ScanCheckpoint::equal(const ScanCheckpoint& other) const {
  return policy == other.policy && blocks == other.blocks && saved == other.saved;
}

namespace {

// The most recent scans of this thread, for error messages.
std::vector<TracedScan>& traced_scans() { return per_thread<std::vector<TracedScan>>(); }
// Records a scan while its body is traced.
class TracedIteration {
 public:
  explicit TracedIteration(const Node* index) : begin_(fresh_id()) {
    auto& all = traced_scans();
    constexpr std::size_t most = 64;
    if (all.size() >= most) {
      const auto old = all[all.size() / 2].begin;
      std::erase_if(all, [&](auto& s) { return s.end != 0 && s.begin < old; });
    }
    all.push_back({index, context().origin.at, begin_, 0});
  }
  ~TracedIteration() {
    for (auto& s : traced_scans())
      if (s.begin == begin_) s.end = newest_id();
  }
  TracedIteration(const TracedIteration&) = delete;
  // Checks that all values that vary with the index were created in this trace. Raises for a tracer
  // that escaped from another trace.
  void check(const char* op, const Nodes& created, const Node* index) const {
    traverse(
        created, [&](const Node& n) { return n.varies_with(index); },
        [&](NodeRef n, PendingNodes& todo) {
          if (n.get() != index && created_at(*n) < begin_) refuse(op, n);
          add_reads(n, todo);
        });
  }
  static std::uint64_t created_at(const Node& n) {
    return std::max(n.id, n.last_created.load(std::memory_order_relaxed));
  }

 private:
  [[noreturn]] static void refuse(const char* op, NodeRef n) {
    auto from = scan_of(n);
    auto created = to_string(n->origin.at),
         scan = to_string(from ? from->at : n->free.front()->origin.at);
    fail(op,
         "the function reads a leaked tracer: it was created{} inside scan{} and has a value only "
         "there; return it from that function",
         created.empty() ? "" : " at " + created, scan.empty() ? "" : " (" + scan + ")");
  }
  std::uint64_t begin_;
};

}  // namespace

std::optional<TracedScan> scan_of(NodeRef n) {
  std::optional<TracedScan> out;
  for (auto& s : traced_scans()) {
    if (!n->varies_with(s.index)) continue;
    std::uint64_t first = 0;  // oldest value that was created in an iteration
    auto varies = [&](const Node& x) { return !x.value && x.varies_with(s.index); };
    traverse({n}, varies, [&](NodeRef x, PendingNodes& todo) {
      auto created = TracedIteration::created_at(*x);
      if (x.get() != s.index && (first == 0 || created < first)) first = created;
      append(todo, x->in);
    });
    if (first >= s.begin && (s.end == 0 || first <= s.end)) out = s;
  }
  return out;
}

namespace detail {

// A scan of leaves, all of which are sliced if they have the axis.
static std::pair<Leaves, Leaves> scan_leaves(const char* op, const AxisSelector&,
                                             const ScanOptions&, const Leaves& init,
                                             const std::vector<std::string>& paths,
                                             const Leaves& xs, BodyFunction);

namespace {

// Concatenates the results of iterations along the axis. A result without the axis is one position.
// A later iteration may have axes that vmap hides and that the first one lacks.
NodePtr in_a_row(Nodes parts, const Axis& axis) {
  auto all = ops::with_hidden(parts, joined({axis.resize(1)}, ops::visible(*parts[0])));
  for (auto& v : parts) {
    auto* mine = find(*v, axis.name);
    v = prim::fit(v, replaced(all, axis.name, {axis.resize(mine ? mine->size : 1)}));
  }
  return prim::concat(parts, axis);
}
void check_carry(const char* op, const Leaves& init, const Leaves& next,
                 const std::vector<std::string>& paths) {
  if (init.size() != next.size())
    fail(op, "the carry has {} arrays, but the function returned {}", init.size(), next.size());
  for (std::size_t k = 0; k < init.size(); ++k) {
    auto name =
        k < paths.size() && !paths[k].empty() ? "carry " + paths[k] : std::string("the carry");
    auto &a = init[k], &b = next[k];
    if (a.empty() != b.empty()) fail(op, "{} is empty on one side of an iteration", name);
    if (a.empty()) continue;
    if (a.dtype() != b.dtype())
      fail(op, "{} changes its dtype from {} to {}", name, a.dtype(), b.dtype());
    if (a.axes() != b.axes())
      fail(op, "{} changes from {} to {}; its axes and their order must stay the same", name,
           a.axes(), b.axes());
  }
}

// Raises if a result of the body has the loop axis, along which results are stacked. This happens
// if f captures an array rather than receiving it as an argument.
void check_given(const char* op, const Leaves& y, const Axis& axis) {
  for (auto& a : y)
    if (!a.empty() && has(a.node()->axes, axis.name))
      fail(op,
           "the result of an iteration already has axis {}: {}; only arguments are sliced, not "
           "arrays that the function captures",
           axis.name, a.axes());
}

// Raises if results of different iterations differ in axes or dtype, since they are stacked. The
// body may have state of its own if it is called several times.
void check_equal_results(const char* op, const Leaves& first, const Leaves& now, const Axis& axis) {
  constexpr auto hint = "stacked results must be equal in axes and dtype in all iterations";
  if (first.size() != now.size())
    fail(op, "one iteration returns {} arrays, another {}; {}", first.size(), now.size(), hint);
  for (std::size_t k = 0; k < now.size(); ++k) {
    auto &a = first[k], &b = now[k];
    if (a.empty() != b.empty())
      fail(op, "the result of one iteration is empty in another; {}", hint);
    if (a.empty()) continue;
    auto mine = replaced(a.axes(), axis.name, {}), other = replaced(b.axes(), axis.name, {});
    if (a.dtype() != b.dtype() || mine != other)
      fail(op, "one iteration returns {} {}, another {} {}; {}", a.dtype(), mine, b.dtype(), other,
           hint);
  }
}

// A scan over blocks of positions; each block is a scan of its own.
std::pair<Leaves, Leaves> scan_blocks(const char* op, const Axis& axis, std::int64_t count,
                                      const ScanOptions& around, const ScanOptions& inside,
                                      const Leaves& init, const std::vector<std::string>& paths,
                                      const Leaves& xs, BodyFunction f) {
  Axis blocks(fmt::format("(blocks of {})", axis.name), count);
  const Axis block = axis.resize(axis.size / count);
  auto block_body = [&](const Leaves& carry, const Leaves& x, Leaves& next, Leaves& out) {
    std::tie(next, out) = scan_leaves(op, block, inside, carry, paths, x, f);
  };
  auto split = mapped(xs, [&](NodeRef x) {
    return find(*x, axis.name) ? prim::unflatten(x, axis.name, {blocks, block}) : x;
  });
  auto call = [](void* self, const Leaves& carry, const Leaves& x, Leaves& next, Leaves& out) {
    (*static_cast<decltype(block_body)*>(self))(carry, x, next, out);
  };
  auto [last, ys] = scan_leaves(op, blocks, around, init, paths, split, {&block_body, call});
  return {last, mapped(ys, [&](NodeRef y) {
            return prim::flatten(y, {blocks.name, axis.name}, axis);
          })};
}

struct TracedBody;
// A scan, in one of the forms that the options select.
struct Scan {
  const char* op;
  Axis axis;
  const ScanOptions& options;
  const std::vector<std::string>& paths;
  const Leaves& xs;
  BodyFunction f;

  // Returns xs with f applied to each array that has the axis.
  template <class F> Leaves sliced(const F& f) const {
    return mapped(xs, [&](NodeRef x) { return has(x->axes, axis.name) ? f(x) : x; });
  }
  Leaves part(std::int64_t from, std::int64_t n) const {
    return sliced([&](NodeRef x) { return prim::slice(x, axis.name, from, n); });
  }
  // A loop over blocks, whose body is unrolled, followed by the remaining positions.
  std::pair<Leaves, Leaves> in_blocks(const Leaves& init) const {
    auto left = axis.size % options.unroll, full = axis.size - left;
    auto around = options;
    around.unroll = 1;
    auto blocks = [&](const Leaves& carry) {
      return scan_blocks(op, axis.resize(full), full / options.unroll, around, options, carry,
                         paths, part(0, full), f);
    };
    auto rest = [&](const Leaves& carry) {
      return scan_leaves(op, axis.resize(left), options, carry, paths, part(full, left), f);
    };
    if (left == 0) return blocks(init);
    auto first = options.reverse ? rest(init) : blocks(init);
    auto second = options.reverse ? blocks(first.first) : rest(first.first);
    auto &head = options.reverse ? second.second : first.second,
         &tail = options.reverse ? first.second : second.second;
    check_equal_results(op, head, tail, axis);
    Leaves ys;
    for (std::size_t k = 0; k < head.size(); ++k)
      ys.push_back(head[k].empty() ? head[k]
                                   : NamedArray(in_a_row({head[k].node(), tail[k].node()}, axis)));
    return {second.first, ys};
  }
  // Fully unrolled, without a loop.
  std::pair<Leaves, Leaves> unrolled(const Leaves& init) const {
    Leaves carry = init, given;
    std::vector<Nodes> out;
    for (std::int64_t i = 0; i < axis.size; ++i) {
      auto at = options.reverse ? axis.size - 1 - i : i;
      Leaves next, y;
      called(f, carry, sliced([&](NodeRef x) { return prim::at_position(x, axis.name, at); }), next,
             y);
      check_carry(op, init, next, paths);
      check_given(op, y, axis);
      if (i == 0) given = y;
      check_equal_results(op, given, y, axis);
      carry = next;
      out.resize(y.size(), Nodes(std::size_t(axis.size)));
      for (std::size_t k = 0; k < y.size(); ++k) out[k][std::size_t(at)] = y[k].node();
    }
    Leaves ys;
    for (auto& values : out) ys.push_back(NamedArray(values[0] ? in_a_row(values, axis) : nullptr));
    return {carry, ys};
  }
  std::pair<Leaves, Leaves> as_loop(const Leaves& init) const;
  std::pair<Leaves, Leaves> loop_over(NodeRef index, const Leaves& start, const TracedBody&) const;
};

// The body of a loop, traced once.
struct TracedBody {
  Leaves carry, next, y;
  LoopEffects effects;
  Nodes created() const {
    auto out = nodes_of(next);
    append(out, nodes_of(y));
    if (effects.any()) out.push_back(effects.last());
    return out;
  }
};
TracedBody traced_body(BodyFunction f, NodeRef index, const Leaves& start, const Leaves& slices) {
  TracedBody body{mapped(start, [&](NodeRef a) { return prim::carry(index, a->axes, a->dtype); }),
                  {},
                  {},
                  LoopEffects(index)};
  auto& c = context();
  ++c.loop_depth;  // if f throws, the enclosing Tracing restores the depth
  called(f, body.carry, slices, body.next, body.y);
  --c.loop_depth;
  body.effects.close();
  return body;
}
// Adds to each start the axes that only its next value has: a carry that starts without an axis
// that vmap hides may gain the axis in the first iteration. Returns true if a start has gained one.
bool add_hidden_axes(Leaves& start, const Leaves& next) {
  bool widened = false;
  for (std::size_t k = 0; k < start.size(); ++k) {
    if (start[k].empty()) continue;
    auto axes = start[k].node()->axes;
    for (auto& a : next[k].node()->axes)
      if (!has(axes, a.name)) {
        axes.insert(axes.begin(), a);
        widened = true;
      }
    start[k] = NamedArray(prim::fit(start[k].node(), axes));
  }
  return widened;
}

std::pair<Leaves, Leaves> Scan::as_loop(const Leaves& init) const {
  const auto index = prim::index(axis, 0, 1, context().loop_depth);
  Leaves start = init;
  const TracedIteration trace(index.get());
  const auto slices = sliced([&](NodeRef x) { return prim::slice_at(x, index, true); });
  for (int attempt = 0;; ++attempt) {
    auto body = traced_body(f, index, start, slices);
    const auto created = body.created();
    trace.check(op, created, index.get());
    check_carry(op, start, body.next, paths);
    check_given(op, body.y, axis);
    if (add_hidden_axes(start, body.next) && attempt < 8) continue;
    // A policy that recomputes the body asks for less memory.
    const bool hoists = options.checkpoint.policy == ScanCheckpoint::Policy::none;
    if (!start.empty() && hoists) {
      const auto hoisted = with_hoisted_contractions(created, index, axis);
      auto node = hoisted.begin();
      for (auto* values : {&body.next, &body.y})
        *values = mapped(*values, [&](NodeRef) { return *node++; });
    }
    return loop_over(index, start, body);
  }
}
// Returns the final carry and the stacked results.
std::pair<Leaves, Leaves> Scan::loop_over(NodeRef index, const Leaves& start,
                                          const TracedBody& body) const {
  Loop l;
  l.axis = axis;
  l.index = {index};
  l.drop = true;
  l.reverse = options.reverse;
  l.save = options.checkpoint.policy == ScanCheckpoint::Policy::none ? Save::all : Save::carries;
  l.saved_names.assign(options.checkpoint.saved.begin(), options.checkpoint.saved.end());
  for (std::size_t k = 0; k < start.size(); ++k) {
    if (start[k].empty()) continue;
    auto& from = start[k].node();
    l.results.push_back({.kind = ResultKind::carry,
                         .value = {prim::fit(body.next[k].node(), from->axes)},
                         .start = from,
                         .carry = body.carry[k].node()});
  }
  for (auto& n : nodes_of(body.y)) l.results.push_back({.kind = ResultKind::stack, .value = {n}});
  body.effects.add_to(l);
  auto loop = make_loop(std::move(l));
  LoopEffects::after(loop);
  std::size_t k = 0;
  auto last = mapped(start, [&](NodeRef) { return loop_result(loop, k++); });
  return {last, mapped(body.y, [&](NodeRef) {
            auto r = loop_result(loop, k++);
            // hidden axes first, then the loop axis
            return prim::fit(r, ops::with_hidden({r}, ops::visible(*r)));
          })};
}

// Returns the axis of the selector and of the arrays that have it. Raises if their sizes differ.
Axis scanned_axis(const char* op, const AxisSelector& selector, const Leaves& xs) {
  auto name = selector.name;
  std::int64_t size = selector.size;
  for (std::size_t k = 0; k < xs.size(); ++k) {
    auto* mine = xs[k].empty() ? nullptr : find(*xs[k].node(), name);
    if (!mine) continue;
    if (size >= 0 && mine->size != size)
      fail(op, "axis {} has size {} in argument array {} {}, but {} elsewhere", name, mine->size, k,
           xs[k].axes(), size);
    size = mine->size;
  }
  if (size < 0)
    fail(op, "no argument has axis {}; pass an Axis with its size{}", name,
         did_you_mean(name, axes_of(xs)));
  return Axis(name, size);
}

}  // namespace

static std::pair<Leaves, Leaves> traced_scan(const char* op, const AxisSelector& selector,
                                             const ScanOptions& options, const Leaves& init,
                                             const std::vector<std::string>& paths,
                                             const Leaves& xs, BodyFunction f) {
  Tracing tracing;
  if (options.unroll < 1) fail(op, "unroll must be at least 1; got {}", options.unroll);
  Scan s{op, scanned_axis(op, selector, xs), options, paths, xs, f};
  auto size = s.axis.size;
  const auto& checkpoint = options.checkpoint;
  if (checkpoint.policy == ScanCheckpoint::Policy::nested && (size > 3 || checkpoint.blocks > 0)) {
    auto outer = checkpoint.blocks;
    if (outer > 0 && size % outer)
      fail("checkpoint", "axis {} is not divisible into {} nested blocks", s.axis, outer);
    if (outer == 0) {
      outer = std::int64_t(std::sqrt(double(size)));
      while (size % outer) --outer;
    }
    if (outer > 1) {  // blocks of positions, each of which recomputes its iterations
      auto around = options, inside = options;
      around.checkpoint = true;
      inside.checkpoint.policy = ScanCheckpoint::Policy::carries;
      around.unroll = 1;
      return scan_blocks(op, s.axis, outer, around, inside, init, paths, xs, f);
    }
  }
  if (options.unroll > 1 && options.unroll < size) return s.in_blocks(init);
  return options.unroll >= size && size > 0 ? s.unrolled(init) : s.as_loop(init);
}

namespace {

// The body of a scan of some arguments, as a function of all of them: the others are not sliced.
struct PartlyScanned {
  BodyFunction f;
  Leaves all;
  std::vector<bool> scanned;

  BodyFunction function() {
    return {this, [](void* self, const Leaves& carry, const Leaves& x, Leaves& next, Leaves& out) {
              auto& s = *static_cast<PartlyScanned*>(self);
              auto in = s.all;
              for (std::size_t k = 0; k < in.size(); ++k)
                if (s.scanned[k]) in[k] = x[k];
              s.f.call(s.f.self, carry, in, next, out);
            }};
  }
};

}  // namespace

std::pair<Leaves, Leaves> scan(const char* op, const AxisSelector& selector,
                               const ScanOptions& options, const Walk& init, const Walk& xs,
                               BodyFunction f) {
  if (options.is_scanned.all())
    return scan_leaves(op, selector, options, init.leaves(), init.paths, xs.leaves(), f);
  PartlyScanned body{f, xs.leaves(), options.is_scanned.chosen(op, xs, options.at)};
  const auto scanned = only_leaves(body.all, body.scanned);
  return scan_leaves(op, selector, options, init.leaves(), init.paths, scanned, body.function());
}
static std::pair<Leaves, Leaves> scan_leaves(const char* op, const AxisSelector& selector,
                                             const ScanOptions& options, const Leaves& init,
                                             const std::vector<std::string>& paths,
                                             const Leaves& xs, BodyFunction f) {
  CallSite here(options.at);
  auto out = traced_scan(op, selector, options, init, paths, xs, f);
  auto created = out.first;
  created.insert(created.end(), out.second.begin(), out.second.end());
  run_ready_effects(created);
  return out;
}

std::pair<NamedArray, NamedArray> first_and_rest(const NamedArray& a, const AxisSelector& axis,
                                                 SourceLocation at) {
  auto x = a.resolve_axis(axis, at);
  CallSite here(at);
  if (x.size == 0)
    fail("reduce", "there are no elements along {} to start from; pass an init", Axes{x});
  return {NamedArray(prim::at_position(a.node(), x.name, 0)),
          NamedArray(prim::slice(a.node(), x.name, 1, x.size - 1))};
}

// Returns the array with the order of other axes, which have the same names.
static NamedArray in_order(const NamedArray& a, Axes order) {
  auto& n = a.node();
  for (auto& o : order) o = *find(*n, o.name);
  return NamedArray(prim::fit(n, ops::with_hidden({n}, order)));
}
Leaves associative_scan_leaves(const AxisSelector& selector, const Leaves& xs, BodyFunction f,
                               bool reverse, SourceLocation at) {
  CallSite here(at);
  if (xs.empty() || xs[0].empty()) fail("associative_scan", "there is nothing to scan");
  auto axis = xs[0].resolve_axis(selector, at);
  auto part = [&](const Leaves& v, std::int64_t from, std::int64_t size, std::int64_t step = 1) {
    return mapped(v, [&](NodeRef x) { return prim::slice(x, axis.name, from, size, step); });
  };
  auto flipped = [&](const Leaves& v) { return part(v, axis.size - 1, axis.size, -1); };
  for (auto& x : xs) x.resolve_axis(axis, at);
  Leaves y = reverse ? flipped(xs) : xs;
  // After each step, a position holds the result of the 2d positions up to it.
  for (std::int64_t d = 1; d < axis.size; d *= 2) {
    Leaves combined, none;
    auto before = part(y, 0, axis.size - d);
    called(f, before, part(y, d, axis.size - d), combined, none);
    if (combined.size() != y.size())
      fail("associative_scan", "the function returned {} arrays for {}", combined.size(), y.size());
    // The results have the axis order that the function returns in its first call.
    if (d == 1)
      for (std::size_t k = 0; k < y.size(); ++k)
        if (!combined[k].empty() && same_axes(combined[k], before[k]))
          y[k] = in_order(y[k], combined[k].axes());
    auto head = part(y, 0, d);
    for (std::size_t k = 0; k < y.size(); ++k) {
      auto &c = combined[k], &b = before[k];
      if (c.empty() || c.dtype() != b.dtype() || !same_axes(c, b))
        fail("associative_scan",
             "the function must combine two arrays {} {} into one like them, but returned {}",
             b.dtype(), b.axes(), c.empty() ? "none" : fmt::format("{} {}", c.dtype(), c.axes()));
      auto hidden = without_axes(c.node()->axes, c.axes());
      auto shape = with_hidden(y[k].node()->axes, hidden);
      auto piece = [&](const NamedArray& v, std::int64_t size) {
        return prim::fit(v.node(), replaced(shape, axis.name, {axis.resize(size)}));
      };
      y[k] = NamedArray(prim::concat({piece(head[k], d), piece(c, axis.size - d)}, axis));
    }
  }
  return reverse ? flipped(y) : y;
}

}  // namespace detail
}  // namespace haliax
