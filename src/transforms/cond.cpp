// cond and switch_: one of several sides runs. Each side is the body of a conditional, which is a
// loop of one iteration with a condition. Gradients, meshes and memory are therefore handled as for
// loops.
#include "base/dtype_hint.h"
#include "graph/fail.h"
#include "haliax/control.h"
#include "ops/attr.h"
#include "ops/effect.h"
#include "ops/named.h"
#include "transforms/leaves.h"
#include "transforms/rewrite.h"

namespace haliax::detail {
namespace {

// A traced side.
struct TracedSide {
  Leaves values;
  std::shared_ptr<LoopEffects> effects;
};

// Makes the nodes that a side reads from outside depend on the iteration. Nodes that only the side
// needs are then computed inside of it, or not at all. newest: the id of the last node that is
// older than the sides.
Nodes inside_iteration(const Nodes& roots, NodeRef index, std::uint64_t newest) {
  Rewrite to;
  traverse(roots, [&](NodeRef n, PendingNodes& todo) {
    if (n->id > newest) return add_reads(n, todo);
    if (n->op->kind == Kind::leaf && n->op->cheap) return;
    to[n.get()] = prim::barrier(n, index);
  });
  return substitute(roots, to);
}

void check_sides(const Sides& sides, const std::vector<TracedSide>& traced) {
  auto text = [](const NamedArray& a) {
    return a.empty() ? std::string("no array") : fmt::format("{} {}", a.dtype(), a.axes());
  };
  auto& first = traced[0].values;
  for (std::size_t s = 1; s < traced.size(); ++s) {
    auto& other = traced[s].values;
    if (first.size() != other.size())
      fail(sides.word, "one branch returns {} arrays, another {}", first.size(), other.size());
    for (std::size_t k = 0; k < first.size(); ++k) {
      auto &a = first[k], &b = other[k];
      bool same = a.empty() ? b.empty() : !b.empty() && a.dtype() == b.dtype() && same_axes(a, b);
      if (!same && sides.word == std::string_view("while_loop"))
        fail(sides.word, "the state changes from {} to {}; its axes and dtypes must stay the same",
             text(b), text(a));
      if (!same)
        fail(sides.word,
             "one branch returns {}, another {}; both must return the same axes and dtypes",
             text(a), text(b));
    }
  }
}

// Returns the flag of side k. For an integer, values out of range select the first or the last
// side.
NodePtr is_side(NodeRef which, std::size_t k, std::size_t count) {
  auto flag = [](const Op& op, Nodes in) { return prim::map(op, std::move(in), DType::boolean); };
  if (which->dtype == DType::boolean) return k == 0 ? which : flag(prim::kNot, {which});
  auto number = prim::integer(std::int64_t(k), which->dtype);
  if (count == 1) return prim::integer(1, DType::boolean);
  if (k == 0) return flag(prim::kLessEqual, {which, number});
  return k + 1 < count ? flag(prim::kEqual, {which, number})
                       : flag(prim::kLessEqual, {number, which});
}

// Runs all sides and selects their results elementwise.
Leaves select_elementwise(NodeRef which, const Sides& sides) {
  std::vector<TracedSide> traced;
  for (std::size_t s = 0; s < sides.count; ++s) traced.push_back({sides.each[s]({}), nullptr});
  check_sides(sides, traced);
  Leaves out = traced[0].values;
  for (std::size_t s = 1; s < traced.size(); ++s)
    for (std::size_t k = 0; k < out.size(); ++k)
      if (!out[k].empty())
        out[k] = where(NamedArray(is_side(which, s, sides.count)), traced[s].values[k], out[k]);
  return out;
}

// Runs one side. Creates a conditional per side, which replaces the results so far if its flag is
// true. Exactly one flag is true. For example, cond(p, f, g) becomes
//
//   r0 = 0;  r1 = p ? f() : r0;  r2 = !p ? g() : r1
Leaves conditional_per_side(NodeRef which, const Sides& sides) {
  auto& c = context();
  const auto index = prim::conditional_index(c.loop_depth);
  const auto newest = prim::input({}, DType::f32)->id;  // nodes of the sides are newer
  std::vector<TracedSide> traced;
  ++c.loop_depth;
  for (std::size_t s = 0; s < sides.count; ++s) {
    auto effects = std::make_shared<LoopEffects>(index);
    auto values = sides.each[s]({});
    effects->close();
    traced.push_back({std::move(values), std::move(effects)});
  }
  --c.loop_depth;
  check_sides(sides, traced);
  Axes hidden;  // axes that vmap hides in a side: the results of all sides have them
  for (auto& t : traced)
    for (auto& n : nodes_of(t.values)) hidden = joined(hidden, common(n->axes, c.hidden));
  auto out = mapped(traced[0].values, [&](NodeRef n) {
    return prim::filled(0, n->dtype, with_hidden(n->axes, hidden));
  });
  for (std::size_t s = 0; s < traced.size(); ++s) {
    auto& effects = *traced[s].effects;
    auto roots = nodes_of(traced[s].values);
    if (effects.any()) roots.push_back(effects.last());
    roots = inside_iteration(roots, index, newest);
    if (effects.any()) effects.replace_last(roots.back());
    auto l = prim::conditional(index, is_side(which, s, sides.count));
    std::size_t k = 0;
    for (auto& a : nodes_of(out)) {
      auto carry = prim::carry(index, a->axes, a->dtype);
      l.results.push_back({.kind = ResultKind::carry,
                           .value = {prim::fit(roots[k++], a->axes)},
                           .start = a,
                           .carry = carry});
    }
    effects.add_to(l);
    auto loop = make_loop(std::move(l));
    LoopEffects::after(loop);
    k = 1;  // result 0 is the condition
    out = mapped(out, [&](NodeRef) { return loop_result(loop, k++); });
  }
  return out;
}

}  // namespace

static Leaves traced_sides(const NamedArray& given, const Sides& sides) {
  Tracing tracing;
  const std::string_view word = sides.word;
  const bool is_flag = word != "switch_", is_loop = word == "while_loop";
  auto name = is_loop ? "condition" : is_flag ? "predicate" : "index";
  if (given.empty())
    fail(sides.word, "the {} is an empty NamedArray; assign a value to it first", name);
  if (given.ndim() != 0)
    fail(sides.word, "the {} must be a scalar, but has axes {}; {}", name, given.axes(),
         is_loop ? "reduce it with `all` or `any`" : "use `where` to select elementwise");
  if (is_flag ? given.dtype() != DType::boolean : !is_integer(given.dtype()))
    fail(sides.word, "{}: expected {}, got {}{}", name, is_flag ? "bool" : "an integer",
         given.dtype(), is_flag ? bool_hint() : integer_hint(given.dtype()));
  auto& which = given.node();
  // A predicate with an axis that vmap hides is elementwise.
  return which->axes.empty() ? conditional_per_side(which, sides)
                             : select_elementwise(which, sides);
}
Leaves chosen(const NamedArray& given, const Sides& sides) {
  CallSite here(sides.at);
  auto out = traced_sides(given, sides);
  run_ready_effects(out);
  return out;
}

}  // namespace haliax::detail
