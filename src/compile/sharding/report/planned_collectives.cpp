// Lists the collectives of a plan and their reasons, as data for reports.
#include <algorithm>

#include "graph/axes.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "transforms/gradient_names.h"
#include "compile/sharding/passes.h"
#include "compile/sharding/report/gather_reasons.h"

namespace haliax::partitioning {
namespace {

struct CollectiveLister {
  const Plan& plan;
  const GlobalGraph& graph;
  const GatherReasons gather_reasons;
  std::vector<Names> gradient = {};  // per node: the parameters whose gradient it is
  std::map<std::string_view, const Node*> arguments = {};  // by path
  std::vector<PlannedCollective> out = {};
  std::map<int, std::size_t> of_bucket = {};

  const Node& node(int n) const { return graph.node(n); }
  CommunicatedArray moved(const Version& s) const {
    int n = s.is<RingReceive>() ? plan.version(s.in[0]).node : s.node;
    auto& me = node(n);
    using What = CommunicatedArray::What;
    if (auto* a = graph.input(n); a && a->origin.module)
      return {What::argument, {a->origin.module}, "", me.axes};
    auto& of = gradient[std::size_t(n)];
    if (!of.empty() && (s.sums() || me.origin.backward)) return {What::gradient, of, "", me.axes};
    if (auto* p = of.empty() ? nullptr : updated(n))
      return {What::updated, {p->origin.module}, "", me.axes};
    auto& op = graph.user_op(n);
    return {&op == &me ? What::op : What::part, {}, user_op_name(op), me.axes};
  }
  // Returns the argument to which this result adds an update. Null: there is none.
  const Node* updated(int n) const {
    if (node(n).origin.backward ||
        std::find(graph.roots.begin(), graph.roots.end(), n) == graph.roots.end())
      return nullptr;
    for (int x : graph.at(n).in)
      if (auto* a = x < 0 ? nullptr : graph.input(x);
          a && a->origin.module && same_names(a->axes, node(n).axes))
        return a;
    return nullptr;
  }
  Name module_of(int n) const {
    auto& names = gradient[std::size_t(n)];
    auto of = names.empty() ? std::string_view() : names[0].text();
    if (auto field = of.rfind('.'); field != of.npos) return Name(of.substr(0, field));
    // The origin of an input contains its own path instead of a module.
    return node(n).op == &prim::kInput ? Name() : graph.user_op(n).origin.module;
  }
  bool after(int n) const { return gather_reasons.purposes.in_backward(graph.user_op(n)); }
  // Finds the values that are gradients: values that were recorded while gradients were traced, and
  // values computed from them. Operands precede their readers.
  void find_gradients(const Gradients* noted) {
    gradient.resize(graph.values.size());
    if (!noted) return;
    for (auto& n : graph.values)
      if (n.node->op == &prim::kInput && n.node->origin.module)
        arguments[n.node->origin.module.text()] = n.node.get();
    for (std::size_t n = 0; n < graph.values.size(); ++n) {
      auto& me = node(int(n));
      if (!after(int(n))) continue;
      auto& mine = gradient[n] = noted->parameters(me);
      if (!mine.empty()) continue;
      for (int x : computed_from(int(n))) {
        if (x < 0 || !is_float(node(x).dtype) || !after(x)) continue;
        auto& of = gradient[std::size_t(x)];
        if (!of.empty() && still_gradient(me, node(x), of)) {
          add_names(mine, of);
        } else if (of.empty() && same_names(me.axes, node(x).axes)) {
          // The value mixes gradients with other values, such as the norm of all gradients; it is
          // not a gradient.
          mine.clear();
          break;
        }
      }
    }
  }
  std::vector<int> computed_from(int n) const {
    auto& me = node(n);
    if (!is_loop_result(me)) return graph.at(n).in;
    std::vector<int> out;
    for (auto& v : result_of(me).value) out.push_back(graph.find(v.get()));
    return out;
  }
  // Returns true if n, which is computed from the gradient x, is a gradient as well. It is one if x
  // is only moved, or stacked or summed over iterations. After the backward pass, it is also one if
  // it is computed elementwise, or summed to the axes of the parameter.
  bool still_gradient(const Node& n, const Node& x, const Names& of) const {
    if (keeps_names(n)) return same_names(n.axes, x.axes);
    if (n.op->linear == Linear::moves || n.op->kind == Kind::wrap || n.op == &kResult) return true;
    if (n.origin.backward) return false;
    if (n.op->kind == Kind::map) return same_names(n.axes, x.axes);
    auto parameter = arguments.find(of[0].text());
    return (n.op->kind == Kind::reduce || n.op->kind == Kind::contract) &&
           parameter != arguments.end() && same_names(n.axes, parameter->second->axes);
  }
  PlannedCollective::Kind kind_of(const Version& s) const {
    if (s.ring() >= 0 || s.is<RingReceive>()) return PlannedCollective::Kind::ring;
    if (s.is<RingReturn>()) return PlannedCollective::Kind::reduce_scatter;
    if (s.is<Shift>()) return PlannedCollective::Kind::permute;
    switch (s.step().kind) {
      case ReshardStep::Kind::reduce_scatter:
        return PlannedCollective::Kind::reduce_scatter;
      case ReshardStep::Kind::all_reduce:
        return PlannedCollective::Kind::all_reduce;
      case ReshardStep::Kind::all_gather:
        return PlannedCollective::Kind::all_gather;
      default:
        return PlannedCollective::Kind::all_to_all;
    }
  }
  void add(const Version& s) {
    const int others = ranks(graph.mesh, s.step().over) - 1;
    // A device does not send its own block.
    double times = s.ring() >= 0 ? others : s.in_ring_loop() ? double(others) / (others + 1) : 1;
    PlannedCollective m{.kind = kind_of(s), .over = s.step().over, .arrays = {moved(s)}};
    if (s.cause >= 0) m.cause = user_op_name(graph.user_op(s.cause));
    m.origin = graph.user_op(s.cause < 0 ? s.node : s.cause).origin;
    if (!m.origin.module) m.origin.module = module_of(s.node);
    if (m.gathers()) m.reason = s.in_ring_loop() ? GatherReason::blocks : gather_reasons.reason(s);
    if (m.reason == GatherReason::unmapped) m.unmapped = s.step().axis;
    m.at_most = s.in_ring_loop() && may_skip(plan, graph, s.body);
    m.bytes = s.step().bytes / times;
    m.iterations = plan.body(s.body).iterations * times;
    for (int r = s.body; r > 0; r = plan.body(r).parent) {
      auto& l = loop_of(node(plan.loop(plan.body(r).loop).node));
      m.loops.insert(m.loops.begin(), l.axis.name);
    }
    auto joined = of_bucket.find(s.bucket);
    if (joined == of_bucket.end()) {
      if (s.bucket > 0) of_bucket[s.bucket] = out.size();
      out.push_back(std::move(m));
      return;
    }
    auto& call = out[joined->second];
    call.bytes += m.bytes;
    // An unrequested gather represents its bucket.
    if (!is_requested(m.reason) && is_requested(call.reason)) {
      call.arrays.insert(call.arrays.begin(), std::move(m.arrays[0]));
      call.cause = m.cause;
      call.origin = m.origin;
      call.reason = m.reason;
      call.unmapped = m.unmapped;
    } else {
      call.arrays.push_back(std::move(m.arrays[0]));
    }
  }
  void in_body(int r) {
    for (int k : plan.body(r).versions) {
      auto& s = plan.version(k);
      if (!s.live) continue;
      if (s.communicates()) add(s);
      for (int body : plan.bodies_of(s)) in_body(body);
    }
  }
};

}  // namespace

const char* user_op_name(const Node& n) {
  return n.op == &prim::kShardingConstraint ? prim::sharding_constraint_of(n).by
                                            : prim::user_name(n);
}
std::vector<PlannedCollective> planned_collectives(const Plan& plan, const GlobalGraph& graph) {
  CollectiveLister m{plan, graph, GatherReasons(plan, graph)};
  m.find_gradients(graph.gradients.get());
  m.in_body(0);
  return std::move(m.out);
}

}  // namespace haliax::partitioning

const char* haliax::name_of(GatherReason a) {
  const char* const names[] = {"none (unrequested)", "none (unmapped)", "result", "constraint",
                               "parameter",          "gradient",        "blocks"};
  return names[int(a)];
}
bool haliax::is_requested(GatherReason a) {
  return a != GatherReason::unrequested && a != GatherReason::unmapped;
}
