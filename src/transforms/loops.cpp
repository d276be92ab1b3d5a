// Passes over loops. Merging is a union of results: bodies over one index are open graphs over the same nodes.
#include <algorithm>

#include "ops/prim.h"
#include "transforms/optimise.h"

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
bool depends_on(const NodePtr& n, const NodePtr& goal) { return dependents({n}, {goal.get()}).count(n.get()) > 0; }

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
      auto& r = l.results[std::size_t(x->attr.ints[0])];
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
      if (std::none_of(other.results.begin(), other.results.end(), [&](auto& o) { return o.same(r); })) return false;
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
    auto same = std::find_if(out.results.begin(), out.results.end(), [&](auto& o) { return o.same(moved); });
    places.push_back(std::size_t(same - out.results.begin()));
    if (same == out.results.end()) out.results.push_back(moved);
  }
  if (!lb.why.empty()) out.form = lb.form, out.why = lb.why;
  return make_loop(std::move(out));
}

}  // namespace

Nodes drop_dead_results(Nodes roots) {   // again and again, because a dropped result may have been another loop's only user
  for (;;) {
    auto all = everything(roots);
    std::unordered_set<const Node*> live;
    for (auto& n : all) live.insert(n.get());
    Rewrite to;
    bool changed = false;
    for (auto& n : all) {
      if (n->op != &kLoop) continue;
      auto& l = loop_of(*n);
      // A carry lives if its last value is read, or if the body of what lives reads it.
      std::vector<bool> keep(l.results.size());
      auto reads = [&](std::size_t k, const NodePtr& carry) {
        for (auto& v : l.results[k].value)
          if (depends_on(v, carry)) return true;
        return false;
      };
      for (std::size_t k = 0; k < l.results.size(); ++k) keep[k] = live.count(loop_result(n, k).get()) > 0;
      for (bool grew = true; grew;) {
        grew = false;
        for (std::size_t k = 0; k < l.results.size(); ++k) {
          if (keep[k] || !l.results[k].carry) continue;
          for (std::size_t j = 0; j < l.results.size() && !keep[k]; ++j)
            if (keep[j] && reads(j, l.results[k].carry)) keep[k] = grew = true;
        }
      }
      Loop out = l;
      out.results.clear();
      std::vector<std::pair<std::size_t, std::size_t>> moved;
      for (std::size_t k = 0; k < l.results.size(); ++k) {
        if (!keep[k]) continue;
        auto same = std::find_if(out.results.begin(), out.results.end(), [&](auto& o) { return o.same(l.results[k]); });
        moved.push_back({k, std::size_t(same - out.results.begin())});
        if (same == out.results.end()) out.results.push_back(l.results[k]);
      }
      if (out.results.size() == l.results.size()) continue;
      changed = true;
      auto loop = make_loop(std::move(out));
      for (auto [from, at] : moved) to[loop_result(n, from).get()] = loop_result(loop, at);
      break;   // bodies of other loops may name this one: one at a time
    }
    if (!changed) return roots;
    roots = substitute(roots, to);
  }
}

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

// sum + array: the carry starts from the array, if that exists before the loop. sum + sum of one loop: one carry. No temporary of their size.
Nodes join_carries(Nodes roots) {
  for (;;) {
    auto live = everything(roots);
    auto users = users_of(live, roots);
    Rewrite to;
    for (auto& n : live) {
      if (n->op != &prim::kAdd || !to.empty()) continue;
      for (std::size_t side : {0u, 1u}) {
        auto r = n->in[side], other = n->in[1 - side];
        if (r->op != &kResult || r->in[0]->op != &kLoop || users[r.get()] > 1 || r->axes != n->axes || other->axes != n->axes) continue;
        if (prim::is_number(other)) continue;
        Loop l = loop_of(*r);
        auto& mine = l.results[std::size_t(r->attr.ints[0])];
        if (mine.fold != Fold::fold || mine.monoid != Monoid::sum || mine.start) continue;
        if (!depends_on(other, r->in[0])) mine.start = other;
        else if (other->op == &kResult && other->in == r->in && other != r && users[other.get()] == 1) {
          auto& second = l.results[std::size_t(other->attr.ints[0])];
          if (second.fold != Fold::fold || second.monoid != Monoid::sum) continue;
          for (std::size_t b = 0; b < l.index.size(); ++b) mine.value[b] = prim::add(mine.value[b], second.value[b]);
          mine.start = second.start;
        } else continue;
        auto old = r->in[0];
        auto count = l.results.size();
        auto loop = make_loop(std::move(l));
        for (std::size_t k = 0; k < count; ++k) to[loop_result(old, k).get()] = loop_result(loop, k);
        to[n.get()] = loop_result(loop, std::size_t(r->attr.ints[0]));
        break;
      }
    }
    if (to.empty()) return roots;
    roots = drop_dead_results(substitute(roots, to));
  }
}

// array + scatter into zeros: the updates are added to the array itself. No second array of its size (the gradient of a tied table).
Nodes join_updates(Nodes roots) {
  auto live = everything(roots);
  auto users = users_of(live, roots);
  Rewrite to;
  for (auto& n : live) {
    if (n->op != &prim::kAdd) continue;
    for (std::size_t side : {0u, 1u}) {
      auto &s = n->in[side], &array = n->in[1 - side];
      bool adds = s->op == &prim::kScatter && program::Update(s->attr.ints[0]) == program::Update::add && prim::is_number(s->in[0], 0);
      if (!adds || users[s.get()] > 1 || s->axes != n->axes || array->axes != n->axes || prim::is_number(array)) continue;
      Nodes in = s->in;
      in[0] = array;
      for (auto& x : in) x = substitute(x, to);
      to[n.get()] = make(*s->op, in, s->axes, s->dtype, s->attr);
      break;
    }
  }
  return to.empty() ? roots : substitute(roots, to);
}

Nodes optimise_loops(Nodes roots) {   // dropped first, because a dead result must not forbid a merge
  if (loops_of(roots).empty()) return roots;
  return join_carries(drop_dead_results(merge_loops(drop_dead_results(std::move(roots)))));
}

}  // namespace haliax
