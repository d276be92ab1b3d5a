// Copies the regions of one call into a graph of their own, for trials.
#include "compile/chunk/isolated_subgraph.h"

#include <algorithm>
#include <functional>

#include "ops/prim.h"
#include "program/program.h"

namespace haliax {
namespace {

using Set = std::unordered_set<const Node*>;

// A value between regions, in[0], and the values that it waits for, in[1...]. A barrier would be
// lost while a region is tiled, since its value is computed on each tile without the dependency.
const Op kBetween{.name = "between", .kind = Kind::step};

// Returns the nodes that some of these nodes read, directly or transitively.
Set read_by(const Nodes& level, const Set& some) {
  Set out;
  for (auto i = level.rbegin(); i != level.rend(); ++i)
    if (some.count(i->get()) || out.count(i->get()))
      for (auto& x : (*i)->in)
        if (x) out.insert(x.get());
  return out;
}

// Returns the nodes of the subgraph. with_between: also nodes that are computed from the regions
// and that the regions read.
Set subgraph_nodes(const Nodes& level, const Regions& regions, bool with_between) {
  Set own, indices;
  for (auto& n : level)
    if (regions.contain(n)) own.insert(n.get());
  if (with_between) {
    const auto before = read_by(level, own);
    auto after = own;
    for (auto& n : level) {
      if (reads(*n, after)) after.insert(n.get());
      if (after.count(n.get()) && before.count(n.get())) own.insert(n.get());
    }
  }
  for (bool more = true; more;) {  // bodies of their loops, and of nested loops
    more = false;
    for (auto& n : level) {
      if (varies_with(*n, indices)) own.insert(n.get());
      if (n->op == &kLoop && own.count(n.get()))
        for (auto& i : loop_of(*n).index) more |= indices.insert(i.get()).second;
    }
  }
  return own;
}

struct OutsideNodes {
  // From a node to the values of the subgraph that it is computed from.
  std::unordered_map<const Node*, Nodes> from;
  // Values of the subgraph with a reader on which no node of the subgraph depends.
  Set exits;
};
OutsideNodes outside_nodes(const Nodes& level, const Set& own) {
  OutsideNodes out;
  Set bodies;  // indices of the level's loops
  for (auto& n : level)
    if (n->op == &kLoop)
      for (auto& i : loop_of(*n).index) bodies.insert(i.get());
  const auto before = read_by(level, own);
  for (auto& n : level) {
    if (own.count(n.get())) continue;
    auto add = [&](const NodePtr& x) {
      auto& list = out.from[n.get()];
      if (!holds(list, x)) list.push_back(x);
    };
    // Nodes of a body have no effect on exits, since the loop has the same operands.
    const bool is_after = !before.count(n.get()) && !varies_with(*n, bodies);
    for (auto& x : n->in) {
      if (!x) continue;
      if (own.count(x.get())) {
        add(x);
        if (is_after) out.exits.insert(x.get());
      } else if (auto its = out.from.find(x.get()); its != out.from.end()) {
        for (auto& y : Nodes(its->second)) add(y);
      }
    }
  }
  return out;
}

}  // namespace

Nodes with_barriers(const Nodes& roots) {
  Rewrite to;
  for (auto& n : all_nodes(roots)) {
    if (n->op != &kBetween) continue;
    auto in = substitute(n->in, to);
    auto x = in[0];
    for (std::size_t k = 1; k < in.size(); ++k) x = prim::barrier(x, in[k]);
    to[n.get()] = x;
  }
  return to.empty() ? roots : substitute(roots, to);
}

IsolatedSubgraph isolated(const Nodes& roots, const Nodes& level, const Regions& regions,
                          bool of_scores) {
  const auto own = subgraph_nodes(level, regions, !of_scores);
  const auto others = outside_nodes(level, own);
  IsolatedSubgraph out;
  Rewrite to;
  std::function<void(const NodePtr&)> read = [&](const NodePtr& x) {
    if (!x || own.count(x.get()) || to.count(x.get())) return;
    for (auto* f : x->free)  // index of an enclosing loop: any iteration is representative
      if (f->op == &prim::kIndex) to[f] = prim::integer(0, f->dtype);
    if (is_generated(x)) return;
    auto between = others.from.find(x.get());
    const bool is_between = between != others.from.end();
    if (!is_between && std::any_of(regions.list.begin(), regions.list.end(),
                                   [&](auto& r) { return r.is_expanded(x); })) {
      for (auto& i : x->in) read(i);
      return;
    }
    auto value = out.inputs.emplace_back(prim::input(x->axes, x->dtype));
    if (is_between) {
      auto in = substitute(between->second, to);
      in.insert(in.begin(), value);
      value = make(kBetween, std::move(in), x->axes, x->dtype);
    } else {
      out.input_bytes += x->bytes();
    }
    to[x.get()] = x->op == &prim::kEnter ? prim::enter(value, x->attr) : value;
  };
  for (auto& n : level) {
    if (!own.count(n.get())) continue;
    for (auto& x : n->in) read(x);
    if (n->op != &kLoop) continue;
    for (auto& r : loop_of(*n).results) {
      for (auto& v : r.value) read(v);
      read(r.start);
    }
  }
  Set last;
  for (auto& r : roots) last.insert(r.get());
  Nodes root_nodes;
  for (auto& n : level) {
    if (!own.count(n.get()) || n->op == &kLoop ||
        !(others.exits.count(n.get()) || last.count(n.get())))
      continue;
    root_nodes.push_back(n);
    auto of = [&](const NodePtr& x) { return is_float(x->dtype) && same_set(x->axes, n->axes); };
    if (last.count(n.get()) || std::any_of(out.inputs.begin(), out.inputs.end(), of)) continue;
    out.root_bytes += program::aligned(n->bytes());
  }
  out.roots = substitute(root_nodes, to);
  return out;
}

}  // namespace haliax
