// chunked_reduce. f is traced once on the full arrays, without running, between two kinds of
// boundaries: inputs `enter` the region, results `leave` it, and a cotangent enters where a value
// leaves. The gradient is therefore the gradient of f, and forward and backward pass are in one
// region when the region is tiled, after differentiation. The result is the result of f by
// construction: means divide by the full size, a draw in a chunk is the slice of the full draw, and
// no metric depends on the chunk. An op that needs the full axis raises an error that names the op.
#include "transforms/chunked.h"

#include "base/name.h"
#include "graph/fail.h"
#include "ops/attr.h"
#include "ops/named.h"
#include "ops/prim.h"
#include "transforms/leaves.h"

namespace haliax {
namespace {

// Returns true if x may depend on a differentiable value: if it reads, through elementwise ops and
// views of floats, a float that is neither a constant nor an iota. Returns false for ids and masks,
// which are no floats, and for random draws, which are elementwise over integers.
bool has_gradient(NodeRef x) {
  bool found = false;
  traverse({x}, [&](NodeRef n, PendingNodes& todo) {
    if (found || !is_float(n->dtype) || prim::is_number(n) || n->op == &prim::kIota) return;
    found = n->op->kind != Kind::map && n->op->kind != Kind::view;
    append(todo, n->in);
  });
  return found;
}
constexpr int kTraced = -1;  // `after` of a call that is being traced
// Returns the name of the tiled axis in the result; empty if the result does not have it.
Name tiled_name(NodeRef result, const Attr& key) {
  return tiled_axis_names(all_nodes({result}), key)[result.get()];
}
bool has_entered(NodeRef n, const Attr& key) {
  auto below = level_of({n}, nullptr);
  return std::any_of(below.begin(), below.end(),
                     [&](auto& x) { return x->op == &prim::kEnter && x->attr == key; });
}
// Adds the boundary where a value leaves. The axis is renamed around it, so that all boundaries of
// the call have the same name of the axis. A value that is computed from captured arrays alone has
// no boundary.
NodePtr left(NodeRef n, const Attr& key) {
  if (!has_entered(n, key)) return n;
  auto axis = tiled_axis(key).name, mine = tiled_name(n, key);
  if (!mine || mine == axis) return prim::leave(n, key);
  return prim::rename(prim::leave(prim::rename(n, {mine, axis}, {axis, mine}), key), {axis, mine},
                      {mine, axis});
}
// Like enter, but outside of the boundaries of calls inside of this one.
NodePtr entered_first(NodeRef x, const Attr& key) {
  return x->op == &prim::kEnter ? prim::enter(entered_first(x->in[0], key), x->attr)
                                : prim::enter(x, key);
}
// Adds boundaries around arrays that f captured, as for arguments, so that their cotangents leave
// the region.
Nodes capturing(const Nodes& outs, const Attr& key) {
  std::unordered_set<const Node*> in;
  Rewrite seen;  // operands as seen from inside of the region
  bool any = false;
  for (auto& n : level_of(outs, nullptr)) {
    bool border = n->op == &prim::kEnter && n->attr == key;
    if (!border &&
        std::none_of(n->in.begin(), n->in.end(), [&](auto& x) { return in.count(x.get()) > 0; }))
      continue;
    in.insert(n.get());
    if (border) seen[n.get()] = n;
    for (auto& x : border ? Nodes() : n->in) {
      if (!x || in.count(x.get()) || seen.count(x.get())) continue;
      auto& as = seen[x.get()] = x->free.empty() && has_gradient(x) ? entered_first(x, key) : x;
      any |= as != x;
    }
  }
  return any ? substitute(outs, seen) : outs;
}

}  // namespace

std::unordered_map<const Node*, Name> tiled_axis_names(const Nodes& all, const Attr& key) {
  std::unordered_map<const Node*, Name> names;
  auto learn = [&](const Node& n, NodeRef x, std::size_t k) {
    auto known = names.find(x.get());
    if (known == names.end()) return;
    auto rule =
        is_loop_result(n) ? Along{Along::Way::map, known->second} : along(n, k, known->second);
    if (rule.way == Along::Way::map && has(n.axes, rule.point)) names[&n] = rule.point;
  };
  for (auto& n : all) {
    if (n->op == &prim::kLeave && n->attr == key) continue;
    if (n->op == &prim::kEnter && n->attr == key)
      names[n.get()] = tiled_axis(key).name;
    else if (is_loop_result(*n))
      learn(*n, result_of(*n).value[0], 0);
    else
      for (std::size_t k = 0; k < n->in.size(); ++k)
        if (n->in[k]) learn(*n, n->in[k], k);
  }
  return names;
}
int preceding_calls(const Nodes& x, ChunkKey call) {
  int count = 0;
  for (auto& n : level_of(x, nullptr)) {
    if (n->op != &prim::kEnter) continue;
    auto key = ChunkKey::of(n->attr);
    call.after = key.after;
    if (key.same_call(call)) count = std::max(count, key.after + 1);
  }
  return count;
}
Nodes with_boundaries(const Nodes& roots, const Nodes& level, const Node* index,
                      const std::function<bool(NodeRef)>& inside, const Attr& key) {
  Rewrite in, out;  // replacements of inside nodes for readers inside and outside
  Rewrite old;      // existing boundaries, without the new ones
  for (auto& n : level) {
    if (!inside(n)) continue;
    Nodes operands;
    bool enters = n->op == &prim::kEnter;  // the new boundary is placed after the existing one
    for (auto& x : n->in) {
      if (!x)
        operands.push_back(x);
      else if (enters && old.count(x.get()))
        operands.push_back(old.at(x.get()));
      else if (inside(x))
        operands.push_back(in.count(x.get()) ? in.at(x.get()) : x);
      else if (auto y = substitute({x}, out, index)[0]; enters || is_generated(y))
        operands.push_back(y);
      else
        operands.push_back(prim::enter(y, key));
    }
    OriginScope here(n->origin);
    auto created = operands == n->in ? n : prim::rebuilt(*n, operands, n->axes);
    if (enters) old[n.get()] = created;
    in[n.get()] = enters ? prim::enter(created, key) : created;
    out[n.get()] = prim::leave(created, key);
  }
  return substitute(roots, out, index);
}
Attr ChunkKey::attr() const {
  Attr a{.names = {axis},
         .ints = {size, depth, memory, form, keep, inside, reverse, blocks, after, scores}};
  a.names.insert(a.names.end(), tiled_axes.begin(), tiled_axes.end());
  a.ints.insert(a.ints.end(), chunks.begin(), chunks.end());
  return a;
}
ChunkKey ChunkKey::of(const Attr& a) {
  ChunkKey k;
  auto tiled = tiled_axis(a);
  k.axis = tiled.name;
  k.tiled_axes = {a.names.begin() + 1, a.names.end()};
  k.size = tiled.size;
  k.depth = int(a.ints[1]);
  k.memory = a.ints[2];
  k.form = int(a.ints[3]);
  k.keep = int(a.ints[4]);
  k.inside = int(a.ints[5]);
  k.reverse = a.ints[6] != 0;
  k.blocks = int(a.ints[7]);
  k.after = int(a.ints[8]);
  k.scores = a.ints[9] != 0;
  k.chunks = {a.ints.begin() + 10, a.ints.end()};
  return k;
}
bool ChunkKey::same_call(const ChunkKey& o) const {
  auto call = [](const ChunkKey& k) {
    return std::tie(k.depth, k.scores, k.inside, k.after, k.memory, k.form, k.keep, k.reverse,
                    k.tiled_axes, k.chunks);
  };
  return call(*this) == call(o);
}

int blocks_of(Name axis, const Mapping* mapping) {
  auto mesh = current_mesh();
  int blocks = 1;
  if (auto* to = mesh && mapping ? mapping->find(axis) : nullptr)
    for (auto& a : *to) blocks *= mesh->size(a);
  return blocks;
}

namespace {

constexpr auto op = "chunked_reduce";
void check_options(const AxisSelection& selection, const ChunkOptions& options) {
  if (selection.all() || selection.items().empty()) fail(op, "name the axis to tile");
  auto positive = [](std::int64_t chunk) {
    if (chunk <= 0) fail(op, "a chunk has {} positions; it must be positive", chunk);
  };
  if (options.chunk) positive(*options.chunk);
  if (options.memory < 0) fail(op, "memory is {} bytes; it must be positive", options.memory);
  if (options.chunk.has_value() + !options.chunks.empty() + (options.memory > 0) > 1)
    fail(op, "`chunk`, `chunks` and `memory` each specify the chunk size; use only one of them");
  auto tiled = selection.items().size();
  if (!options.chunks.empty() && options.chunks.size() != tiled)
    fail(op, "{} chunks for {} tiled axes", options.chunks.size(), tiled);
  for (auto c : options.chunks) positive(c);
}
// Returns the key with the options of the call, and the size of each tiled axis in `sizes`.
ChunkKey key_of(const AxisSelection& selection, const ChunkOptions& options, const Leaves& xs,
                std::vector<std::int64_t>& sizes) {
  ChunkKey call;
  call.memory = options.memory;
  call.form = int(options.form);
  call.keep = int(options.keep);
  call.reverse = options.reverse;
  call.depth = context().loop_depth;
  call.inside = context().chunked_calls;
  for (auto& s : selection.items()) {
    std::int64_t size = -1;
    for (auto& n : nodes_of(xs))
      if (has(n->axes, s.name)) size = ops::axis_of(op, n, s).size;
    if (size < 0)
      fail(op, "no array has the tiled axis {}{}", s.name, did_you_mean(s.name, axes_of(xs)));
    if (has(call.tiled_axes, s.name)) fail(op, "axis {} is named twice", s.name);
    call.tiled_axes.push_back(s.name);
    sizes.push_back(size);
  }
  call.chunks = options.chunks;
  if (options.chunk) {  // positions of all axes together; the last axis is filled first
    call.chunks.assign(sizes.size(), 1);
    std::int64_t inner = 1;
    for (std::size_t i = sizes.size(); i-- > 0;) {
      call.chunks[i] =
          std::clamp<std::int64_t>(*options.chunk / inner, 1, std::max<std::int64_t>(1, sizes[i]));
      inner *= std::max<std::int64_t>(1, sizes[i]);
    }
  }
  return call;
}

}  // namespace

TracedChunks trace_chunks(const AxisSelection& selection, const ChunkOptions& options,
                          const Leaves& xs, detail::LeafFunction f) {
  check_options(selection, options);
  std::vector<std::int64_t> sizes;
  auto call = key_of(selection, options, xs, sizes);
  std::vector<Attr> keys;
  Leaves arguments = xs;
  auto entered = [&] {
    keys.clear();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] <= 1) continue;  // a single position is not tiled
      call.axis = call.tiled_axes[i];
      call.size = sizes[i];
      call.blocks = blocks_of(call.axis, current_mapping().get());
      keys.push_back(call.attr());
    }
    Leaves inside = arguments;
    for (auto& k : keys) inside = mapped(inside, [&](NodeRef x) { return prim::enter(x, k); });
    return inside;
  };
  call.after = kTraced;
  const auto traced = entered();
  ++context().chunked_calls;  // if f throws, the enclosing Tracing restores the counter
  auto results = called(f, traced);
  --context().chunked_calls;
  auto outs = nodes_of(results);
  // Arrays that f captured also determine which regions precede this one.
  call.after = preceding_calls(outs, call);
  // A region has one place in the graph. In an enclosing loop, tiled arguments must vary with the
  // loop if anything in the call does.
  for (auto& n : topological(outs)) {
    auto varies = [&](auto& o) { return o->varies_with(n.get()); };
    if (n->op != &prim::kIndex || std::none_of(outs.begin(), outs.end(), varies)) continue;
    arguments = mapped(arguments, [&](NodeRef x) {
      bool is_tiled = std::any_of(call.tiled_axes.begin(), call.tiled_axes.end(),
                                  [&](Name a) { return has(x->axes, a); });
      return is_tiled && !varies(x) ? prim::barrier(x, n) : x;
    });
  }
  const auto inside = entered();
  Rewrite known;
  for (std::size_t i = 0; i < inside.size(); ++i)
    if (inside[i].node() != traced[i].node()) known[traced[i].node().get()] = inside[i].node();
  outs = substitute(outs, known);
  for (auto k = keys.rbegin(); k != keys.rend(); ++k) {
    for (auto& n : outs) n = left(n, *k);
    outs = capturing(outs, *k);
  }
  if (options.form == ChunkForm::recompute)  // the gradient is a separate pass over the chunks
    for (auto& n : outs) n = prim::gradient_barrier(n);
  auto next = outs.begin();
  results = mapped(results, [&](NodeRef) { return *next++; });
  return {results, outs, call, keys};
}

}  // namespace haliax
