// chunked_reduce. f is traced once on the whole arrays (nothing runs), and the graph is cut into chunks afterwards: what keeps the walked
// axis is made chunk by chunk, what folds it away becomes a result of the loop, and what follows a fold stays outside, on the final value.
// So the result is that of f on the whole arrays by construction: means divide by the full size, a random draw in a chunk is the slice of
// the full draw, and no metric can depend on the chunk. Only an op that needs all of the axis at once is refused, by name.
#include <algorithm>
#include <map>

#include "haliax/chunked.h"
#include "ops/prim.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

Axes resized(Axes axes, const Axis& part) {
  for (auto& a : axes) if (a.name == part.name) a.size = part.size;
  return axes;
}
bool folds_by(const Node& n, Monoid& m) {
  if (n.op == &prim::kSum || n.op == &prim::kContract || n.op == &prim::kScatter) m = Monoid::sum;
  else if (n.op == &prim::kMax) m = Monoid::max;
  else if (n.op == &prim::kMin) m = Monoid::min;
  else if (n.op == &prim::kProd) m = Monoid::prod;
  else return false;
  return true;
}

struct Cut {
  const Axis& axis;
  Nodes index;                                             // one for each body
  const Nodes& roots;
  std::unordered_set<const Node*> chunked = {};            // nodes below the stand-ins
  std::unordered_map<const Node*, Nodes> parts = {};       // node with the axis -> its chunk, for each body
  std::unordered_map<const Node*, int> stage = {};         // a fold's final value is there after the loop of its stage
  std::map<int, std::vector<NodePtr>> folds = {};
  Rewrite final_value = {};

  bool walks(const NodePtr& n) const { return find(*n, axis.name) != nullptr; }
  [[noreturn]] void refuse(const Node& n, const std::string& why) const {
    fail_at(n.origin, "chunked_reduce", std::string(n.op->name) + " " + why + " over the walked axis " + to_string(axis));
  }
  NodePtr part_of(const NodePtr& n, std::size_t b) {
    if (auto known = parts.find(n.get()); known != parts.end()) return known->second[b];
    return walks(n) ? prim::slice_at(n, index[b], false) : n;
  }
  // A node on chunks of its operands.
  NodePtr on_chunk(const NodePtr& n, std::size_t b) {
    Axis part(axis.name, prim::index_chunk(*index[b]));
    Nodes in;
    for (auto& x : n->in) in.push_back(part_of(x, b));
    auto axes = resized(n->axes, part);
    if (n->op == &prim::kFit) return prim::fit(in[0], axes);
    if (n->op == &prim::kScatter) in[0] = prim::is_number(n->in[0], 0) ? in[0] : prim::zeros_like(in[0]);
    auto& was = context().origin;
    auto outer = was;
    was = n->origin;
    auto out = make(*n->op, in, axes, n->dtype, n->attr);
    was = outer;
    return out;
  }
  void check_op(const NodePtr& n) const {
    if (n->op == &kLoop || n->op == &kCustom || n->op == &kResult) refuse(*n, "cannot be cut into chunks");
    if (n->op == &prim::kRename && std::find(n->attr.names.begin(), n->attr.names.end(), axis.name) != n->attr.names.end()) refuse(*n, "changes the name");
    bool along = n->op == &prim::kSlice || n->op == &prim::kPlace || n->op == &prim::kConcat || n->op == &prim::kFlatten || n->op == &prim::kUnflatten;
    if (along && std::find(n->attr.names.begin(), n->attr.names.end(), axis.name) != n->attr.names.end()) refuse(*n, "mixes positions");
    for (std::size_t k = 0; k < n->in.size(); ++k)
      if (n->op->role && walks(n->in[k]) && n->op->role(*n, k, axis.name) == Role::whole) refuse(*n, "needs all positions at once");
  }
  // Nodes that share a loop: a loop's body may use the final values of loops before it.
  void run() {
    for (auto& n : topological(roots)) {
      if (!chunked.count(n.get()) || parts.count(n.get()) || n->op == &prim::kTracer) continue;
      int at = 0;
      bool any = false;
      for (auto& x : n->in) {
        auto s = stage.find(x.get());
        at = std::max(at, s == stage.end() ? 0 : s->second);
        any |= walks(x);
      }
      if (!any) {                                          // after a fold: outside, on final values
        stage[n.get()] = at;
        continue;
      }
      check_op(n);
      Monoid m;
      if (walks(n)) {
        stage[n.get()] = at;
        Nodes mine;
        for (std::size_t b = 0; b < index.size(); ++b) mine.push_back(on_chunk(n, b));
        parts[n.get()] = mine;
      } else if (folds_by(*n, m)) {
        folds[at].push_back(n);
        stage[n.get()] = at + 1;
      } else {
        refuse(*n, "is no sum, product, max or min");
      }
    }
  }
};

std::int64_t chunk_for(const Nodes& outs, const std::unordered_set<const Node*>& chunked, const Axis& axis, const ChunkOptions& o) {
  if (o.chunk < 0) fail("chunked_reduce", "a chunk of " + std::to_string(o.chunk) + " positions; it must be positive");
  if (o.chunk > 0) return std::min(o.chunk, axis.size);
  std::int64_t row = 1;                                    // bytes of the largest value, for one position
  for (auto& n : topological(outs))
    if (chunked.count(n.get()) && find(*n, axis.name) && n->op->kind != Kind::leaf) row = std::max(row, n->bytes() / std::max<std::int64_t>(1, axis.size));
  std::int64_t budget = o.memory > 0 ? o.memory : std::int64_t(32) << 20;
  if (o.memory > 0 && budget < row) fail("chunked_reduce", "one position of " + to_string(axis) + " needs " + std::to_string(row) + " bytes, more than the " + std::to_string(o.memory) + " allowed");
  std::int64_t chunk = std::clamp<std::int64_t>(budget / row, 1, axis.size);
  if (chunk >= 64) chunk = chunk / 64 * 64;
  else if (chunk >= 8) chunk = chunk / 8 * 8;
  return chunk;
}

}  // namespace

namespace detail {

Leaves chunked_reduce(const AxisSelector& selector, const ChunkOptions& options, const Leaves& xs, LeafFunction f, SourceLocation at) {
  Here here(at);
  Scope tracing;
  std::int64_t size = -1;
  for (auto& x : xs) if (x && find(*x.node(), selector.name)) size = x.resolve_axis(selector).size;
  if (size < 0) fail("chunked_reduce", "no array has the walked axis " + std::string(selector.name.text()));
  Axis axis(selector.name, size);
  Leaves inside;
  std::unordered_set<const Node*> stands;
  Cut cut{axis, {}, {}};
  for (auto& x : xs) {
    bool mapped = x && find(*x.node(), axis.name);
    inside.push_back(mapped ? NamedArray(prim::tracer(x.node())) : x);
    if (mapped) stands.insert(inside.back().node().get());
  }
  auto results = f(inside);
  Nodes outs;
  for (auto& r : results) if (r) outs.push_back(r.node());
  auto depends = dependents(outs, stands);
  auto chunk = chunk_for(outs, depends, axis, options);
  if (size == 0) return results;

  auto& depth = context().loop_depth;
  Nodes index{prim::index(axis, 0, chunk, depth)};
  if (auto left = size % chunk) index.push_back(prim::index(axis, size - left, left, depth));
  Cut c{axis, index, outs};
  c.chunked = depends;
  for (auto& s : inside)
    if (s && stands.count(s.node().get()))
      for (auto& i : index) c.parts[s.node().get()].push_back(prim::slice_at(s.node()->in[0], i, false));
  c.run();

  int stages = 0;
  for (auto& [s, list] : c.folds) stages = std::max(stages, s + 1);
  for (auto& n : outs) if (c.parts.count(n.get())) stages = std::max(stages, c.stage[n.get()] + 1);
  Rewrite final_value;
  for (int s = 0; s < stages; ++s) {
    Loop l;
    l.axis = axis, l.index = index, l.save = Save::nothing;
    l.why = "chunk of " + std::to_string(chunk) + " along " + to_string(axis);
    Nodes of;
    for (auto& n : c.folds[s]) {
      LoopResult r{Fold::fold, Monoid::sum, {}};
      folds_by(*n, r.monoid);
      for (std::size_t b = 0; b < index.size(); ++b) r.value.push_back(c.on_chunk(n, b));
      if (n->op == &prim::kScatter && !prim::is_number(n->in[0], 0)) r.start = n->in[0];
      l.results.push_back(std::move(r)), of.push_back(n);
    }
    for (auto& n : outs)
      if (c.parts.count(n.get()) && c.stage[n.get()] == s) l.results.push_back({Fold::stack, Monoid::sum, c.parts[n.get()], {}, {}}), of.push_back(n);
    if (l.results.empty()) continue;
    for (auto& r : l.results) {
      r.value = substitute(r.value, final_value);          // what earlier loops have finished
      if (r.start) r.start = substitute(r.start, final_value);
    }
    auto loop = make_loop(std::move(l));
    for (std::size_t k = 0; k < of.size(); ++k) final_value[of[k].get()] = loop_result(loop, k);
  }
  Leaves out;
  for (auto& r : results) out.push_back(r ? NamedArray(substitute(r.node(), final_value)) : r);
  return out;
}

}  // namespace detail
}  // namespace haliax
