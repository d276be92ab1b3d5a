// Additional residuals that avoid communication in the backward pass. If a loop over layers sums a
// value over devices, and a later loop would rematerialize the value and sum it again, then the
// first loop saves the value as a residual. The same applies to sums in the tiles of a loss, if
// they are no larger than the slices that the loop reads; logits are larger and are not saved.
// Afterwards the global graph has new roots and is planned again.
#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"
#include "compile/loops/loops.h"
#include "compile/sharding/passes.h"

namespace haliax::partitioning {
namespace {

// Returns true if a loop can stack the value over its iterations. A loop over chunks only stacks
// values that have the chunk axis.
bool may_stack(const Loop& l, const Node& n) {
  auto* chunk = find(n, l.axis.name);
  return l.drop ? !chunk : chunk && chunk->size == prim::index_chunk(*l.index[0]);
}
// The body of a later loop in terms of the loop whose stacks it reads: a slice of a stack equals
// the value that the earlier body stacked.
struct EarlierBody {
  NodePtr earlier;
  Rewrite to;
};
EarlierBody earlier_body_of(const GlobalGraph& graph, const std::vector<int>& order,
                            const Node* index) {
  EarlierBody t;
  for (int n : order) {
    auto& s = graph.ptr(n);
    if (!is_slice_at(*s, index)) continue;
    auto& stack = s->in[0];
    if (!is_loop_result(*stack)) continue;
    auto& l = loop_of(*stack);
    if (l.index.size() != 1 || l.index[0].get() != index) continue;
    if (t.earlier && t.earlier != stack->in[0]) return {};
    t.earlier = stack->in[0];
    t.to[s.get()] = result_of(*stack).value[0];
  }
  return t;
}

// Two loops over one index, and the nodes that are summed over devices in both bodies.
struct Repeated {
  NodePtr earlier, later;
  Nodes nodes;
};
Repeated repeated(const Plan& plan, GlobalGraph& graph) {
  Repeated out;
  // Key: node.
  std::unordered_map<int, std::vector<std::pair<const Version*, const LoopPlan*>>> known;
  for (auto& l : plan.loops) {
    auto& loop = graph.ptr(l.node);
    auto& index = loop_of(*loop).index;
    if (index.size() != 1) continue;
    auto& body = plan.body(l.bodies[0]);
    std::int64_t slice_bytes = 0;  // largest slice that an iteration reads, in bytes
    for (int n : graph.level(l.node, 0).order) {
      auto& s = graph.ptr(n);
      if (is_slice_at(*s, index[0].get())) slice_bytes = std::max(slice_bytes, s->bytes());
    }
    for (int k : body.versions) {
      auto& s = plan.version(k);
      auto& n = graph.ptr(s.node);
      if (!s.live || !s.sums() || n->bytes() > slice_bytes || !may_stack(loop_of(*loop), *n))
        continue;
      for (auto& [was, by] : known[s.node]) {
        auto& earlier = graph.ptr(by->node);
        bool is_sibling =
            earlier != loop && plan.body(by->bodies[0]).parent == body.parent && was->at == s.at;
        if (!is_sibling || (out.later && (out.earlier != earlier || out.later != loop))) continue;
        out.earlier = earlier;
        out.later = loop;
        out.nodes.push_back(n);
        break;
      }
      known[s.node].push_back({&s, &l});
    }
  }
  return out;
}
// Replaces the sums of the later loop by reads of the stacks of the earlier loop.
Nodes with_repeated(const Nodes& roots, const Plan& plan, GlobalGraph& graph) {
  auto r = repeated(plan, graph);
  if (!r.later) return roots;
  auto now = [](const Rewrite& to, const NodePtr& n) {
    auto found = to.find(n.get());
    return found == to.end() ? n : found->second;
  };
  Loop more = loop_of(*r.earlier);
  for (auto& n : r.nodes) more.results.push_back({Fold::stack, Monoid::sum, {n}});
  Rewrite first, body, then;
  auto created = replace_loop(r.earlier, std::move(more), first);
  auto changed = substitute(roots, first);
  auto later = now(first, r.later);
  Loop less = loop_of(*later);
  auto& extended = loop_of(*created);
  for (std::size_t k = 0; k < r.nodes.size(); ++k)
    body[now(first, r.nodes[k]).get()] =
        prim::slice_at(loop_result(created, extended.results.size() - r.nodes.size() + k),
                       extended.index[0], extended.drop);
  for (auto& result : less.results)
    result.value = substitute(result.value, body, less.index[0].get());
  replace_loop(later, std::move(less), then);
  return substitute(changed, then);
}
// A value that the body of an earlier loop computes, and the same value in a later loop.
struct Residual {
  NodePtr earlier, later;
};
// Returns true if the body of this loop computes the value in this sharding.
bool is_computed_in(const Plan& plan, const GlobalGraph& graph, const NodePtr& loop, int node,
                    const Sharding& at) {
  return std::any_of(plan.versions.begin(), plan.versions.end(), [&](auto& v) {
    return v.live && v.node == node && v.at == at && plan.body(v.body).loop >= 0 &&
           graph.ptr(plan.loop(plan.body(v.body).loop).node) == loop;
  });
}
// Returns the values that the loop would communicate again, and the earlier loop in which they are
// communicated first. For example, given layers whose backward pass sums y = dot(x, w) over `model`
// again, returns y in the forward and in the backward loop.
std::vector<Residual> residuals_of(const Plan& plan, GlobalGraph& graph, const LoopPlan& l,
                                   bool gathers_too, NodePtr& earlier) {
  std::vector<Residual> out;
  auto& index = loop_of(*graph.ptr(l.node)).index;
  if (index.size() != 1) return out;
  auto communicates = [&](const Version& v) {
    return v.live && v.is<Reshard>() && v.communicates() && (v.sums() || gathers_too);
  };
  auto& versions = plan.body(l.bodies[0]).versions;
  if (std::none_of(versions.begin(), versions.end(),
                   [&](int k) { return communicates(plan.version(k)); }))
    return out;
  const auto body = earlier_body_of(graph, graph.level(l.node, 0).order, index[0].get());
  earlier = body.earlier;
  for (int k : versions) {
    auto& v = plan.version(k);
    auto& later = graph.ptr(v.node);
    if (!earlier || !communicates(v) || body.to.count(later.get())) continue;  // or saved already
    auto to = body.to;
    auto was = substitute({later}, to, index[0].get())[0];
    int id = graph.find(was.get());
    if (was == later || id < 0 || !may_stack(loop_of(*earlier), *was) ||
        !is_computed_in(plan, graph, earlier, id, v.at))
      continue;
    out.push_back({was, later});
  }
  return out;
}
// Lets the earlier loop stack the values, unless it does so already, and maps them in later loops
// to slices of the stacks.
void save_residuals(const NodePtr& earlier, const std::vector<Residual>& residuals, Rewrite& to) {
  Loop more = loop_of(*earlier);
  std::vector<std::size_t> place;
  for (auto& residual : residuals) {
    auto same = std::find_if(more.results.begin(), more.results.end(), [&](auto& r) {
      return r.fold == Fold::stack && r.value[0] == residual.earlier;
    });
    place.push_back(std::size_t(same - more.results.begin()));
    if (same == more.results.end())
      more.results.push_back({Fold::stack, Monoid::sum, {residual.earlier}});
  }
  auto index = more.index[0];
  bool drop = more.drop;
  auto created = replace_loop(earlier, std::move(more), to);
  for (std::size_t i = 0; i < place.size(); ++i)
    to[residuals[i].later.get()] = prim::slice_at(loop_result(created, place[i]), index, drop);
}

}  // namespace

Nodes with_residuals(const Nodes& roots, const Plan& plan, GlobalGraph& graph, bool gathers_too) {
  std::vector<std::pair<NodePtr, std::vector<Residual>>> residuals;  // by earlier loop
  for (auto& l : plan.loops) {
    NodePtr earlier;
    auto more = residuals_of(plan, graph, l, gathers_too, earlier);
    if (more.empty()) continue;
    auto known = std::find_if(residuals.begin(), residuals.end(),
                              [&](auto& r) { return r.first == earlier; });
    if (known == residuals.end()) known = residuals.insert(known, {earlier, {}});
    auto& all = known->second;
    for (auto& residual : more)  // loops over one index may share nodes
      if (std::none_of(all.begin(), all.end(), [&](auto& r) { return r.later == residual.later; }))
        all.push_back(std::move(residual));
  }
  if (residuals.empty()) return with_repeated(roots, plan, graph);
  Rewrite to;
  for (auto& [earlier, values] : residuals) save_residuals(earlier, values, to);
  return substitute(roots, to);
}

}  // namespace haliax::partitioning
