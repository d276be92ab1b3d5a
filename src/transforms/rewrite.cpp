#include "transforms/rewrite.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {
void add_reads(const NodePtr& n, Nodes& out) {
  for (auto& x : n->in) if (x) out.push_back(x);
  if (n->op != &kLoop) return;
  for (auto& r : loop_of(*n).results) {
    out.insert(out.end(), r.value.begin(), r.value.end());
    if (r.carry) out.push_back(r.carry);
  }
}

Nodes everything(const Nodes& roots) {
  std::unordered_set<const Node*> seen;
  Nodes todo(roots), out;
  std::erase(todo, nullptr);
  while (!todo.empty()) {
    auto n = std::move(todo.back());
    todo.pop_back();
    if (!seen.insert(n.get()).second) continue;
    add_reads(n, todo);
    out.push_back(std::move(n));
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a->id < b->id; });
  return out;
}

std::unordered_map<const Node*, int> users_of(const Nodes& all, const Nodes& roots) {
  std::unordered_map<const Node*, int> users;
  for (auto& r : roots) ++users[r.get()];
  for (auto& n : all) {
    for (auto& x : n->in) if (x) ++users[x.get()];
    if (n->op == &kLoop) for (auto& r : loop_of(*n).results) for (auto& v : r.value) ++users[v.get()];
  }
  return users;
}

Nodes level_of(const Nodes& roots, const Node* index) {
  std::unordered_set<const Node*> seen;
  Nodes todo(roots), out;
  while (!todo.empty()) {
    auto n = std::move(todo.back());
    todo.pop_back();
    bool border = n && (n->op == &prim::kEnter || n->op == &prim::kLeave);
    if (!n || (index && !border && !n->varies_with(index)) || !seen.insert(n.get()).second) continue;
    add_reads(n, todo);
    out.push_back(std::move(n));
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a->id < b->id; });
  return out;
}

Nodes substitute(const Nodes& roots, Rewrite& to, const Node* inside) {
  auto now = [&](const NodePtr& n) {
    if (!n) return n;
    auto i = to.find(n.get());
    return i == to.end() ? n : i->second;
  };
  // A loop's body is older than the loop, operands are older than their users: one pass by age is enough. A node made by an earlier
  // substitution is newer than what uses its value only if the replacement itself is given, and that is not entered.
  std::unordered_set<const Node*> seen;
  Nodes todo, order;
  for (auto& r : roots) if (r) todo.push_back(r);
  while (!todo.empty()) {
    auto n = std::move(todo.back());
    todo.pop_back();
    if (to.count(n.get()) || (inside && !n->varies_with(inside)) || !seen.insert(n.get()).second) continue;
    add_reads(n, todo);
    order.push_back(std::move(n));
  }
  std::sort(order.begin(), order.end(), [](auto& a, auto& b) { return a->id < b->id; });
  At follow;
  for (auto& n : order) {
    if (n->value && n->in.empty()) continue;
    NodePtr made = n;
    follow(n->origin);
    if (n->op == &kLoop) {
      Loop l = loop_of(*n);
      bool changed = false;
      auto put = [&](NodePtr& x) { auto y = now(x); changed |= y != x; x = y; };
      for (auto& r : l.results) {
        for (auto& v : r.value) put(v);
        put(r.start), put(r.carry);
      }
      for (auto& x : n->in) changed |= now(x) != x;
      if (changed) made = make_loop(std::move(l));
    } else {
      Nodes in = n->in;
      bool changed = false;
      for (auto& x : in) { auto y = now(x); changed |= y != x; x = y; }
      if (changed) {
        if (n->op == &kResult && in[0]->op == &kLoop) made = loop_result(in[0], result_number(*n));
        else if (n->op == &prim::kSlice) {
          made = prim::slice(in[0], SliceAttr::of(*n), in.size() > 1 ? in[1] : nullptr);
        } else made = make(*n->op, in, n->axes, n->dtype, n->attr);
      }
    }
    if (made != n) to[n.get()] = made;
  }
  Nodes out;
  for (auto& r : roots) out.push_back(now(r));
  return out;
}
NodePtr substitute(const NodePtr& root, Rewrite& to) { return substitute(Nodes{root}, to)[0]; }

NodePtr widened(const NodePtr& n) {
  if (!is_float(n->dtype) || bytes_of(n->dtype) >= 4) return n;
  auto d = DType::f32;
  if (n->op == &prim::kContract) return make(*n->op, n->in, n->axes, d, n->attr);
  if (n->op == &prim::kSum) return make(*n->op, {prim::cast(n->in[0], d)}, n->axes, d, n->attr);
  if (is_scatter_add(*n)) {
    Nodes in = n->in;
    for (std::size_t k : {0u, 1u}) in[k] = prim::cast(in[k], d);
    return make(*n->op, std::move(in), n->axes, d, n->attr);
  }
  return prim::cast(n, d);
}

std::unordered_set<const Node*> dependents(const Nodes& roots, const std::unordered_set<const Node*>& goals) {
  std::unordered_set<const Node*> out;
  Nodes in;
  for (auto& n : topological(roots)) {
    in.clear();
    add_reads(n, in);   // of a loop the bodies too: what a loop inside another makes is no result that the other could wait for
    if (goals.count(n.get()) || std::any_of(in.begin(), in.end(), [&](auto& x) { return out.count(x.get()) > 0; })) out.insert(n.get());
  }
  return out;
}

Nodes strip_wraps(const Nodes& roots, bool keep_borders) {
  Rewrite to;
  for (auto& n : everything(roots)) {   // inputs first: a wrap of a wrap
    bool group = n->op == &kResult && n->in[0]->op == &kCustom;
    bool border = n->op == &prim::kEnter || n->op == &prim::kLeave;
    if (!group && (n->op->kind != Kind::wrap || n->op == &prim::kBarrier || n->op == &prim::kPin || n->op == &kCustom)) continue;
    if (border && keep_borders) continue;
    to[n.get()] = substitute(group ? n->in[0]->in[result_number(*n)] : n->in[0], to);
  }
  return to.empty() ? roots : substitute(roots, to);
}

}  // namespace haliax
