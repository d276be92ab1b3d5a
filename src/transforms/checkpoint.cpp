// Functions with a backward pass of their own: checkpoint and custom_vjp. Also eval_shape, which
// only computes axes and dtypes.
#include <algorithm>
#include <unordered_set>

#include "graph/axes.h"
#include "graph/fail.h"
#include "ops/effect.h"
#include "ops/prim.h"
#include "transforms/leaves.h"
#include "transforms/rewrite.h"
#include "transforms/scores.h"

namespace haliax {
namespace {

// Returns an input that represents x while a function is traced.
NodePtr placeholder(NodeRef x) { return prim::input(x->axes, x->dtype, x->origin.module); }

void begin_trace(const char* by, SourceLocation at = {}) {  // ends with the enclosing Tracing
  auto& c = context();
  c.trace = std::make_shared<const Trace>(Trace{by, at, c.trace});
}

bool has_node(const Nodes& nodes, NodeRef n) {
  return std::find(nodes.begin(), nodes.end(), n) != nodes.end();
}

// Returns the float nodes below the roots that do not depend on the inputs: the arrays that a
// function captured.
Nodes captured(const Nodes& roots, const Nodes& inputs) {
  std::unordered_set<const Node*> goals;
  for (auto& n : inputs) goals.insert(n.get());
  auto depends = dependents(roots, goals);
  Nodes out;
  traverse(roots, [&](NodeRef n, PendingNodes& todo) {
    if (goals.count(n.get())) return;
    if (depends.count(n.get()))
      append(todo, n->in);
    else if (is_float(n->dtype) && !is_generated(n))
      out.push_back(n);
  });
  sort_by_age(out);
  return out;
}
// Returns the operands of `checkpoint_name` with one of these names, which the backward pass reads
// instead of recomputing them. The traversal stops at inputs, which are saved in any case. For
// example, given y = checkpoint_name(dot(x, w), "y"), returns dot(x, w).
Nodes named_values(const Nodes& roots, const Nodes& inputs, const Names& names) {
  Nodes out;
  if (names.empty()) return out;
  auto is_input = [&](NodeRef n) { return has_node(inputs, n); };
  traverse(roots, [&](NodeRef n, PendingNodes& todo) {
    auto name = prim::checkpoint_name_of(*n);
    if (name && has(names, *name)) {
      auto& value = n->in[0];
      if (!has_node(out, value) && !is_input(value)) out.push_back(value);
    }
    if (!is_input(n)) append(todo, n->in);
  });
  sort_by_age(out);
  return out;
}
// Returns the nodes with replacements; a null node stays null.
Nodes substitute_present(const Nodes& nodes, Rewrite& to) {
  Nodes present;
  for (auto& n : nodes)
    if (n) present.push_back(n);
  present = substitute(present, to);
  auto next = present.begin();
  Nodes out;
  for (auto& n : nodes) out.push_back(n ? *next++ : n);
  return out;
}
// Returns the results of a new node, in the structure of the traced results.
Leaves results_of(const std::shared_ptr<const CustomVjp>& c, const Nodes& operands,
                  const Leaves& traced) {
  auto node = make_custom_vjp(operands, c);
  std::size_t k = 0;
  return mapped(traced, [&](NodeRef) { return custom_vjp_result(node, k++); });
}

struct Checkpointed : CustomVjp {
  Nodes outs, inputs;  // the trace: results as functions of placeholders and captured arrays
  Nodes saved;         // values of the trace that are operands, after the arrays
  Nodes backward(const Nodes& operands, const Nodes& gs) const override {
    Nodes delayed;  // the inputs after barriers: the recomputation follows the cotangent
    Rewrite to;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      delayed.push_back(prim::barrier(operands[results + k], gs[0]));
      to[inputs[k].get()] = delayed.back();
    }
    auto values = outs;
    append(values, saved);
    // The recomputation is a new graph, so its large scores get boundaries of their own.
    auto ys = with_score_boundaries(substitute(values, to), scores_budget(context().scores_budget),
                                    context().loop_depth, delayed);
    Rewrite read;  // from recomputed values to saved ones
    for (std::size_t k = saved.size(); k-- > 0; ys.pop_back())
      read[ys.back().get()] = prim::barrier(operands[results + inputs.size() + k], gs[0]);
    auto back = vjp(ys, gs, delayed);
    if (!saved.empty()) back = substitute_present(back, read);
    // An array that is two operands has one cotangent, which covers both.
    std::unordered_set<const Node*> counted;
    for (std::size_t k = 0; k < back.size(); ++k)
      if (!counted.insert(delayed[k].get()).second) back[k] = nullptr;
    return back;
  }
  std::string fault(const Nodes& operands) const override {
    auto traced = outs;
    append(traced, inputs);
    append(traced, saved);
    if (traced.size() != operands.size())
      return fmt::format("it was traced with {} arrays, but has {}", traced.size(),
                         operands.size());
    for (std::size_t k = 0; k < traced.size(); ++k)
      if (auto& t = *traced[k], &o = *operands[k]; !same_set(t.axes, o.axes) || t.dtype != o.dtype)
        return fmt::format("array {} was traced as {} {}, but is {} {}", k, name_of(t.dtype),
                           to_string(t.axes), name_of(o.dtype), to_string(o.axes));
    return {};
  }
  std::vector<const Node*> held() const override {
    std::vector<const Node*> out;
    for (auto* nodes : {&outs, &inputs, &saved})
      for (auto& n : *nodes) out.push_back(n.get());
    return out;
  }
};
// Returns the ids of the carries of enclosing loops that the nodes depend on.
std::unordered_set<std::uint64_t> carries_below(const Nodes& nodes) {
  std::unordered_set<std::uint64_t> out;
  traverse(nodes, [&](NodeRef n, PendingNodes& todo) {
    if (n->op == &prim::kCarry)
      out.insert(n->id);
    else if (!n->free.empty())
      append(todo, n->in);
  });
  return out;
}

struct UserCustomVjp : CustomVjp {
  std::shared_ptr<void> self;
  Leaves (*call)(void*, const Leaves&, const Leaves&, const Leaves&);
  std::vector<bool> present_in, present_out;  // which leaves are not empty
  // Carries that the operands depend on. The body of a recomputed loop has different carries.
  std::unordered_set<std::uint64_t> carries;
  Nodes backward(const Nodes& operands, const Nodes& gs) const override {
    auto leaves = [](const std::vector<bool>& given, auto next) {
      Leaves out;
      for (bool there : given) out.push_back(there ? NamedArray(*next++) : NamedArray());
      return out;
    };
    auto in = leaves(present_in, operands.begin() + std::ptrdiff_t(results));
    Leaves back;
    {
      OutsideGraph outside;
      back = call(self.get(), in, leaves(present_out, operands.begin()),
                  leaves(present_out, gs.begin()));
    }
    if (back.size() != present_in.size())
      fail("custom_vjp", "the backward returned {} arrays for {} arguments", back.size(),
           present_in.size());
    Nodes result;
    for (std::size_t k = 0; k < back.size(); ++k) {
      if (!present_in[k]) continue;
      if (!back[k].empty() && !same_axes(back[k], in[k]))
        fail("custom_vjp", "the cotangent of argument array {} is {}, but the array is {}", k,
             back[k].axes(), in[k].axes());
      result.push_back(back[k].node());
    }
    auto known = operands;
    append(known, gs);
    const auto now = carries_below(known);
    for (auto c : carries_below(result))
      if (carries.count(c) && !now.count(c))
        fail("custom_vjp",
             "the backward reads an array that it captured from the body of a loop, but the loop "
             "is rebuilt, as for a second derivative; pass that array as an argument");
    return result;
  }
  // The operands are the results of the function, then its arguments.
  std::string fault(const Nodes& operands) const override {
    auto count = [](const std::vector<bool>& given) {
      return std::size_t(std::count(given.begin(), given.end(), true));
    };
    auto out = count(present_out), in = count(present_in);
    if (out == results && out + in == operands.size()) return {};
    return fmt::format(
        "its function has {} arguments and {} results, but it has {} operands, {} of them results",
        in, out, operands.size(), results);
  }
};

}  // namespace

namespace detail {

Leaves checkpoint(LeafFunction f, const Leaves& in, SourceLocation at,
                  const std::vector<std::string>& names) {
  Tracing tracing;
  begin_trace("checkpoint", at);
  GraphReader reader;
  auto c = std::make_shared<Checkpointed>();
  auto inside = mapped(in, placeholder);
  auto traced = called(f, inside);
  auto given = nodes_of(in);
  c->inputs = nodes_of(inside);
  c->outs = nodes_of(traced);
  c->results = c->outs.size();
  Rewrite to;
  for (std::size_t k = 0; k < given.size(); ++k) to[c->inputs[k].get()] = given[k];
  if (auto& effect = context().effect) effect = substitute(effect, to);
  auto more = captured(c->outs, c->inputs);
  append(c->inputs, more);
  c->saved = named_values(c->outs, c->inputs, Names(names.begin(), names.end()));
  auto values = c->outs;
  append(values, c->saved);
  values = substitute(values, to);
  auto saved = Nodes(values.begin() + std::ptrdiff_t(c->results), values.end());
  auto operands = Nodes(values.begin(), values.begin() + std::ptrdiff_t(c->results));
  append(operands, given);
  append(operands, more);
  append(operands, saved);
  run_ready_effects();
  return results_of(c, operands, traced);
}
NamedArray with_checkpoint_name(const NamedArray& a, const std::string& name, SourceLocation at) {
  CallSite here(at);
  if (name.empty()) fail("tree_checkpoint_name", "the name is empty");
  return a.empty() || !is_float(a.dtype()) ? a : NamedArray(prim::checkpoint_name(a.node(), name));
}
Leaves custom_vjp(LeafFunction forward, const Leaves& in, std::shared_ptr<void> self,
                  Leaves (*call)(void*, const Leaves&, const Leaves&, const Leaves&)) {
  Tracing tracing;
  GraphReader reader;
  auto c = std::make_shared<UserCustomVjp>();
  auto outs = called(forward, in);
  auto operands = nodes_of(outs);
  c->self = std::move(self);
  c->call = call;
  c->results = operands.size();
  for (auto& a : outs) c->present_out.push_back(!a.empty());
  for (auto& a : in) c->present_in.push_back(!a.empty());
  append(operands, nodes_of(in));
  c->carries = carries_below(operands);
  return results_of(c, operands, outs);
}
Leaves transposed(LeafFunction linear, const Leaves& in, const Leaves& out, const Leaves& g) {
  Tracing tracing;
  const auto zeros =
      mapped(in, [](NodeRef n) { return is_float(n->dtype) ? prim::zeros_like(n) : nullptr; });
  const auto x = tracers(zeros, std::vector<bool>(in.size()), std::vector<std::string>(in.size()));
  const auto y = called(linear, x);
  if (y.size() != out.size())
    fail("custom_jvp", "the rule returned {} tangents for {} results", y.size(), out.size());
  Nodes ys, gs;
  for (std::size_t k = 0; k < y.size(); ++k) {
    if (y[k].empty() || g[k].empty() || !is_float(y[k].dtype())) continue;
    if (!same_axes(y[k], out[k]))
      fail("custom_jvp", "the tangent of result array {} is {}, but the array is {}", k,
           y[k].axes(), out[k].axes());
    ys.push_back(y[k].node());
    gs.push_back(g[k].node());
  }
  const auto gradients = vjp(ys, gs, nodes_of(x));
  auto next = gradients.begin();
  return mapped(x, [&](NodeRef) { return *next++; });
}
Leaves eval_shape(LeafFunction f, const Leaves& in) {
  Tracing tracing;
  begin_trace("eval_shape");
  GraphReader reader;
  auto before = context().effect;
  auto shapes = called(f, mapped(in, placeholder));
  context().effect = before;
  context().trace->last = newest_id();
  begin_trace("shape");  // the results have only axes and a dtype as well
  return mapped(shapes, [](NodeRef n) { return prim::input(n->axes, n->dtype); });
}

}  // namespace detail
}  // namespace haliax
