// chunked_reduce. f is traced once, on the whole arrays (nothing runs), between two kinds of borders: what goes in `enter`s the region, what
// comes out `leave`s it, and a cotangent enters where a value leaves. So the gradient is that of f, and forward and backward lie in one region
// when it is cut into chunks, which is here. What keeps the walked axis is made chunk by chunk; what folds it away becomes a result of a
// loop; what follows a fold stays outside, on the final value. The result is that of f by construction: means divide by the full size, a draw
// in a chunk is the slice of the full draw, and no metric depends on the chunk. An op that needs the whole axis is refused, by name.
//
// Loops are in stages: what needs a final value of one loop is in the next, which makes its chunks again. So a loss whose cotangents need no
// final value is one sweep with three contractions; one whose cotangents need all losses is two sweeps with four; a logsumexp over the walked
// axis itself streams, and its gradient is the second sweep.
#include "haliax/chunked.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "ops/prim.h"
#include "transforms/optimise.h"

namespace haliax {
namespace {

Axes resized(Axes axes, const Axis& part) {
  for (auto& a : axes) if (a.name == part.name) a.size = part.size;
  return axes;
}
bool folds_by(const Node& n, Monoid& m) {
  if (n.op == &prim::kSum || n.op == &prim::kContract || n.op == &prim::kScatter || n.op == &prim::kGather) m = Monoid::sum;
  else if (n.op == &prim::kMax) m = Monoid::max;
  else if (n.op == &prim::kMin) m = Monoid::min;
  else if (n.op == &prim::kProd) m = Monoid::prod;
  else return false;
  return true;
}
bool point_wise(const Node& n) { return n.op->kind == Kind::map || n.op == &prim::kFit || (n.op->kind == Kind::wrap && n.op != &kCustom); }
const char* const kForms[] = {"automatic", "sweep", "recompute"};

struct Region {
  Attr key;
  Axis axis;
  Nodes level;                                             // the nodes among which the region lies, inputs first
  std::unordered_set<const Node*> inside = {}, bridge = {};
  Nodes index = {};                                        // one for each body
  std::unordered_map<const Node*, Nodes> parts = {};       // a node with the axis -> its chunk, for each body
  std::unordered_map<const Node*, int> stage = {}, ready = {};   // of nodes inside: their loop; of all: the loops that must be done before
  std::map<int, Nodes> folds = {}, stacks = {};
  std::unordered_map<const Node*, NodePtr> streams = {};   // the sum of a logsumexp over the walked axis -> the wrap; its max likewise
  std::unordered_set<const Node*> streamed_max = {};

  bool walks(const NodePtr& n) const { return find(*n, axis.name) != nullptr; }
  bool is_border(const Node& n, const Op& op) const { return n.op == &op && n.attr == key; }
  [[noreturn]] void refuse(const Node& n, const std::string& why) const {
    fail_at(n.origin, "chunked_reduce", std::string(n.op->name) + " " + why + " over the walked axis " + to_string(axis));
  }

  // Everything below an `enter`, up to the leaves and the folds. Point-wise nodes between a leave and an enter are inside too: a token's
  // cotangent may be computed from its own loss.
  void find_inside() {
    std::unordered_set<const Node*> from_leave, to_enter;
    for (auto& n : level) {
      bool after = std::any_of(n->in.begin(), n->in.end(), [&](auto& x) { return x && from_leave.count(x.get()); });
      if (is_border(*n, prim::kLeave) || (after && point_wise(*n) && walks(n))) from_leave.insert(n.get());
    }
    for (auto i = level.rbegin(); i != level.rend(); ++i) {
      auto& n = *i;
      if (is_border(*n, prim::kEnter) || (to_enter.count(n.get()) && point_wise(*n)))
        for (auto& x : n->in) if (x && walks(x)) to_enter.insert(x.get());
    }
    for (auto* n : from_leave) if (to_enter.count(n)) bridge.insert(n);
    for (auto& n : level) {
      if (is_border(*n, prim::kEnter)) { inside.insert(n.get()); continue; }
      for (auto& x : n->in) {
        if (!x || !inside.count(x.get()) || !walks(x)) continue;
        bool outside = is_border(*x, prim::kLeave) && !bridge.count(n.get());
        if (!outside) inside.insert(n.get());
      }
    }
    for (auto& n : level)
      if (n->op == &prim::kLogsumexp && inside.count(n->in[1].get()) && !walks(n) && walks(n->in[1])) {
        auto top = n->in[4];
        while (top->op != &prim::kMax) top = top->in[0];
        streams[n->in[3].get()] = n;
        streamed_max.insert(top.get());
      }
  }
  NodePtr part_of(const NodePtr& n, std::size_t b) {
    if (auto known = parts.find(n.get()); known != parts.end()) return known->second[b];
    return walks(n) ? prim::slice_at(n, index[b], false) : n;
  }
  // Does it pick (or place) by index along the walked axis? Then a chunk holds what falls into it.
  bool picks(const Node& n) const { return (n.op == &prim::kGather || n.op == &prim::kScatter) && n.attr.names == Names{axis.name}; }
  // Indices counted from the start of the chunk; what lies outside becomes an index outside.
  NodePtr relative(const NodePtr& ids, std::size_t b) {
    auto number = [&](std::int64_t v) { return prim::integer(v, ids->dtype); };
    auto start = prim::cast(index[b], ids->dtype), size = number(prim::index_chunk(*index[b]));
    auto whole = prim::select(prim::less(ids, number(0)), prim::add(ids, number(axis.size)), ids);
    auto shifted = prim::sub(whole, start);
    auto inside_chunk = prim::map(prim::kBitAnd, {prim::less_equal(number(0), shifted), prim::less(shifted, size)}, DType::boolean);
    return prim::select(inside_chunk, shifted, size);
  }
  NodePtr pick_on_chunk(const NodePtr& n, std::size_t b) {
    auto ids = relative(part_of(n->in.back(), b), b);
    if (n->op == &prim::kGather) return prim::gather(part_of(n->in[0], b), {{axis.name, ids}}, n->axes, program::Outside::zero);
    return prim::scatter(part_of(n->in[0], b), part_of(n->in[1], b), {{axis.name, ids}}, program::Update(n->attr.ints[0]), false);
  }
  // A node on chunks of its operands.
  NodePtr on_chunk(const NodePtr& n, std::size_t b) {
    Axis part(axis.name, prim::index_chunk(*index[b]));
    Nodes in;
    if (picks(*n)) return pick_on_chunk(n, b);
    for (auto& x : n->in) in.push_back(part_of(x, b));
    if (is_border(*n, prim::kEnter) || is_border(*n, prim::kLeave)) return in[0];
    auto axes = resized(n->axes, part);
    if (n->op == &prim::kFit) return prim::fit(in[0], axes);
    if (n->op == &prim::kScatter && !walks(n)) in[0] = prim::zeros_like(in[0]);   // the base is the start of the fold
    auto& was = context().origin;
    auto outer = was;
    was = n->origin;
    auto out = make(*n->op, in, axes, n->dtype, n->attr);
    was = outer;
    return out;
  }
  void check_op(const NodePtr& n) const {
    auto names_it = [&] { return std::find(n->attr.names.begin(), n->attr.names.end(), axis.name) != n->attr.names.end(); };
    if (n->op == &kLoop || n->op == &kCustom || n->op == &kResult) refuse(*n, "cannot be cut into chunks");
    if (n->op == &prim::kRename && names_it()) refuse(*n, "changes the name");
    if (picks(*n)) return;
    bool along = n->op == &prim::kSlice || n->op == &prim::kPlace || n->op == &prim::kConcat || n->op == &prim::kFlatten || n->op == &prim::kUnflatten;
    if (along && names_it()) refuse(*n, "mixes positions");
    for (std::size_t k = 0; k < n->in.size(); ++k)
      if (n->in[k] && n->op->role && walks(n->in[k]) && n->op->role(*n, k, axis.name) == Role::whole) refuse(*n, "needs all positions at once");
  }
  void make_parts() {
    bool later = key.ints[2] == std::int64_t(ChunkForm::recompute);
    for (auto& n : level) {
      int before = 0;                                      // loops that must be done
      for (auto& x : n->in) {
        if (!x) continue;
        auto r = ready.find(x.get());
        int at = r == ready.end() ? 0 : r->second;
        bool same_loop = inside.count(x.get()) && inside.count(n.get()) && walks(x);
        if (same_loop) at = stage[x.get()];
        before = std::max(before, at);
      }
      if (!inside.count(n.get())) { ready[n.get()] = before; continue; }
      if (later && n->origin.backward) before = std::max(before, 1);
      check_op(n);
      Monoid m;
      if (walks(n)) {
        stage[n.get()] = before, ready[n.get()] = before + 1;
        for (std::size_t b = 0; b < index.size(); ++b) parts[n.get()].push_back(on_chunk(n, b));
        if (is_border(*n, prim::kLeave)) stacks[before].push_back(n);
      } else if (n->op == &prim::kLogsumexp) {             // a wrap: its value is there by its folds
        ready[n.get()] = before;
      } else if (auto s = streams.find(n.get()); s != streams.end()) {
        int at = stage[s->second->in[1].get()];
        folds[at].push_back(n);
        ready[n.get()] = at + 1;
      } else if (folds_by(*n, m) || finds_extreme(*n)) {
        folds[before].push_back(n);
        ready[n.get()] = before + 1;
      } else {
        refuse(*n, "is no sum, product, max or min");
      }
    }
  }
  // The running max and sum of exp(x - max), one chunk after another: results of the loop in place of the max and of the sum.
  void stream(Loop& l, Nodes& of, const NodePtr& total) {
    auto& x = streams[total.get()]->in[1];
    auto top = streams[total.get()]->in[4];
    while (top->op != &prim::kMax) top = top->in[0];
    double least = -std::numeric_limits<double>::infinity();
    auto d = total->dtype;
    auto best = prim::carry(index[0], total->axes, d), sum = prim::carry(index[0], total->axes, d);
    LoopResult rb{Fold::carry, Monoid::max, {}, prim::filled(least, d, total->axes), best}, rs{Fold::carry, Monoid::sum, {}, prim::filled(0, d, total->axes), sum};
    for (std::size_t b = 0; b < index.size(); ++b) {
      auto chunk = part_of(x, b);
      auto now = prim::max(best, prim::reduce(Monoid::max, chunk, total->axes));
      auto shift = prim::select(prim::equal(now, prim::number(least, d)), prim::number(0, d), now);
      auto more = prim::reduce(Monoid::sum, prim::exp(prim::sub(chunk, shift)), total->axes);
      rb.value.push_back(now);
      rs.value.push_back(prim::add(prim::mul(sum, prim::exp(prim::sub(best, shift))), more));
    }
    l.results.push_back(std::move(rb)), of.push_back(top);
    l.results.push_back(std::move(rs)), of.push_back(total);
  }

  static bool finds_extreme(const Node& n) { return (n.op == &prim::kArgmax || n.op == &prim::kArgmin) && n.attr.names.size() == 1; }
  // The extreme so far and where it is, one chunk after another; the first of equals wins.
  void stream_extreme(Loop& l, Nodes& of, const NodePtr& n) {
    bool largest = n->op == &prim::kArgmax;
    auto d = n->in[0]->dtype;
    auto best = prim::carry(index[0], n->axes, d), at = prim::carry(index[0], n->axes, DType::i32);
    auto first = is_float(d) ? prim::filled(largest ? -INFINITY : INFINITY, d, n->axes) : prim::slice(n->in[0], axis.name, 0, 1, 1, true);
    LoopResult rb{Fold::carry, Monoid::max, {}, first, best}, ra{Fold::carry, Monoid::max, {}, prim::filled(0, DType::i32, n->axes), at};
    for (std::size_t b = 0; b < index.size(); ++b) {
      auto chunk = part_of(n->in[0], b);
      auto value = prim::reduce(largest ? Monoid::max : Monoid::min, chunk, n->axes);
      Axis part(axis.name, prim::index_chunk(*index[b]));
      auto where = prim::add(prim::argreduce(largest, chunk, n->axes, {part}), index[b]);
      auto better = largest ? prim::less(best, value) : prim::less(value, best);
      rb.value.push_back(prim::select(better, value, best));
      ra.value.push_back(prim::select(better, where, at));
    }
    l.results.push_back(std::move(rb)), of.push_back(nullptr);
    l.results.push_back(std::move(ra)), of.push_back(n);
  }

  std::int64_t row_bytes() const {                         // of the largest value inside, for one position
    std::int64_t row = 1;
    for (auto& n : level)
      if (inside.count(n.get()) && walks(n) && !is_border(*n, prim::kEnter)) row = std::max(row, n->bytes() / std::max<std::int64_t>(1, axis.size));
    return row;
  }
  std::int64_t chunk() const {
    if (key.ints[0] > 0) return std::min(key.ints[0], axis.size);
    std::int64_t budget = key.ints[1] > 0 ? key.ints[1] : std::int64_t(32) << 20;
    std::int64_t c = std::clamp<std::int64_t>(budget / row_bytes(), 1, axis.size);
    return c >= 64 ? c / 64 * 64 : c >= 8 ? c / 8 * 8 : c;
  }

  Nodes cut(const Nodes& roots) {
    find_inside();
    auto size = chunk();
    constexpr int depth = 1 << 20;                         // below every traced loop
    index = {prim::index(axis, 0, size, depth)};
    if (auto left = axis.size % size) index.push_back(prim::index(axis, axis.size - left, left, depth));
    make_parts();
    int stages = 0;
    for (auto* list : {&folds, &stacks}) for (auto& [s, n] : *list) stages = std::max(stages, s + 1);
    bool backward = std::any_of(level.begin(), level.end(), [&](auto& n) { return inside.count(n.get()) && n->origin.backward; });
    Rewrite final_value;
    for (int s = 0; s < stages; ++s) {
      Loop l;
      l.axis = axis, l.index = index, l.save = Save::nothing;
      l.apart = s > 0 && key.ints[2] == std::int64_t(ChunkForm::recompute);
      l.form = !backward ? "forward" : stages == 1 ? "sweep" : "recompute";
      l.why = "chunks of " + std::to_string(size) + " along " + to_string(axis) + ", " + std::to_string(stages) + (stages > 1 ? " sweeps" : " sweep") + " (" +
              kForms[key.ints[2]] + ")";
      Nodes of;
      for (auto& n : folds[s]) {
        if (streams.count(n.get())) { stream(l, of, n); continue; }
        if (streamed_max.count(n.get())) continue;
        if (finds_extreme(*n)) { stream_extreme(l, of, n); continue; }
        LoopResult r{Fold::fold, Monoid::sum, {}, {}, {}};
        folds_by(*n, r.monoid);
        for (std::size_t b = 0; b < index.size(); ++b) r.value.push_back(on_chunk(n, b));
        if (n->op == &prim::kScatter && !prim::is_number(n->in[0], 0)) r.start = n->in[0];
        l.results.push_back(std::move(r)), of.push_back(n);
      }
      for (auto& n : stacks[s]) l.results.push_back({Fold::stack, Monoid::sum, parts[n.get()], {}, {}}), of.push_back(n);
      if (l.results.empty()) continue;
      for (auto& r : l.results) {
        r.value = substitute(r.value, final_value);        // what earlier loops have finished
        if (r.start) r.start = substitute(r.start, final_value);
      }
      auto loop = make_loop(std::move(l));
      for (std::size_t k = 0; k < of.size(); ++k) if (of[k]) final_value[of[k].get()] = loop_result(loop, k);
    }
    return substitute(roots, final_value);
  }
};

Nodes below(const Nodes& roots, const Node* index) {       // the nodes of one level: the top, or what varies in a body
  std::unordered_set<const Node*> seen;
  Nodes todo(roots), out;
  while (!todo.empty()) {
    auto n = std::move(todo.back());
    todo.pop_back();
    if (!n || (index && !n->varies_with(index)) || !seen.insert(n.get()).second) continue;
    for (auto& x : n->in) todo.push_back(x);
    out.push_back(std::move(n));
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a->id < b->id; });
  return out;
}
Nodes cut_level(Nodes roots, const Node* index) {
  std::vector<Attr> done;
  for (;;) {
    auto level = below(roots, index);
    auto next = std::find_if(level.begin(), level.end(), [&](auto& n) { return n->op == &prim::kEnter && std::find(done.begin(), done.end(), n->attr) == done.end(); });
    if (next == level.end()) break;
    auto key = (*next)->attr;
    done.push_back(key);
    Axis axis = *find(**next, key.names[0]);
    if (axis.size == 0) continue;
    roots = Region{key, axis, std::move(level)}.cut(roots);
  }
  Rewrite bodies;                                          // regions inside loops, those just made among them
  for (auto& n : below(roots, index)) {
    if (n->op != &kLoop) continue;
    Loop l = loop_of(*n);
    bool changed = false;
    for (std::size_t b = 0; b < l.index.size(); ++b) {
      Nodes values;
      for (auto& r : l.results) values.push_back(r.value[b]);
      auto cut = cut_level(values, l.index[b].get());
      for (std::size_t k = 0; k < cut.size(); ++k) changed |= cut[k] != values[k], l.results[k].value[b] = cut[k];
    }
    if (!changed) continue;
    auto count = l.results.size();
    auto made = make_loop(std::move(l));
    for (std::size_t k = 0; k < count; ++k) bodies[loop_result(n, k).get()] = loop_result(made, k);
  }
  return bodies.empty() ? roots : substitute(roots, bodies);
}

}  // namespace

namespace {
// What f captured whole enters like an argument, so that its cotangent leaves.
Nodes capturing(const Nodes& outs, const Attr& key) {
  std::unordered_set<const Node*> in;
  Rewrite captured;
  for (auto& n : below(outs, nullptr)) {
    bool is_in = n->op == &prim::kEnter && n->attr == key;
    for (auto& x : n->in) is_in |= x && in.count(x.get());
    if (!is_in) continue;
    in.insert(n.get());
    if (n->op == &prim::kEnter && n->attr == key) continue;
    for (auto& x : n->in)
      if (x && !in.count(x.get()) && find(*x, key.names[0]) && !is_free(x)) captured[x.get()] = prim::enter(x, key);
  }
  return captured.empty() ? outs : substitute(outs, captured);
}
}  // namespace

Nodes cut_regions(const Nodes& roots) { return cut_level(roots, nullptr); }

namespace detail {

Leaves chunked_reduce(const AxisSelection& selection, const ChunkOptions& options, const Leaves& xs, LeafFunction f, SourceLocation at) {
  Here here(at);
  Scope tracing;
  if (selection.all() || selection.items().empty()) fail("chunked_reduce", "name the axis to walk");
  if (options.chunk < 0) fail("chunked_reduce", "a chunk of " + std::to_string(options.chunk) + " positions; it must be positive");
  if (options.memory < 0) fail("chunked_reduce", "a budget of " + std::to_string(options.memory) + " bytes; it must be positive");
  struct Walked { Axis axis; Attr key; };
  std::vector<Walked> walked;
  for (auto& s : selection.items()) {
    std::int64_t size = -1;
    for (auto& x : xs) if (x && find(*x.node(), s.name)) size = x.resolve_axis(s).size;
    if (size < 0) fail("chunked_reduce", "no array has the walked axis " + std::string(s.name.text()));
    walked.push_back({Axis(s.name, size), {}});
  }
  std::int64_t inner = 1;                                  // positions that one position of an axis holds
  for (auto w = walked.rbegin(); w != walked.rend(); ++w) {
    auto chunk = options.chunk ? std::clamp<std::int64_t>(options.chunk / inner, 1, std::max<std::int64_t>(1, w->axis.size)) : 0;
    w->key = {.names = {w->axis.name}, .ints = {chunk, options.memory, std::int64_t(options.form)}};
    inner *= std::max<std::int64_t>(1, w->axis.size);
  }
  Leaves inside = xs;
  for (auto& w : walked)
    for (auto& x : inside) if (x) x = NamedArray(prim::enter(x.node(), w.key));
  auto results = f(inside);
  Nodes outs;
  for (auto& r : results) if (r) outs.push_back(r.node());
  for (auto w = walked.rbegin(); w != walked.rend(); ++w) {
    for (auto& n : outs) n = prim::leave(n, w->key);
    outs = capturing(outs, w->key);
  }
  for (auto& w : walked) {   // a mistake is found here, where it is written, not when the graph is cut
    Region check{w.key, w.axis, below(settled(outs, true), nullptr)};
    check.index = {prim::index(check.axis, 0, std::max<std::int64_t>(w.axis.size, 1), 1 << 20)};
    check.find_inside();
    check.make_parts();
    if (options.memory > 0 && options.chunk == 0 && &w == &walked.back() && check.row_bytes() > options.memory * std::max<std::int64_t>(1, inner / w.axis.size))
      fail("chunked_reduce", "one position of " + to_string(check.axis) + " needs " + std::to_string(check.row_bytes() / std::max<std::int64_t>(1, inner / w.axis.size)) +
                                 " bytes, more than the " + std::to_string(options.memory) + " allowed");
  }
  Leaves out;
  std::size_t k = 0;
  for (auto& r : results) out.push_back(r ? NamedArray(outs[k++]) : r);
  return out;
}

}  // namespace detail
}  // namespace haliax
