// The unsharded graph, and the preferred sharding of each value, which follows from its readers.
#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/sharding/global_graph.h"
#include "compile/sharding/rules.h"
#include "transforms/rewrite.h"

namespace haliax::partitioning {

Sharding constraint(const Node& wrap, const Mesh& mesh) {
  OriginScope due(wrap.origin);
  return sharding_for(wrap, *prim::sharding_constraint_of(wrap).mapping, mesh);
}

GlobalGraph::GlobalGraph(const Nodes& out, const std::vector<Sharding>& requested, const Mesh& m)
    : mesh(m) {
  for (auto& n : all_nodes(out)) add(n);
  for (auto& n : out) roots.push_back(add(n));
  init_preferred(requested);
}
int GlobalGraph::find(const Node* n) const {
  auto i = ids_.find(n);
  return i == ids_.end() ? -1 : i->second;
}
int GlobalGraph::add(const NodePtr& n) {
  if (int known = find(n.get()); known >= 0) return known;
  std::vector<int> operands;
  std::vector<const Node*> carried;
  bool seen_through = rules::is_free_to_recompute(*n) || n->op->kind == Kind::view ||
                      n->op == &prim::kBarrier || n->op->kind == Kind::map;
  for (std::size_t i = 0; i < n->in.size(); ++i) {
    auto& x = n->in[i];
    operands.push_back(x ? add(x) : -1);
    if (x && !is_order_only(*n, i))
      seen_through &= at(operands.back()).of_inputs || at(operands.back()).generated;
    if (!x) continue;
    for (auto* index : at(operands.back()).carried)
      if (std::find(carried.begin(), carried.end(), index) == carried.end())
        carried.push_back(index);
  }
  if (n->op == &prim::kCarry) carried = {n->in[0].get()};
  if (n->op == &kLoop) loops_[loop_of(*n).index[0].get()] = n.get();
  int k = ids_[n.get()] = int(values.size());
  bool generated = is_generated(n);
  bool of_inputs = n->op == &prim::kInput || (seen_through && !generated);
  values.push_back({n, std::move(operands), generated, of_inputs, std::move(carried)});
  return k;
}
const Node* GlobalGraph::input(int n) const {
  while (at(n).of_inputs && node(n).op != &prim::kInput) {
    auto& in = at(n).in;
    auto from =
        std::find_if(in.begin(), in.end(), [&](int x) { return x >= 0 && at(x).of_inputs; });
    if (from == in.end()) return nullptr;  // computed from scalars and positions alone
    n = *from;
  }
  return node(n).op == &prim::kInput ? &node(n) : nullptr;
}

bool GlobalGraph::changes_in(const Node& n, const Loop& l, std::size_t body) const {
  if (varies_in(n, l, body)) return true;
  auto& carried = at(find(&n)).carried;
  return std::any_of(carried.begin(), carried.end(), [&](auto* index) {
    auto loop = loops_.find(index);
    return loop != loops_.end() && changes_in(*loop->second, l, body);
  });
}
bool GlobalGraph::is_conditional(int loop) const {
  return condition_of(loop_of(node(loop))) != nullptr;
}
const GlobalGraph::Level& GlobalGraph::level(int loop, std::size_t body) {
  auto [found, fresh] = levels_.try_emplace({loop, body});
  auto& s = found->second;
  if (!fresh) return s;
  const Loop* l = loop < 0 ? nullptr : &loop_of(node(loop));
  std::vector<int> todo;
  auto reach = [&](int n, int user) {
    if (n < 0 || (l && !varies_in(node(n), *l, body))) return;
    auto [entry, is_new] = s.users.try_emplace(n);
    entry->second.push_back(user);
    if (is_new) {
      todo.push_back(n);
      s.order.push_back(n);
    }
  };
  if (!l)
    for (int r : roots) reach(r, -1);
  else
    for (auto& r : l->results) reach(add(r.value[body]), -1);
  while (!todo.empty()) {
    int n = todo.back();
    todo.pop_back();
    for (int x : at(n).in) reach(x, n);
  }
  std::sort(s.order.begin(), s.order.end(), [&](int a, int b) { return ptr(a)->id < ptr(b)->id; });
  return s;
}

// Preferred shardings propagate backward through ops that preserve the axes. They stop at a
// sharding constraint, whose operand prefers the constrained sharding.
void GlobalGraph::prefer(int n, const Sharding& s) {
  auto& w = at(n).preferred;
  for (auto& [name, mesh_axes] : s.on(node(n).axes).dims) {
    bool taken = !w.mesh_axes(name).empty();
    for (int x : mesh_axes) taken |= w.uses(x);
    if (!taken) w.set(name, mesh_axes);
  }
}
void GlobalGraph::init_preferred(const std::vector<Sharding>& requested) {
  for (std::size_t k = 0; k < roots.size(); ++k) prefer(roots[k], requested[k]);
  std::vector<int> order(values.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = int(k);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return ptr(a)->id > ptr(b)->id; });
  for (int k : order) propagate_preferred(k);
}
namespace {
// An axis that the op requires in full may have the name of a different axis of an operand, for
// example of the ids of a scatter.
void drop_unshared(const Node& n, Sharding& preferred) {
  for (auto& a : n.axes)
    if (along(n, kResultSide, a.name).way == Along::Way::full) preferred.set(a.name, {});
}
}  // namespace
void GlobalGraph::propagate_preferred(int k, int first) {
  auto& n = node(k);
  auto mine = at(k).preferred;
  auto preferred_of = [&](int x, const Sharding& s) {
    if (x >= first) prefer(x, s);
  };
  if (n.op == &prim::kShardingConstraint)
    preferred_of(at(k).in[0], constraint(n, mesh));
  else if (is_loop_result(n)) {
    auto& r = result_of(n);
    auto in_iteration = mine;
    if (r.kind == ResultKind::stack && !r.carry) in_iteration.set(loop_of(n).axis.name, {});
    for (auto& v : r.value) preferred_of(add(v), in_iteration);
    if (r.start) preferred_of(add(r.start), mine);
  } else if (!mine.dims.empty() &&
             (n.op->kind == Kind::map || n.op->linear == Linear::moves || rules::writes_into(n))) {
    drop_unshared(n, mine);
    for (std::size_t i = 0; i < n.in.size(); ++i) {
      if (!n.in[i] || is_order_only(n, i)) continue;
      bool broadcast = maps(n) && n.in[i]->axes.size() != n.axes.size();
      if (!broadcast) preferred_of(at(k).in[i], rules::operand_sharding(n, i, mine, mesh));
    }
  }
}

}  // namespace haliax::partitioning
