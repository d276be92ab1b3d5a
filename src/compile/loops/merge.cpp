// Merges two loops over the same index. The merged loop has the results of both, since the bodies
// are graphs over the same index.
#include <algorithm>

#include "compile/loops/loops.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {
namespace {

using Set = std::unordered_set<const Node*>;

// Returns `a` and all nodes that depend on it. Unlike `dependents`, also nodes in bodies of loops.
Set dependents_of(const Node* a, const Nodes& all) {
  Set out{a};
  for (auto& n : all)  // inputs first
    if (reads(*n, out)) out.insert(n.get());
  return out;
}

// Recomputes x tile by tile inside body b of loop `a`. This is possible if x is computed from
// stacked results of `a` by ops that map along the loop axis. Returns null if x needs a final
// result. Only nodes that depend on `a` are recomputed; otherwise the entire model would follow.
struct RecomputeInBody {
  const NodePtr& a;
  std::size_t body;
  const Set& dependents_of_a;
  std::unordered_map<const Node*, NodePtr> memo = {};
  NodePtr operator()(const NodePtr& x) {
    auto& l = loop_of(*a);
    if (!dependents_of_a.count(x.get())) return prim::slice_at(x, l.index[body], l.drop);
    if (auto known = memo.find(x.get()); known != memo.end()) return known->second;
    return memo[x.get()] = recomputed(x, l);
  }
  NodePtr recomputed(const NodePtr& x, const Loop& l) {
    if (!find(*x, l.axis.name)) return nullptr;  // a sum is final
    if (x->op == &kResult && x->in[0] == a) {
      auto& r = result_of(*x);
      return r.kind == ResultKind::stack ? r.value[body] : nullptr;
    }
    bool elementwise = x->op->kind == Kind::map || keeps_names(*x);
    // A contraction that is computed twice would cost more than the merge saves.
    if (!elementwise || l.drop) return nullptr;
    Nodes in;
    for (auto& i : x->in) {
      auto tile = (*this)(i);
      if (!tile) return nullptr;
      in.push_back(std::move(tile));
    }
    auto axes = x->axes;
    for (auto& axis : axes)
      if (axis.name == l.axis.name) axis.size = prim::index_chunk(*l.index[body]);
    return prim::rebuilt(*x, std::move(in), axes);
  }
};

// Returns true if the other loop has all carries of this one.
bool has_carries_of(const Loop& other, const Loop& l) {
  return std::all_of(l.results.begin(), l.results.end(), [&](auto& r) {
    bool idle = r.effect && r.value[0] == r.carry;
    return !r.carry || idle || std::count(other.results.begin(), other.results.end(), r) > 0;
  });
}
bool has_carry(const Loop& l) {
  return std::any_of(l.results.begin(), l.results.end(), [](auto& r) { return bool(r.carry); });
}

// Returns the merged loop. Null if b needs a final result of a, or if the loops would share
// nothing. a is older, so it cannot depend on b.
NodePtr merged(const NodePtr& a, const NodePtr& b, const Set& dependents_of_a,
               std::vector<std::size_t>& numbers_of_b, bool carried_only) {
  auto &la = loop_of(*a), &lb = loop_of(*b);
  if (la.drop != lb.drop) return nullptr;
  bool carried = has_carry(la) || has_carry(lb);
  if (carried_only && !carried) return nullptr;
  if (carried && (la.reverse != lb.reverse || !has_carries_of(la, lb) || !has_carries_of(lb, la)))
    return nullptr;
  auto ia = inputs_of(la), ib = inputs_of(lb);
  auto depends_on_a = [&](const NodePtr& x) { return dependents_of_a.count(x.get()) > 0; };
  auto shares = [&](auto& x) {
    return depends_on_a(x) || std::count(ia.slices.begin(), ia.slices.end(), x);
  };
  if (!carried && std::none_of(ib.slices.begin(), ib.slices.end(), shares))
    return nullptr;  // nothing is shared
  if (std::any_of(ib.invariants.begin(), ib.invariants.end(), depends_on_a))
    return nullptr;  // each iteration of b reads a final result of a
  if (std::any_of(lb.results.begin(), lb.results.end(),
                  [&](auto& r) { return depends_on_a(r.start); }))
    return nullptr;
  Rewrite to;
  for (auto& x : ib.slices) {
    if (!depends_on_a(x)) continue;
    if (carried) return nullptr;  // a is not recomputed from a carry
    for (std::size_t body = 0; body < la.index.size(); ++body) {
      RecomputeInBody recompute{a, body, dependents_of_a};
      auto tile = recompute(x);
      if (!tile) return nullptr;
      to[prim::slice_at(x, la.index[body], la.drop).get()] = tile;
    }
  }
  Loop out = la;
  for (auto& r : lb.results) {
    LoopResult moved = r;
    for (auto& v : moved.value) v = substitute(v, to);
    numbers_of_b.push_back(add_result(out, moved));
  }
  out.of_scores |= lb.of_scores;
  out.any_order &= lb.any_order;
  if (!lb.why.empty()) {
    out.form = lb.form;
    out.why = lb.why;
  }
  return make_loop(std::move(out));
}

// Returns the indices of the bodies that contain each loop; 0 is the top. A carry is only valid in
// its own body, so loops in different bodies are not merged.
std::unordered_map<const Node*, std::vector<std::size_t>> bodies_of_loops(const Nodes& roots) {
  std::unordered_map<const Node*, std::vector<std::size_t>> out;
  std::vector<std::pair<Nodes, const Node*>> bodies{{roots, nullptr}};
  for (std::size_t i = 0; i < bodies.size(); ++i)
    for (auto [values, index] = bodies[i]; auto& n : topological(values)) {
      if (n->op != &kLoop || (index && !n->varies_with(index))) continue;
      auto& in = out[n.get()];
      in.push_back(i);
      if (in.size() > 1) continue;
      auto& l = loop_of(*n);
      for (std::size_t b = 0; b < l.index.size(); ++b)
        bodies.push_back({values_of(l, b), l.index[b].get()});
    }
  return out;
}

Nodes merge(Nodes roots, bool carried_only) {
  return rewrite_one_by_one(std::move(roots), [&](const Nodes& roots, Rewrite& to) {
    const auto all = all_nodes(roots);
    Nodes loops;
    std::copy_if(all.begin(), all.end(), std::back_inserter(loops),
                 [](auto& n) { return n->op == &kLoop; });
    auto bodies = bodies_of_loops(roots);
    for (std::size_t i = 0; i < loops.size() && to.empty(); ++i) {
      Set dependents_of_a;  // empty until computed
      for (std::size_t j = i + 1; j < loops.size() && to.empty(); ++j) {
        auto &a = loops[i], &b = loops[j];
        if (loop_of(*a).index != loop_of(*b).index || bodies[a.get()] != bodies[b.get()]) continue;
        if (dependents_of_a.empty()) dependents_of_a = dependents_of(a.get(), all);
        std::vector<std::size_t> numbers_of_b;  // by result of b: its number in the merged loop
        auto m = merged(a, b, dependents_of_a, numbers_of_b, carried_only);
        if (!m) continue;
        for (std::size_t k = 0; k < loop_of(*a).results.size(); ++k)
          to[loop_result(a, k).get()] = loop_result(m, k);
        for (std::size_t k = 0; k < numbers_of_b.size(); ++k)
          to[loop_result(b, k).get()] = loop_result(m, numbers_of_b[k]);
      }
    }
  });
}

}  // namespace

Nodes merge_loops(Nodes roots) { return merge(std::move(roots), false); }
Nodes merge_carried(Nodes roots) { return merge(std::move(roots), true); }

}  // namespace haliax
