// Traversal and substitution of graphs, loop bodies included.
#include "transforms/rewrite.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {
bool reads(const Node& n, const std::unordered_set<const Node*>& some) {
  return std::any_of(n.in.begin(), n.in.end(),
                     [&](auto& x) { return x && some.count(x.get()) > 0; });
}
bool varies_with(const Node& n, const std::unordered_set<const Node*>& some) {
  return std::any_of(n.free.begin(), n.free.end(), [&](auto* i) { return some.count(i) > 0; });
}
// Calls f for each operand of a node. For a loop, also for the values and carries of its bodies.
template <class F> static void each_read(const Node& n, const F& f) {
  for (auto& x : n.in)
    if (x) f(x);
  if (n.op != &kLoop) return;
  for (auto& r : loop_of(n).results) {
    for (auto& v : r.value) f(v);
    if (r.carry) f(r.carry);
  }
}
Nodes reads_of(const Node& n) {
  Nodes out;
  each_read(n, [&](NodeRef x) { out.push_back(x); });
  return out;
}
void add_reads(NodeRef n, PendingNodes& todo) {
  each_read(*n, [&](NodeRef x) { todo.push_back(&x); });
}

bool is_region_boundary(const Node& n) { return n.op == &prim::kEnter || n.op == &prim::kLeave; }
std::unordered_set<const Node*> inside_regions(const Nodes& all) {
  std::unordered_set<const Node*> out;
  for (auto& n : all) {
    bool in = n->op == &prim::kEnter;
    for (auto& x : n->in) in |= x && x->op != &prim::kLeave && out.count(x.get());
    if (in) out.insert(n.get());
  }
  return out;
}

// Returns the nodes below the roots for which `filter` is true and that are reachable through nodes
// for which it is true. Loop bodies are included; inputs come first.
template <class Filter> static Nodes requested_below(const Nodes& roots, const Filter& filter) {
  std::vector<std::pair<std::uint64_t, const NodePtr*>> found;  // with their age
  traverse(roots, filter, [&](NodeRef n, PendingNodes& todo) {
    found.push_back({n->id, &n});
    add_reads(n, todo);
  });
  std::sort(found.begin(), found.end());
  Nodes out;
  out.reserve(found.size());
  for (auto& [age, n] : found) out.push_back(*n);
  return out;
}
std::int64_t node_count(const Nodes& roots) {
  std::int64_t count = 0;
  traverse(roots, [&](NodeRef n, PendingNodes& todo) {
    ++count;
    add_reads(n, todo);
  });
  return count;
}
Nodes all_nodes(const Nodes& roots) {
  return requested_below(roots, [](const Node&) { return true; });
}

std::unordered_map<const Node*, int> users_of(const Nodes& all, const Nodes& roots) {
  std::unordered_map<const Node*, int> users;
  for (auto& r : roots) ++users[r.get()];
  for (auto& n : all) {
    for (auto& x : n->in)
      if (x) ++users[x.get()];
    if (n->op != &kLoop) continue;
    for (auto& r : loop_of(*n).results)
      for (auto& v : r.value) ++users[v.get()];
  }
  return users;
}

Nodes level_of(const Nodes& roots, const Node* index) {
  if (!index) return all_nodes(roots);
  // Values that an inner loop computes from its own carries alone vary only with the index of the
  // inner loop.
  std::unordered_set<const Node*> within{index};
  return requested_below(roots, [&](const Node& n) {
    bool in = is_region_boundary(n) || varies_with(n, within);
    if (in && n.op == &kLoop)
      for (auto& i : loop_of(n).index) within.insert(i.get());
    return in;
  });
}

Nodes without_bodies(Nodes level) {
  std::unordered_set<const Node*> inner;  // indices and carries of inner loops
  for (auto& n : level)
    if (n->op == &kLoop)
      for (auto* x : loop_of(*n).held())
        if (x->op == &prim::kIndex || x->op == &prim::kCarry) inner.insert(x);
  std::erase_if(level, [&](auto& n) { return varies_with(*n, inner); });
  return level;
}

std::unordered_set<const Loop*> loops_of_level(const Nodes& roots, const Node* index) {
  std::unordered_set<const Loop*> loops;
  for (auto& n : without_bodies(level_of(roots, index)))
    if (n->op == &kLoop) loops.insert(&loop_of(*n));
  return loops;
}

Nodes substitute(const Nodes& roots, Rewrite& to, const Node* inside,
                 std::unordered_set<const Node*>* same) {
  if (to.empty()) return roots;
  auto now = [&](NodeRef n) {
    if (!n) return n;
    auto i = to.find(n.get());
    return i == to.end() ? n : i->second;
  };
  // A loop body is older than the loop, and operands are older than their users, so one pass in the
  // order of age suffices. A replacement may be newer than the readers of the replaced node, but
  // replacements are not traversed.
  auto order = requested_below(roots, [&](const Node& n) {
    return !to.count(&n) && (!inside || n.varies_with(inside)) && !(same && same->count(&n));
  });
  OriginScope follow;
  for (auto& n : order) {
    if (n->value && n->in.empty()) continue;
    bool changed = false;
    each_read(*n, [&](NodeRef x) {
      auto i = to.find(x.get());
      changed |= i != to.end() && i->second != x;
    });
    if (!changed) {
      if (same) same->insert(n.get());
      continue;
    }
    follow(n->origin);
    auto put = [&](NodePtr& x) { x = now(x); };
    auto& created = to[n.get()];
    to.held.push_back(n);
    if (n->op == &kLoop) {
      Loop l = loop_of(*n);
      for (auto& r : l.results) {
        for (auto& v : r.value) put(v);
        put(r.start);
        put(r.carry);
      }
      created = make_loop(std::move(l));
      continue;
    }
    Nodes in = n->in;
    for (auto& x : in) put(x);
    created = n->op == &kResult && in[0]->op == &kLoop ? loop_result(in[0], result_number(*n))
                                                       : prim::rebuilt(*n, std::move(in), n->axes);
  }
  Nodes out;
  for (auto& r : roots) out.push_back(now(r));
  return out;
}
NodePtr replace_loop(NodeRef old, Loop by, Rewrite& to) {
  OriginScope follow(old->origin);
  auto created = make_loop(std::move(by));
  for (std::size_t k = 0; k < loop_of(*old).results.size(); ++k) {
    to.held.push_back(loop_result(old, k));
    to[to.held.back().get()] = loop_result(created, k);
  }
  return created;
}
NodePtr substitute(NodeRef root, Rewrite& to) { return substitute(Nodes{root}, to)[0]; }

Nodes with_values_as_data(const Nodes& roots) {
  Rewrite to;
  traverse(roots, [&](NodeRef n, PendingNodes& todo) {
    if (n->value && n->op->kind != Kind::leaf)
      to[n.get()] = make_data(n->value.get(), n->axes, n->dtype);
    else
      add_reads(n, todo);
  });
  return to.empty() ? roots : substitute(roots, to);
}
Nodes copied(const Nodes& roots) {
  std::unordered_map<const Node*, NodePtr> to;
  std::vector<const Node*> order;
  auto visit = [&](const Node* n) {
    if (n && to.try_emplace(n).second) order.push_back(n);
  };
  for (auto& r : roots) visit(r.get());
  for (std::size_t k = 0; k < order.size(); ++k) {
    auto& n = *order[k];
    if (n.value) continue;
    if (n.op->kind != Kind::leaf && !n.donated.empty()) fail_at(n.origin, "eval", n.donated);
    for (auto& x : n.in) visit(x.get());
    if (n.op == &kLoop)
      for (auto* x : loop_of(n).held()) visit(x);
  }
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->id < b->id; });
  auto now = [&](NodeRef n) { return n ? to.find(n.get())->second : n; };
  auto copy = [&](const Node& n) {
    if (n.op->kind == Kind::leaf && n.op != &prim::kCarry && !n.op->cheap)
      return n.shared_from_this();
    if (n.value && n.op->kind != Kind::leaf) return make_data(n.value.get(), n.axes, n.dtype);
    if (n.op == &prim::kIndex) return prim::index_of(n);
    Nodes in;
    in.reserve(n.in.size());
    for (auto& x : n.in) in.push_back(now(x));
    Attr attr = n.attr;
    if (n.op == &kLoop) {
      auto l = std::make_shared<Loop>(loop_of(n));
      for (auto& i : l->index) i = now(i);
      for (auto& r : l->results) {
        for (auto& v : r.value) v = now(v);
        r.start = now(r.start);
        r.carry = now(r.carry);
      }
      attr.payload = std::move(l);
    }
    return make(*n.op, std::move(in), n.axes, n.dtype, std::move(attr));
  };
  OriginScope follow;
  for (auto* n : order) {
    follow(n->origin);
    to.find(n)->second = copy(*n);
  }
  Nodes out;
  for (auto& r : roots) out.push_back(now(r));
  return out;
}

NodePtr widened(NodeRef n) {
  if (!is_float(n->dtype) || bytes_of(n->dtype) >= 4) return n;
  auto d = DType::f32;
  if (n->op->kind == Kind::contract) return make(*n->op, n->in, n->axes, d, n->attr);
  if (prim::reduces(*n, Monoid::sum))
    return make(*n->op, {prim::cast(n->in[0], d)}, n->axes, d, n->attr);
  if (accumulates(*n, Monoid::sum)) {
    Nodes in = n->in;
    for (std::size_t k : {0u, 1u}) in[k] = prim::cast(in[k], d);
    return make(*n->op, std::move(in), n->axes, d, n->attr);
  }
  return prim::cast(n, d);
}

std::unordered_set<const Node*> dependents(const Nodes& roots,
                                           const std::unordered_set<const Node*>& goals) {
  std::unordered_set<const Node*> out;
  PendingNodes in;
  auto depends = [&](const NodePtr* x) { return out.count(x->get()) > 0; };
  for (auto& n : topological(roots)) {
    in.clear();
    // For a loop, also its bodies: a value that an inner loop computes is not a result that the
    // outer loop could depend on.
    add_reads(n, in);
    if (goals.count(n.get()) || std::any_of(in.begin(), in.end(), depends)) out.insert(n.get());
  }
  return out;
}
bool depends_on(NodeRef n, NodeRef goal) {
  return dependents({n}, {goal.get()}).count(n.get()) > 0;
}

Nodes strip_wraps(const Nodes& roots, bool keep_boundaries) {
  Rewrite to;
  for (auto& n : all_nodes(roots)) {  // inputs first, for wraps of wraps
    bool group = n->op == &kResult && n->in[0]->op == &kCustomVjp;
    bool stays = n->op->kind != Kind::wrap || n->op == &prim::kBarrier ||
                 n->op == &prim::kShardingConstraint || prim::counts_rows(*n) ||
                 n->op == &kCustomVjp;
    if (stays && !group) continue;
    if (keep_boundaries && is_region_boundary(*n)) continue;
    to[n.get()] = substitute(group ? n->in[0]->in[result_number(*n)] : n->in[0], to);
  }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace haliax
