// Lists the collectives of a plan and their reasons, as data for reports.
#include <algorithm>

#include "compile/sharding/gather_reasons.h"
#include "compile/sharding/passes.h"
#include "graph/axes.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"
#include "transforms/gradient_names.h"

namespace haliax::partitioning {
namespace {

struct CollectiveLister {
  const Plan& plan;
  const GlobalGraph& graph;
  const GatherReasons gather_reasons;
  std::vector<Names> parameters_of_gradient = {};  // per node: the parameters whose gradient it is
  std::map<std::string_view, const Node*> arguments = {};  // by path
  std::vector<PlannedCollective> out = {};
  std::map<int, std::size_t> of_bucket = {};

  const Node& node(int n) const { return graph.node(n); }
  // Describes the communicated array as an argument, a gradient, an updated argument, or an op or
  // its intermediate. A step of a ring communicates its operand, which is the block that it has.
  CommunicatedArray communicated_array(const Version& v) const {
    int n = v.is<RingReceive>() ? plan.version(v.in[0]).node : v.node;
    auto& me = node(n);
    using What = CommunicatedArray::What;
    if (auto* a = graph.input(n); a && a->origin.module)
      return {What::argument, {a->origin.module}, "", me.axes};
    auto& of = parameters_of_gradient[std::size_t(n)];
    if (!of.empty() && (v.sums() || me.origin.backward)) return {What::gradient, of, "", me.axes};
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
  // Returns the path of the module to report for a value. For a gradient, returns the module of its
  // parameter, such as `layers.mlp` for `layers.mlp.weight`.
  Name module_of(int n) const {
    auto& names = parameters_of_gradient[std::size_t(n)];
    auto of = names.empty() ? std::string_view() : names[0].text();
    if (auto field = of.rfind('.'); field != of.npos) return Name(of.substr(0, field));
    // The origin of an input contains its own path instead of a module.
    return node(n).op == &prim::kInput ? Name() : graph.user_op(n).origin.module;
  }
  bool in_backward(int n) const { return gather_reasons.purposes.in_backward(graph.user_op(n)); }
  void find_arguments() {
    for (auto& n : graph.values)
      if (n.node->op == &prim::kInput && n.node->origin.module)
        arguments[n.node->origin.module.text()] = n.node.get();
  }
  // Finds the values that are gradients: values that were recorded while gradients were traced, and
  // values computed from them. Operands precede their readers.
  void find_gradients(const Gradients* recorded) {
    parameters_of_gradient.resize(graph.values.size());
    if (!recorded) return;
    find_arguments();
    for (std::size_t n = 0; n < graph.values.size(); ++n) {
      auto& me = node(int(n));
      if (!in_backward(int(n))) continue;
      auto& names = parameters_of_gradient[n] = recorded->parameters(me);
      if (!names.empty()) continue;
      for (int x : computed_from(int(n))) {
        if (x < 0 || !is_float(node(x).dtype) || !in_backward(x)) continue;
        auto& operand_names = parameters_of_gradient[std::size_t(x)];
        if (!operand_names.empty() && still_gradient(me, node(x), operand_names)) {
          add_names(names, operand_names);
        } else if (operand_names.empty() && same_names(me.axes, node(x).axes)) {
          // An operand with the same axes is no gradient. The value mixes gradients with other
          // values, and is not a gradient.
          names.clear();
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
  PlannedCollective::Kind kind_of(const Version& v) const {
    if (v.ring() >= 0 || v.is<RingReceive>()) return PlannedCollective::Kind::ring;
    if (v.is<RingReturn>()) return PlannedCollective::Kind::reduce_scatter;
    if (v.is<Shift>()) return PlannedCollective::Kind::permute;
    switch (v.step().kind) {
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
  void add(const Version& v) {
    const int others = ranks(graph.mesh, v.step().over) - 1;
    // A device does not send its own block.
    double times = v.ring() >= 0 ? others : v.in_ring_loop() ? double(others) / (others + 1) : 1;
    PlannedCollective m{
        .kind = kind_of(v), .over = v.step().over, .arrays = {communicated_array(v)}};
    if (v.cause >= 0) m.cause = user_op_name(graph.user_op(v.cause));
    m.origin = graph.user_op(v.cause < 0 ? v.node : v.cause).origin;
    if (!m.origin.module) m.origin.module = module_of(v.node);
    if (m.gathers()) m.reason = v.in_ring_loop() ? GatherReason::blocks : gather_reasons.reason(v);
    if (m.reason == GatherReason::unmapped) m.unmapped = v.step().axis;
    m.at_most = v.in_ring_loop() && may_skip(plan, graph, v.body);
    m.bytes = v.step().bytes / times;
    m.iterations = plan.body(v.body).iterations * times;
    for (int body = v.body; body > 0; body = plan.body(body).parent) {
      auto& l = loop_of(node(plan.loop(plan.body(body).loop).node));
      m.loops.insert(m.loops.begin(), l.axis.name);
    }
    auto joined = of_bucket.find(v.bucket);
    if (joined == of_bucket.end()) {
      if (v.bucket > 0) of_bucket[v.bucket] = out.size();
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
  void in_body(int body) {
    for (int k : plan.body(body).versions) {
      auto& v = plan.version(k);
      if (!v.live) continue;
      if (v.communicates()) add(v);
      for (int inner : plan.bodies_of(v)) in_body(inner);
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
