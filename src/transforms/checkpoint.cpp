// Functions with a backward pass of their own: checkpoint, custom_vjp. And those of which only the shape is asked.
#include <algorithm>

#include "haliax/transforms.h"
#include "ops/prim.h"
#include "transforms/leaves.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

// A leaf that stands for x while a function is traced.
NodePtr stand_in(const NodePtr& x) { return x ? prim::input(x->axes, x->dtype, x->origin.module) : x; }

// Nodes below the roots that do not depend on the inputs: what a function captured.
Nodes captured(const Nodes& roots, const Nodes& inputs) {
  std::unordered_set<const Node*> goals, seen;
  for (auto& n : inputs) if (n) goals.insert(n.get());
  auto depends = dependents(roots, goals);
  Nodes out, todo(roots);
  std::erase(todo, nullptr);
  while (!todo.empty()) {
    auto n = todo.back();
    todo.pop_back();
    if (goals.count(n.get()) || !seen.insert(n.get()).second) continue;
    if (!depends.count(n.get())) {
      if (is_float(n->dtype) && !is_free(n)) out.push_back(n);
      continue;
    }
    for (auto& x : n->in) if (x) todo.push_back(x);
  }
  std::sort(out.begin(), out.end(), [](auto& a, auto& b) { return a->id < b->id; });
  return out;
}

struct Checkpointed : Custom {
  Nodes outs, inputs;   // the trace: results, in terms of stand-ins and what was captured
  Nodes backward(const Nodes& operands, const Nodes& gs) const override {
    Nodes again;
    Rewrite to;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      again.push_back(prim::barrier(operands[results + k], gs[0]));   // not before the cotangent is there
      to[inputs[k].get()] = again.back();
    }
    return vjp(substitute(outs, to), gs, again);
  }
};
struct ByHand : Custom {
  std::shared_ptr<void> self;
  Leaves (*call)(void*, const Leaves&, const Leaves&, const Leaves&);
  std::vector<bool> given_in, given_out;   // which leaves are there
  Nodes backward(const Nodes& operands, const Nodes& gs) const override {
    Leaves in, out, g;
    std::size_t at = 0, gat = 0;
    for (bool there : given_out) {
      out.push_back(there ? NamedArray(operands[at++]) : NamedArray());
      g.push_back(there ? NamedArray(gs[gat++]) : NamedArray());
    }
    for (bool there : given_in) in.push_back(there ? NamedArray(operands[at++]) : NamedArray());
    auto back = call(self.get(), in, out, g);
    if (back.size() != given_in.size()) fail("custom_vjp", "the backward gave " + std::to_string(back.size()) + " arrays for " + std::to_string(given_in.size()) + " arguments");
    Nodes result;
    for (std::size_t k = 0; k < back.size(); ++k) {
      if (!given_in[k]) continue;
      if (!back[k].empty() && !same_axes(back[k], in[k]))
        fail("custom_vjp", "the cotangent of argument array " + std::to_string(k) + " is " + to_string(back[k].axes()) +
                               ", and the array is " + to_string(in[k].axes()));
      result.push_back(back[k].node());
    }
    return result;
  }
};

}  // namespace

namespace detail {

Leaves checkpoint(LeafFunction f, const Leaves& in) {
  Tracing tracing;
  auto c = std::make_shared<Checkpointed>();
  Leaves inside;
  Nodes given;
  Rewrite to;
  for (auto& a : in) {
    auto s = stand_in(a.node());
    inside.push_back(s ? NamedArray(s) : a);
    if (s) c->inputs.push_back(s), given.push_back(a.node()), to[s.get()] = a.node();
  }
  auto traced = f(inside);
  for (auto& a : traced) if (!a.empty()) c->outs.push_back(a.node());
  c->results = c->outs.size();
  for (auto& n : captured(c->outs, c->inputs)) c->inputs.push_back(n), given.push_back(n);
  Nodes operands = substitute(c->outs, to);
  operands.insert(operands.end(), given.begin(), given.end());
  auto node = make_custom(operands, c);
  Leaves out;
  std::size_t k = 0;
  for (auto& a : traced) out.push_back(a.empty() ? a : NamedArray(custom_result(node, k++)));
  return out;
}
Leaves custom_vjp(LeafFunction forward, const Leaves& in, std::shared_ptr<void> self, Leaves (*call)(void*, const Leaves&, const Leaves&, const Leaves&)) {
  Tracing tracing;
  auto c = std::make_shared<ByHand>();
  c->self = std::move(self), c->call = call;
  auto outs = forward(in);
  Nodes operands;
  for (auto& a : outs) c->given_out.push_back(!a.empty()), c->results += !a.empty();
  for (auto& a : outs) if (!a.empty()) operands.push_back(a.node());
  for (auto& a : in) {
    c->given_in.push_back(!a.empty());
    if (!a.empty()) operands.push_back(a.node());
  }
  auto node = make_custom(operands, c);
  Leaves out;
  std::size_t k = 0;
  for (auto& a : outs) out.push_back(a.empty() ? a : NamedArray(custom_result(node, k++)));
  return out;
}
Leaves eval_shape(LeafFunction f, const Leaves& in) {
  Tracing tracing;
  Leaves inside;
  for (auto& a : in) inside.push_back(a.empty() ? a : NamedArray(stand_in(a.node())));
  Leaves out;
  for (auto& a : f(inside)) out.push_back(a.empty() ? a : NamedArray(prim::input(a.node()->axes, a.dtype())));
  return out;
}

}  // namespace detail
}  // namespace haliax
