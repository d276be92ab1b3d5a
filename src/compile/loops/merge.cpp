// Merging two loops is a union of results: bodies over one index are open graphs over the same nodes.
#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/loops/loops.h"

namespace haliax {
namespace {

Nodes loops_of(const Nodes& roots) {
  Nodes out;
  for (auto& n : everything(roots)) if (n->op == &kLoop) out.push_back(n);
  return out;
}
bool is_result_of(const Node& n, const NodePtr& loop) { return n.op == &kResult && n.in[0] == loop; }
Axes with_size(Axes axes, const Axis& changed) {
  for (auto& a : axes) if (a.name == changed.name) a.size = changed.size;
  return axes;
}

// x, chunk by chunk, inside body b of loop `a`: possible where x comes from stacked results of `a` by ops that map along the walked axis;
// null where it needs something final. Only what depends on `a` is pulled in, or the whole model would follow.
struct PullIn {
  const NodePtr& a;
  std::size_t body;
  const std::unordered_set<const Node*>& after_a;
  std::unordered_map<const Node*, NodePtr> memo = {};
  NodePtr operator()(const NodePtr& x) {
    auto& l = loop_of(*a);
    if (!after_a.count(x.get())) return prim::slice_at(x, l.index[body], l.drop);
    if (auto known = memo.find(x.get()); known != memo.end()) return known->second;
    return memo[x.get()] = make_it(x, l);
  }
  NodePtr make_it(const NodePtr& x, const Loop& l) {
    if (!find(*x, l.axis.name)) return nullptr;   // a sum is final
    if (is_result_of(*x, a)) {
      auto& r = l.results[result_number(*x)];
      return r.fold == Fold::stack ? r.value[body] : nullptr;
    }
    bool maps = x->op->kind == Kind::map || x->op == &prim::kFit;
    if (!maps || l.drop) return nullptr;          // a contraction, done twice, would cost more than it saves
    Nodes in;
    for (auto& i : x->in) {
      auto p = (*this)(i);
      if (!p) return nullptr;
      in.push_back(p);
    }
    Axis chunk(l.axis.name, prim::index_chunk(*l.index[body]));
    if (x->op == &prim::kFit) return prim::fit(in[0], with_size(x->axes, chunk));
    return make(*x->op, in, with_size(x->axes, chunk), x->dtype, x->attr);
  }
};

bool same_carries(const Loop& a, const Loop& b) {   // is one the other with more results?
  for (auto* l : {&a, &b})
    for (auto& r : l->results) {
      if (!r.carry) continue;
      auto& other = l == &a ? b : a;
      if (std::find(other.results.begin(), other.results.end(), r) == other.results.end()) return false;
    }
  return true;
}
bool has_carry(const Loop& l) { return std::any_of(l.results.begin(), l.results.end(), [](auto& r) { return bool(r.carry); }); }

// One loop for two, or null where b needs a final result of a (which is older, so it cannot need b), or where nothing would be shared.
NodePtr merged(const NodePtr& a, const NodePtr& b, const std::unordered_set<const Node*>& after_a, std::vector<std::size_t>& places) {
  auto &la = loop_of(*a), &lb = loop_of(*b);
  if (la.index != lb.index || la.drop != lb.drop || la.apart || lb.apart) return nullptr;
  bool carried = has_carry(la) || has_carry(lb);
  if (carried && (la.reverse != lb.reverse || !same_carries(la, lb))) return nullptr;
  auto ia = inputs_of(la), ib = inputs_of(lb);
  auto shares = [&](auto& x) { return after_a.count(x.get()) || std::find(ia.slices.begin(), ia.slices.end(), x) != ia.slices.end(); };
  if (!carried && std::none_of(ib.slices.begin(), ib.slices.end(), shares)) return nullptr;
  for (auto& x : ib.invariants) if (after_a.count(x.get())) return nullptr;
  for (auto& r : lb.results) if (r.start && after_a.count(r.start.get())) return nullptr;
  Rewrite to;
  for (auto& x : ib.slices) {
    if (!after_a.count(x.get())) continue;
    if (carried) return nullptr;
    for (std::size_t body = 0; body < la.index.size(); ++body) {
      PullIn pull{a, body, after_a};
      auto p = pull(x);
      if (!p) return nullptr;
      to[prim::slice_at(x, la.index[body], la.drop).get()] = p;
    }
  }
  Loop out = la;
  for (auto& r : lb.results) {
    LoopResult moved = r;
    for (auto& v : moved.value) v = substitute(v, to);
    auto same = std::find(out.results.begin(), out.results.end(), moved);
    places.push_back(std::size_t(same - out.results.begin()));
    if (same == out.results.end()) out.results.push_back(moved);
  }
  out.of_chunks |= lb.of_chunks;
  if (!lb.why.empty()) out.form = lb.form, out.why = lb.why;
  return make_loop(std::move(out));
}

}  // namespace

// Which bodies a loop stands in, by number; the top is 0. A carry is known in its own body only, so loops of different places stay apart.
std::unordered_map<const Node*, std::vector<std::size_t>> places_of_loops(const Nodes& roots) {
  std::unordered_map<const Node*, std::vector<std::size_t>> out;
  std::vector<std::pair<Nodes, const Node*>> bodies{{roots, nullptr}};
  for (std::size_t i = 0; i < bodies.size(); ++i)
    for (auto [values, index] = bodies[i]; auto& n : topological(values)) {
      if (n->op != &kLoop || (index && !n->varies_with(index))) continue;
      auto& in = out[n.get()];
      in.push_back(i);
      if (in.size() > 1) continue;
      auto& l = loop_of(*n);
      for (std::size_t b = 0; b < l.index.size(); ++b) {
        Nodes inner;
        for (auto& r : l.results) inner.push_back(r.value[b]);
        bodies.push_back({inner, l.index[b].get()});
      }
    }
  return out;
}

Nodes merge_loops(Nodes roots) {
  for (;;) {
    auto loops = loops_of(roots);
    auto places = places_of_loops(roots);
    Rewrite to;
    for (std::size_t i = 0; i < loops.size() && to.empty(); ++i) {
      std::unordered_set<const Node*> after;
      bool known = false;
      for (std::size_t j = i + 1; j < loops.size() && to.empty(); ++j) {
        auto &a = loops[i], &b = loops[j];
        if (loop_of(*a).index != loop_of(*b).index || places[a.get()] != places[b.get()]) continue;
        if (!known) after = dependents(everything(roots), {a.get()}), known = true;
        std::vector<std::size_t> moved;
        auto m = merged(a, b, after, moved);
        if (!m) continue;
        for (std::size_t k = 0; k < loop_of(*a).results.size(); ++k) to[loop_result(a, k).get()] = loop_result(m, k);
        for (std::size_t k = 0; k < moved.size(); ++k) to[loop_result(b, k).get()] = loop_result(m, moved[k]);
      }
    }
    if (to.empty()) return roots;
    roots = substitute(roots, to);
  }
}

}  // namespace haliax
