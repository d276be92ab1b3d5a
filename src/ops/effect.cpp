// Effects: their node, and their order inside and outside of loops.
#include "ops/effect.h"

#include <algorithm>

#include "graph/emit.h"
#include "graph/traversal.h"
#include "ops/prim.h"

namespace haliax {
namespace {

void lower_effect(const Node& n, Emit& e) {
  program::Step s;
  s.kind = program::Kind::host;
  s.host.call = static_cast<const Effect&>(*n.attr.payload).call;
  for (std::size_t k = 0; k + 1 < n.in.size(); ++k) {
    auto& axes = n.in[k]->axes;
    s.host.arrays.push_back({Emit::sizes(axes), Emit::view(e.operand(k), axes, axes)});
  }
  e.zero(e.result(), {});
  e.push(std::move(s));
}
NodePtr nothing_yet() { return prim::integer(0, DType::i32); }

// Returns true if the node depends on no argument and on no loop index or carry.
bool is_known(NodeRef root) {
  bool known = true;
  traverse(
      {root}, [](const Node& n) { return !n.value; },
      [&](NodeRef n, PendingNodes& todo) {
        known &= n->op != &prim::kInput && n->free.empty();
        append(todo, n->in);
      });
  return known;
}

}  // namespace

const Op kEffect{.name = "effect", .kind = Kind::step, .lower = lower_effect};

void add_effect(Nodes values, std::shared_ptr<const program::HostCall> call) {
  auto& last = context().effect;
  auto payload = std::make_shared<Effect>();
  payload->call = std::move(call);
  values.push_back(last ? last : nothing_yet());
  last = make(kEffect, std::move(values), {}, DType::i32, {.payload = std::move(payload)});
}
void run_ready_effects(const std::vector<NamedArray>& created) {
  auto& c = context();
  if (!c.effect || c.in_jit || !is_known(c.effect)) return;
  std::vector<NamedArray> now{NamedArray(std::exchange(c.effect, nullptr))};
  for (auto& a : created) {
    auto hidden = [](const Axis& x) { return x.name.hidden(); };
    if (!a.empty() && std::none_of(a.node()->axes.begin(), a.node()->axes.end(), hidden) &&
        is_known(a.node()))
      now.push_back(a);
  }
  eval(now, c.origin.at);
}

LoopEffects::LoopEffects(NodeRef index)
    : before_(context().effect), carry_(prim::carry(index, {}, DType::i32)) {
  context().effect = carry_;
}
void LoopEffects::close() { last_ = std::exchange(context().effect, before_); }
void LoopEffects::add_to(Loop& l) const {
  if (!any()) return;
  auto& before = context().effect;
  l.results.push_back({.kind = ResultKind::carry,
                       .value = {last_},
                       .start = before ? before : nothing_yet(),
                       .carry = carry_,
                       .effect = true});
}
void LoopEffects::after(NodeRef loop) {
  auto& results = loop_of(*loop).results;
  for (std::size_t k = 0; k < results.size(); ++k)
    if (results[k].effect) context().effect = loop_result(loop, k);
}

}  // namespace haliax
