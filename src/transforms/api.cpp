// The transforms on leaves: what the templates of haliax/transforms.h call.
#include <algorithm>
#include <cmath>

#include "base/name.h"
#include "haliax/transforms.h"
#include "ops/prim.h"
#include "transforms/gradient_names.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

Axes with_hidden(const Axes& axes, const Axes& hidden) {
  Axes out;
  for (auto& h : hidden) if (!has(axes, h.name)) out.push_back(h);
  out.insert(out.end(), axes.begin(), axes.end());
  return out;
}
// The same axes, in any order, of those that users see?
bool same_axes(const NamedArray& a, const NamedArray& b) {
  auto x = a.axes(), y = b.axes();
  return x.size() == y.size() &&
         std::all_of(x.begin(), x.end(), [&](auto& v) { return std::find(y.begin(), y.end(), v) != y.end(); });
}
// The path of a leaf that a gradient is taken by: that of the argument of jit which it is, or was before it was cast or updated; else
// that in its own tree.
Name path_of(const NodePtr& leaf, const std::string& path) {
  for (auto n = leaf; n;) {
    if ((n->op == &prim::kTracer || n->op == &prim::kInput) && n->origin.module) return n->origin.module;
    bool goes_on = n->op->kind == Kind::map || n->op->kind == Kind::view || n->op->kind == Kind::wrap;
    auto from = std::find_if(n->in.begin(), n->in.end(), [&](auto& x) { return x && x->size() == n->size(); });
    n = goes_on && from != n->in.end() ? *from : nullptr;
  }
  return path.empty() ? leaf->origin.module : module_path(path);
}
// A leaf that stands for x while a function is traced.
NodePtr stand_in(const NodePtr& x) { return x ? prim::input(x->axes, x->dtype, x->origin.module) : x; }

// Nodes below the roots that do not depend on the inputs: what a function captured.
Nodes captured(const Nodes& roots, const Nodes& inputs) {
  std::unordered_set<const Node*> goals, seen;
  for (auto& n : inputs) if (n) goals.insert(n.get());
  auto depends = dependents(roots, goals);
  Nodes out, todo(roots);
  std::erase(todo, nullptr);
  while (!todo.empty()) {
    auto n = todo.back();
    todo.pop_back();
    if (goals.count(n.get()) || !seen.insert(n.get()).second) continue;
    if (!depends.count(n.get())) {
      if (is_float(n->dtype) && !is_free(n)) out.push_back(n);
      continue;
    }
    for (auto& x : n->in) if (x) todo.push_back(x);
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a->id < b->id; });
  return out;
}

struct Checkpointed : Custom {
  Nodes outs, inputs;   // the trace: results, in terms of stand-ins and what was captured
  Nodes backward(const Nodes& operands, const Nodes& gs) const override {
    Nodes again;
    Rewrite to;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      again.push_back(prim::barrier(operands[results + k], gs[0]));   // not before the cotangent is there
      to[inputs[k].get()] = again.back();
    }
    return vjp(substitute(outs, to), gs, again);
  }
};
struct ByHand : Custom {
  std::shared_ptr<void> self;
  Leaves (*call)(void*, const Leaves&, const Leaves&, const Leaves&);
  std::vector<bool> given_in, given_out;   // which leaves are there
  Nodes backward(const Nodes& operands, const Nodes& gs) const override {
    Leaves in, out, g;
    std::size_t at = 0, gat = 0;
    for (bool there : given_out) {
      out.push_back(there ? NamedArray(operands[at++]) : NamedArray());
      g.push_back(there ? NamedArray(gs[gat++]) : NamedArray());
    }
    for (bool there : given_in) in.push_back(there ? NamedArray(operands[at++]) : NamedArray());
    auto back = call(self.get(), in, out, g);
    if (back.size() != given_in.size()) fail("custom_vjp", "the backward gave " + std::to_string(back.size()) + " arrays for " + std::to_string(given_in.size()) + " arguments");
    Nodes result;
    for (std::size_t k = 0; k < back.size(); ++k) {
      if (!given_in[k]) continue;
      if (!back[k].empty() && !same_axes(back[k], in[k]))
        fail("custom_vjp", "the cotangent of argument array " + std::to_string(k) + " is " + to_string(back[k].axes()) +
                               ", and the array is " + to_string(in[k].axes()));
      result.push_back(back[k].node());
    }
    return result;
  }
};

}  // namespace

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

// An exception may end a trace anywhere: what has changed since (axes that vmap hides, whose node is made) is as before when the scope ends.
static thread_local std::vector<Context> before;
Scope::Scope() {
  before.push_back(context());
  ++context().tracing;
}
Scope::~Scope() {
  context() = std::move(before.back());
  before.pop_back();
}

Leaves tracers(const Leaves& leaves, const std::vector<bool>& frozen, const std::vector<std::string>& paths) {
  Leaves out = leaves;
  for (std::size_t k = 0; k < out.size(); ++k) {
    auto& n = leaves[k].node();
    if (!n || frozen[k] || !is_float(n->dtype)) continue;
    // Inside vmap each position has a gradient of its own, also by what is shared.
    auto path = path_of(n, paths[k]);
    if (auto& noted = context().gradients) noted->take_by(path);
    out[k] = NamedArray(prim::tracer(prim::fit(n, with_hidden(n->axes, context().hidden)), path));
  }
  return out;
}

Leaves pullback(const Leaves& ys, const Leaves& gs, const Leaves& wrt, SourceLocation at) {
  Here here(at);
  if (ys.size() != gs.size())
    fail("vjp", "the result has " + std::to_string(ys.size()) + " arrays and its cotangent " + std::to_string(gs.size()));
  Nodes y, g, x;
  for (std::size_t k = 0; k < ys.size(); ++k) {
    if (ys[k].empty() || gs[k].empty()) continue;
    if (!same_axes(ys[k], gs[k]))
      fail("vjp", "a cotangent is " + to_string(gs[k].axes()) + " and its array " + to_string(ys[k].axes()));
    y.push_back(ys[k].node()), g.push_back(gs[k].node());
  }
  for (auto& a : wrt) if (!a.empty() && a.node()->op == &prim::kTracer) x.push_back(a.node());
  auto d = vjp(y, g, x);
  Leaves out;
  std::size_t next = 0;
  for (auto& a : wrt) {
    if (a.empty() || a.node()->op != &prim::kTracer) { out.emplace_back(); continue; }
    auto& found = d[next++];
    out.push_back(NamedArray(found ? found : prim::zeros_like(a.node())));
  }
  return out;
}
Leaves gradients(const NamedArray& loss, const Leaves& wrt, SourceLocation at) {
  Here here(at);
  if (loss.empty()) fail("grad", "the function gave no array");
  if (loss.ndim() != 0) fail("grad", "only a 0-d array has a gradient; the function gave " + to_string(loss.axes()) + "; sum or mean it, or differentiate under vmap");
  if (!is_float(loss.dtype())) fail("grad", "the function gave dtype " + std::string(name_of(loss.dtype())) + ", which has no gradient");
  auto& n = loss.node();
  return pullback({loss}, {NamedArray(prim::filled(1, n->dtype, n->axes))}, wrt, at);
}

std::pair<Leaves, Leaves> jvp(LeafFunction f, const Leaves& primals, const Leaves& tangents, SourceLocation at) {
  Here here(at);
  Scope tracing;
  if (primals.size() != tangents.size()) fail("jvp", "there are " + std::to_string(primals.size()) + " arrays and " + std::to_string(tangents.size()) + " tangents");
  auto x = tracers(primals, std::vector<bool>(primals.size()), std::vector<std::string>(primals.size()));
  auto ys = f(x);
  Nodes us, y, wrt, ts;
  for (auto& a : ys)
    if (!a.empty() && is_float(a.dtype())) y.push_back(a.node()), us.push_back(prim::input(a.node()->axes, a.dtype()));
  for (std::size_t k = 0; k < x.size(); ++k) {
    if (x[k].empty() || x[k].node()->op != &prim::kTracer) continue;
    wrt.push_back(x[k].node());
    if (!tangents[k].empty() && !same_axes(tangents[k], x[k]))
      fail("jvp", "a tangent is " + to_string(tangents[k].axes()) + " and its array " + to_string(x[k].axes()));
    auto t = tangents[k].empty() ? prim::zeros_like(wrt.back()) : tangents[k].node();
    ts.push_back(prim::fit(t, wrt.back()->axes));
  }
  auto g = vjp(y, us, wrt);
  Nodes gg, tt;
  for (std::size_t k = 0; k < g.size(); ++k) if (g[k]) gg.push_back(g[k]), tt.push_back(ts[k]);
  auto d = vjp(gg, tt, us);
  Rewrite gone;   // linear in the cotangents: their values do not matter where they are left
  for (auto& u : us) gone[u.get()] = prim::zeros_like(u);
  d = substitute(d, gone);
  Leaves out;
  std::size_t k = 0;
  for (auto& a : ys) {
    if (a.empty() || !is_float(a.dtype())) { out.emplace_back(); continue; }
    out.push_back(NamedArray(d[k] ? d[k] : prim::zeros_like(a.node())));
    ++k;
  }
  return {ys, out};
}

// ---- vmap ----
Vmap::Vmap(const AxisSelector& a, SourceLocation where) : axis(a), at(where), hidden(fresh_hidden(a.name)), size(a.size) {}
Leaves Vmap::hide(const Leaves& in) {
  Here here(at);
  Leaves out = in;
  for (auto& a : out) {
    if (a.empty()) continue;
    auto* mine = find(*a.node(), axis.name);
    if (!mine) continue;
    if (size >= 0 && mine->size != size) fail("vmap", "axis " + std::string(axis.name.text()) + " has size " + std::to_string(mine->size) + " in " + to_string(a.axes()) + " and " + std::to_string(size) + " elsewhere");
    size = mine->size;
    a = NamedArray(prim::rename(a.node(), {axis.name}, {hidden}));
  }
  if (size < 0) fail("vmap", "no argument has axis " + std::string(axis.name.text()) + "; give an Axis with its size to map over a new one");
  context().hidden.push_back(Axis(hidden, size));
  return out;
}
Leaves Vmap::show(const Leaves& in) {
  Here here(at);
  Leaves out = in;
  for (auto& a : out) {
    if (a.empty()) continue;
    if (find(*a.node(), axis.name)) fail("vmap", "the result has axis " + std::string(axis.name.text()) + " already: " + to_string(a.axes()));
    Axes others, front;
    for (auto& x : a.node()->axes) {
      if (x.name == hidden) continue;
      (x.name.hidden() ? front : others).push_back(x);
    }
    front.push_back(Axis(hidden, size));
    front.insert(front.end(), others.begin(), others.end());
    a = NamedArray(prim::rename(prim::fit(a.node(), front), {hidden}, {axis.name}));
  }
  return out;
}

// ---- checkpoint, custom gradients, shapes ----
Leaves checkpoint(LeafFunction f, const Leaves& in) {
  Scope tracing;
  auto c = std::make_shared<Checkpointed>();
  Leaves inside;
  Nodes given;
  Rewrite to;
  for (auto& a : in) {
    auto s = stand_in(a.node());
    inside.push_back(s ? NamedArray(s) : a);
    if (s) c->inputs.push_back(s), given.push_back(a.node()), to[s.get()] = a.node();
  }
  auto traced = f(inside);
  for (auto& a : traced) if (!a.empty()) c->outs.push_back(a.node());
  c->results = c->outs.size();
  for (auto& n : captured(c->outs, c->inputs)) c->inputs.push_back(n), given.push_back(n);
  Nodes operands = substitute(c->outs, to);
  operands.insert(operands.end(), given.begin(), given.end());
  auto node = make_custom(operands, c);
  Leaves out;
  std::size_t k = 0;
  for (auto& a : traced) out.push_back(a.empty() ? a : NamedArray(custom_result(node, k++)));
  return out;
}
Leaves custom_vjp(LeafFunction forward, const Leaves& in, std::shared_ptr<void> self, Leaves (*call)(void*, const Leaves&, const Leaves&, const Leaves&)) {
  Scope tracing;
  auto c = std::make_shared<ByHand>();
  c->self = std::move(self), c->call = call;
  auto outs = forward(in);
  Nodes operands;
  for (auto& a : outs) c->given_out.push_back(!a.empty()), c->results += !a.empty();
  for (auto& a : outs) if (!a.empty()) operands.push_back(a.node());
  for (auto& a : in) {
    c->given_in.push_back(!a.empty());
    if (!a.empty()) operands.push_back(a.node());
  }
  auto node = make_custom(operands, c);
  Leaves out;
  std::size_t k = 0;
  for (auto& a : outs) out.push_back(a.empty() ? a : NamedArray(custom_result(node, k++)));
  return out;
}
Leaves eval_shape(LeafFunction f, const Leaves& in) {
  Scope tracing;
  Leaves inside;
  for (auto& a : in) inside.push_back(a.empty() ? a : NamedArray(stand_in(a.node())));
  Leaves out;
  for (auto& a : f(inside)) out.push_back(a.empty() ? a : NamedArray(prim::input(a.node()->axes, a.dtype())));
  return out;
}

// ---- scan ----
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

}  // namespace

std::pair<Leaves, Leaves> scan(const AxisSelector& selector, const ScanOptions& options, const Leaves& init, const std::vector<std::string>& paths,
                               const Leaves& xs, BodyFunction f) {
  Here here(options.at);
  Scope tracing;
  if (options.unroll < 1) fail("scan", "unroll must be at least 1; got " + std::to_string(options.unroll));
  std::int64_t size = selector.size;
  for (std::size_t k = 0; k < xs.size(); ++k) {
    auto* mine = xs[k].empty() ? nullptr : find(*xs[k].node(), selector.name);
    if (!mine) continue;
    if (size >= 0 && mine->size != size)
      fail("scan", "axis " + std::string(selector.name.text()) + " has size " + std::to_string(mine->size) + " in argument array " + std::to_string(k) + " " +
                       to_string(xs[k].axes()) + " and " + std::to_string(size) + " elsewhere");
    size = mine->size;
  }
  if (size < 0) {
    Axes seen;
    for (auto& x : xs) if (!x.empty()) for (auto& a : x.axes()) if (!has(seen, a.name)) seen.push_back(a);
    fail("scan", "no argument has axis " + std::string(selector.name.text()) + "; give an Axis with its size" + did_you_mean(selector.name, seen));
  }
  Axis axis(selector.name, size);
  auto slices = [&](const NodePtr& index, std::int64_t at) {
    Leaves out;
    for (auto& x : xs) {
      bool mapped = !x.empty() && find(*x.node(), axis.name);
      out.push_back(!mapped ? x : NamedArray(index ? prim::slice_at(x.node(), index, true) : prim::slice(x.node(), axis.name, at, 1, 1, true)));
    }
    return out;
  };

  if (options.checkpoint.policy == ScanCheckpoint::Policy::nested && size > 3) {
    std::int64_t outer = std::int64_t(std::sqrt(double(size)));
    while (size % outer) --outer;
    if (outer > 1) {   // blocks of positions, each of which makes its inside again
      auto around = options, inside = options;
      around.checkpoint = inside.checkpoint = true, around.unroll = 1;
      return scan_blocks(axis, outer, around, inside, init, paths, xs, f);
    }
  }
  if (options.unroll > 1 &&
      options.unroll < size) {  // a loop over blocks, whose inside is no loop; then the positions that are left
    auto left = size % options.unroll, whole = size - left;
    auto part = [&](std::int64_t from, std::int64_t n) {
      Leaves out;
      for (auto& x : xs)
        out.push_back(!x.empty() && find(*x.node(), axis.name) ? NamedArray(prim::slice(x.node(), axis.name, from, n)) : x);
      return out;
    };
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

  if (options.unroll >= size && size > 0) {
    Leaves carry = init;
    std::vector<Nodes> out;
    std::size_t count = 0;
    for (std::int64_t i = 0; i < size; ++i) {
      auto at = options.reverse ? size - 1 - i : i;
      Leaves next, y;
      f.call(f.self, carry, slices(nullptr, at), next, y);
      check_carry(init, next, paths);
      carry = next, count = y.size();
      out.resize(count, Nodes(std::size_t(size)));
      for (std::size_t k = 0; k < count; ++k) out[k][std::size_t(at)] = y[k].node();
    }
    Leaves ys;
    for (auto& values : out) ys.push_back(values[0] ? stacked(values, axis)[0] : NamedArray());
    return {carry, ys};
  }

  auto& c = context();
  auto index = prim::index(axis, 0, 1, c.loop_depth);
  struct Deeper { Deeper() { ++context().loop_depth; } ~Deeper() { --context().loop_depth; } };
  Leaves start = init;
  for (int attempt = 0;; ++attempt) {
    Leaves carry, next, y;
    for (auto& a : start) carry.push_back(a.empty() ? a : NamedArray(prim::carry(index, a.node()->axes, a.dtype())));
    {
      Deeper deeper;
      f.call(f.self, carry, slices(index, 0), next, y);
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
