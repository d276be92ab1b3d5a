// Errors for arrays without values: they depend on arguments of a function that is or was traced.
#include "runtime/tracers.h"

#include "base/name.h"
#include "base/where.h"
#include "graph/traversal.h"
#include "ops/prim.h"
#include "transforms/leaves.h"
#include "transforms/rewrite.h"

namespace haliax {
namespace {

std::string inside_of(const std::string& by, SourceLocation at) {
  auto place = to_string(at);
  return by + (place.empty() ? "" : " (" + place + ")");
}
bool is_input(const Node& n) { return n.op == &prim::kInput && !n.value && n.donated.empty(); }
Tracer tracer_of(const Node& input) {
  auto* mine = prim::trace_of(input).get();
  if (!mine) return {"a traced function", true};
  auto* t = context().trace.get();
  while (t && t != mine) t = t->outer.get();
  return {inside_of(mine->by, mine->at), !t, mine->by == std::string_view("shape"), mine->last};
}
// Returns the tracer for an axis that `vmap` hides, or for a position of a `scan`.
std::optional<Tracer> position_of(const Node& n) {
  for (auto& a : n.axes) {
    if (!a.name.hidden()) continue;
    bool around = has(context().hidden, a.name);
    return Tracer{inside_of("vmap over " + std::string(a.name.text()), a.name.data()->by), !around};
  }
  if (n.free.empty()) return {};
  if (auto s = scan_of(n.shared_from_this()))
    return Tracer{inside_of("scan", s->at), s->end != 0, false, s->end};
  return Tracer{inside_of("scan", n.free.front()->origin.at), context().loop_depth == 0};
}
// Returns the newest node below the root that was created inside the function, for the error
// message.
const Node& left_of(const NodePtr& root, const Tracer& t) {
  if (t.last == 0 || root->id <= t.last) return *root;
  const Node* last = root.get();
  for (auto& n : topological({root}, [](const Node& n) { return bool(n.value); }))  // by age
    if (n->id <= t.last && n->op->kind != Kind::leaf) last = n.get();
  return *last;
}
[[noreturn]] void refuse(const NodePtr& n, const Tracer& t) {
  if (t.has_shape_only)
    fail("eval", "this array is from eval_shape: it has axes and a dtype, but no value");
  if (!t.has_ended)
    fail("eval", "the value of a traced array is not available inside " + t.inside +
                     "; return the array and read it outside");
  auto created = to_string(left_of(n, t).origin.at);
  fail("eval", "this array is a leaked tracer: it was created " +
                   (created.empty() ? "" : "at " + created + " ") + "inside " + t.inside +
                   " and has a value only there; return it from that function");
}

}  // namespace

std::optional<Tracer> tracer_below(const NodePtr& root) {
  GraphReader reader;
  if (root->value) return {};
  if (auto position = position_of(*root)) return position;
  for (auto* n : nodes_below({root}, [](const Node& n) { return bool(n.value); }))
    if (is_input(*n)) return tracer_of(*n);
  return {};
}
void require_values(const Nodes& roots, const std::vector<const Node*>& nodes) {
  const bool inputs = std::any_of(nodes.begin(), nodes.end(), [](auto* n) { return is_input(*n); });
  for (auto& r : roots)
    if (inputs || position_of(*r))
      if (auto t = tracer_below(r)) refuse(r, *t);
}
void refuse_tracers(const Nodes& roots, const Nodes& inputs) {
  for (auto& r : roots)
    if (auto t = position_of(*r)) refuse(r, *t);
  const std::unordered_set<NodePtr> known(inputs.begin(), inputs.end());
  for (auto& n : all_nodes(roots)) {  // operands first
    auto foreign = [&](const NodePtr& x) { return x && is_input(*x) && !known.count(x); };
    if (auto x = std::find_if(n->in.begin(), n->in.end(), foreign); x != n->in.end())
      refuse(n, tracer_of(**x));
    if (foreign(n) && std::find(roots.begin(), roots.end(), n) != roots.end())
      refuse(n, tracer_of(*n));
  }
}

}  // namespace haliax
