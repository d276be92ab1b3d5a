// Mixtures of experts: routing, and linear layers by groups of rows.
#include "haliax/moe.h"

#include <cmath>

#include "graph/fail.h"
#include "graph/value.h"
#include "ops/named.h"
#include "ops/ragged.h"

namespace haliax {

using namespace ops;

namespace {

// Merges axes into one with a name that x lacks. One axis stays as it is.
NodePtr merged(const NodePtr& x, const Axes& axes, const char* name, const Axes& taken,
               Name& merged_name) {
  if (axes.size() == 1) {
    merged_name = axes[0].name;
    return x;
  }
  std::string fresh = name;
  while (has(taken, fresh)) fresh += "'";
  merged_name = fresh;
  if (axes.empty()) {
    auto wide = x->axes;
    wide.push_back(Axis(merged_name, 1));
    return prim::fit(x, wide);
  }
  return prim::flatten(x, names_of(axes), Axis(merged_name, axis_size(axes)));
}

}  // namespace

NamedArray ragged_dot(Arr x, Arr weight, Arr group_sizes, const AxisSelection& axis) {
  const char* op = "ragged_dot";
  CallSite here(x.at());
  auto nodes = operands_of(op, {x, weight});
  auto sizes = node_of(op, group_sizes);
  auto inner = axes_of(op, nodes[0], axis);
  if (inner.empty() || axis.all()) fail(op, "name the contracted axes");
  if (!is_integer(sizes->dtype)) fail(op, "group_sizes: expected integers, got {}", sizes->dtype);
  auto shown = visible(*nodes[0]), table = visible(*nodes[1]), groups = visible(*sizes);
  check_sizes(op, shown, table);
  check_sizes(op, table, groups);
  if (groups.size() != 1)
    fail(op, "group_sizes has the axes {}; it must have one axis, the groups", groups);
  auto rows = without(shown, inner);
  if (rows.size() != 1)
    fail(op, "x has the axes {} in addition to {}; it must have one axis of rows", rows, inner);
  if (!has(table, groups[0].name))
    fail(op, "axis {} of group_sizes is not in the weight {}{}", groups[0].name, table,
         did_you_mean(groups[0].name, table));
  if (has(shown, groups[0].name))
    fail(op, "axis {} of group_sizes is also in x {}", groups[0].name, shown);
  if (has(table, rows[0].name)) fail(op, "axis {} is in x and in the weight", rows[0].name);
  for (auto& a : inner)
    if (!has(table, a.name)) fail(op, "axis {} is not in the weight {}", a.name, table);
  auto columns = without(without(table, inner), groups);
  auto dtype = nodes[0]->dtype, wide = is_float(dtype) ? dtype : DType::f32;
  prim::RaggedAttr r{rows[0].name, groups[0].name, {}, {}};
  const auto taken = joined(joined(nodes[0]->axes, nodes[1]->axes), groups);
  auto a = merged(prim::cast(nodes[0], wide), inner, "inner", taken, r.inner);
  auto b = merged(prim::cast(nodes[1], wide), inner, "inner", taken, r.inner);
  b = merged(b, columns, "columns", taken, r.columns);
  auto y = prim::ragged(a, b, prim::cast(sizes, DType::i64), r);
  if (columns.empty())
    y = prim::slice(y, r.columns, 0, 1, 1, true);
  else if (columns.size() > 1)
    y = prim::unflatten(y, r.columns, columns);
  return constrained(op, wrap(y));
}

namespace nn {

MoELinear MoELinear::init(const Axis& Experts, const Axis& In, const Axis& Out, const Key& key,
                          MoELinearOptions options, SourceLocation at) {
  CallSite here(at, true);
  auto axes = options.out_first ? concat_axes({Experts, Out}, {In}, at)
                                : concat_axes({Experts, In}, {Out}, at);
  const double scale = options.init_scale / std::sqrt(double(In.size));
  MoELinear l{random::truncated_normal(key, axes, -3., 3.) * scale, {}, Experts, In, Out};
  if (options.use_bias) l.bias = zeros(Out);
  return l;
}
NamedArray MoELinear::operator()(Arr x, Arr group_sizes) const {
  LayerScope scope(x, weight);
  auto y = ragged_dot(x, weight, group_sizes, In);
  return bias ? y + *bias : y;
}

MoE MoE::init(const Axis& Experts, const Axis& Embed, const Axis& Mlp, const Key& key,
              MoEOptions options, SourceLocation at) {
  CallSite here(at, true);
  if (options.experts_per_token < 1 || options.experts_per_token > Experts.size)
    fail("moe", "experts_per_token is {}; it must be from 1 to the size of {}",
         options.experts_per_token, Experts);
  auto keys = random::split(key, 4);
  const MoELinearOptions linear{.use_bias = false, .init_scale = options.init_scale};
  return {
      Linear::init(Embed, Experts, keys[0], {.use_bias = false, .init_scale = options.init_scale}),
      MoELinear::init(Experts, Embed, Mlp, keys[1], linear),
      MoELinear::init(Experts, Embed, Mlp, keys[2], linear),
      MoELinear::init(Experts, Mlp, Embed, keys[3], linear),
      Experts,
      Embed,
      options.experts_per_token,
      options.activation,
      options.normalize};
}
NamedArray MoE::operator()(Arr x) const {
  LayerScope scope(x, gate.weight);
  auto shown = x.axes();
  if (!has(shown, Embed.name))
    fail("moe", "axis {} is not in the input {}{}", Embed.name, shown,
         did_you_mean(Embed.name, shown));
  const auto others = without(shown, {Embed});
  const Axis Token("token of moe", axis_size(others));
  NamedArray tokens =
      others.empty() ? broadcast_axis(x, Token) : flatten_axes(x, names_of(others), Token);
  // (token, choice): the experts of each token and their weights
  const Name choice("choice of moe"), slot("slot of moe");
  auto probabilities = softmax(astype(router(tokens), DType::f32), Experts);
  auto [weights, experts] = top_k(probabilities, Experts, experts_per_token, choice);
  if (normalize) weights = weights / sum(weights, choice);
  const Axis Choice(choice, experts_per_token), Slot(slot, Token.size * experts_per_token);
  // (slot): pairs of a token and a choice, sorted by expert
  auto expert = flatten_axes(experts, {Token.name, choice}, Slot);
  auto order = argsort(expert, Slot);
  auto sizes = sum(equal(broadcast_axis(expert, Experts), arange(Experts)), slot);
  auto rows = take(tokens, Token, floor_divide(order, experts_per_token));
  auto hidden = activation(gate(rows, sizes)) * up(rows, sizes);
  auto results = down(hidden, sizes);  // (slot, embed)
  // (token, choice): the position of each pair in the sorted order
  auto place = unflatten_axis(argsort(order, Slot), Slot, {Token, Choice});
  auto mixed = dot(take(results, Slot, place), astype(weights, results.dtype()), choice);
  auto y = others.empty() ? at(mixed, Token, 0) : unflatten_axis(mixed, Token, others);
  return rearrange(astype(y, x.dtype()), names_of(shown));
}

}  // namespace nn
}  // namespace haliax
