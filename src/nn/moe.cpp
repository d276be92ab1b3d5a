// Mixtures of experts: routing, and linear layers by groups of rows.
#include "haliax/moe.h"

#include <cmath>

#include "graph/fail.h"
#include "graph/value.h"
#include "nn/expert_parallel.h"
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
  auto shown = visible(*nodes[0]), table = visible(*nodes[1]), counted = visible(*sizes);
  check_sizes(op, shown, table);
  check_sizes(op, table, counted);
  check_sizes(op, shown, counted);
  // Axes of x and of the sizes are batch axes.
  auto groups = without(counted, shown), batch = without(counted, groups);
  if (groups.size() != 1)
    fail(op, "group_sizes has the axes {} in addition to those of x; it must have one, the groups",
         groups);
  auto rows = without(without(shown, inner), batch);
  if (rows.size() != 1)
    fail(op, "x has the axes {} in addition to {}; it must have one axis of rows", rows, inner);
  if (!has(table, groups[0].name))
    fail(op, "axis {} of group_sizes is not in the weight {}{}", groups[0].name, table,
         did_you_mean(groups[0].name, table));
  if (has(table, rows[0].name)) fail(op, "axis {} is in x and in the weight", rows[0].name);
  for (auto& a : inner)
    if (!has(table, a.name)) fail(op, "axis {} is not in the weight {}", a.name, table);
  auto columns = without(without(without(table, inner), groups), batch);
  auto dtype = nodes[0]->dtype, wide = is_float(dtype) ? dtype : DType::f32;
  prim::RaggedAttr r{rows[0].name, groups[0].name, {}, {}};
  const auto taken = joined(joined(nodes[0]->axes, nodes[1]->axes), groups);
  auto a = merged(prim::cast(nodes[0], wide), inner, "inner", taken, r.inner);
  auto b = merged(prim::cast(nodes[1], wide), inner, "inner", taken, r.inner);
  b = merged(b, columns, "columns", taken, r.columns);
  auto y = prim::ragged(a, b, prim::cast(sizes, DType::i64), r);
  if (columns.empty())
    y = prim::at_position(y, r.columns, 0);
  else if (columns.size() > 1)
    y = prim::unflatten(y, r.columns, columns);
  return constrained(op, wrap(y));
}

namespace nn {

MoELinear MoELinear::init(const Axis& Experts, const Axis& In, const Axis& Out, const Key& key,
                          MoELinearOptions options, SourceLocation at) {
  CallSite here(at, CallSite::layer);
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
  CallSite here(at, CallSite::layer);
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

namespace {

// The experts of each token, and the pairs of a token and a choice sorted by expert. All arrays may
// have batch axes.
struct Routing {
  Axis Token, Choice, Slot;
  NamedArray weights;  // (token, choice)
  NamedArray expert;   // (slot): by pair
  NamedArray order;    // (slot): the pairs, sorted by expert
  NamedArray sizes;    // (expert): i64, the number of pairs

  Routing(const MoE& m, const NamedArray& tokens, const Axis& token)
      : Token(token), Choice("choice of moe", m.experts_per_token),
        Slot("slot of moe", token.size * m.experts_per_token) {
    auto probabilities = softmax(astype(m.router(tokens), DType::f32), m.Experts);
    auto [values, ids] = top_k(probabilities, m.Experts, Choice.size, Choice.name);
    weights = m.normalize ? values / sum(values, Choice) : values;
    expert = flatten_axes(ids, {Token.name, Choice.name}, Slot);
    order = argsort(expert, Slot);
    auto chosen = equal(broadcast_axis(expert, m.Experts), arange(m.Experts));
    sizes = astype(sum(chosen, Slot), DType::i64);
  }
  // (slot): the position of each pair in the order
  NamedArray place() const { return argsort(order, Slot); }
  // (slot): the weight of each pair, sorted by expert
  NamedArray sorted_weights() const {
    return take(flatten_axes(weights, {Token.name, Choice.name}, Slot), Slot, order);
  }
  // Returns results by pair, sorted by expert, as (token, choice, embed).
  NamedArray by_token(const NamedArray& results) const {
    return unflatten_axis(take(results, Slot, place()), Slot, {Token, Choice});
  }
  // Sums the results of the choices, (slot, embed), to (token, embed).
  NamedArray mixed(const NamedArray& results) const {
    return dot(unflatten_axis(results, Slot, {Token, Choice}), astype(weights, results.dtype()),
               Choice);
  }
};
// Returns the rows on their new device: `counts` is there, too.
NamedArray with_counts(const NamedArray& x, const NamedArray& counts, const Axis& rows) {
  auto axes = counts.axes();
  axes.push_back(rows);
  return wrap(prim::counted_rows(prim::fit(x.node(), haliax::joined(axes, x.axes())), counts.node(),
                                 rows.name));
}
NamedArray first_rows(const NamedArray& x, const NamedArray& counts, const Axis& rows) {
  return wrap(prim::first_rows(x.node(), counts.node(), rows.name));
}
// Constrains x to one mapping, and its gradient to the other.
NamedArray placed(const NamedArray& x, const Mapping& by, const Mapping& of_gradient) {
  return wrap(prim::sharding_constraint(x.node(), std::make_shared<const Mapping>(by), "moe",
                                        std::make_shared<const Mapping>(of_gradient)));
}
MoELinear on_each(const ExpertParallel& e, MoELinear l) {
  l.weight = unflatten_axis(l.weight, l.Experts, {e.receiver, e.experts});
  l.Experts = e.experts;
  return l;
}

// The rows that each sender sends to each receiver.
struct Dispatched {
  Axis Row;
  NamedArray row = {};         // (row): its number
  NamedArray sizes = {};       // (sender, receiver, local expert): numbers of rows
  NamedArray counts = {};      // (sender, receiver): numbers of rows
  NamedArray first_slot = {};  // (sender, receiver): slot of the first row
  NamedArray rows = {};        // (sender, receiver, row, embed)
};
Dispatched dispatch(const MoE& m, const ExpertParallel& e, const Routing& to,
                    const NamedArray& tokens) {
  axis_mapping scope(e.sent);
  Dispatched out{.Row = {"row of moe", to.Slot.size}};
  auto& Row = out.Row;
  out.row = astype(arange(Row), DType::i64);
  out.sizes = unflatten_axis(to.sizes, m.Experts, {e.receiver, e.experts});
  out.counts = sum(out.sizes, e.experts);
  out.first_slot = cumsum(out.counts, e.receiver) - out.counts;
  // Rows at or after the count read any slot; first_rows sets them to 0.
  auto slots = minimum(broadcast_axis(out.first_slot, Row) + out.row, Row.size - 1);
  auto pairs = take(to.order, to.Slot, slots);
  out.rows =
      first_rows(take(tokens, to.Token, floor_divide(pairs, m.experts_per_token)), out.counts, Row);
  return out;
}
// Returns the results of the experts for the rows, (receiver, sender, row, embed).
NamedArray run_experts(const MoE& m, const ExpertParallel& e, const Dispatched& sent) {
  axis_mapping scope(e.received);
  auto& Row = sent.Row;
  const Axis Rows("rows of moe", Row.size * e.sender.size);
  // (receiver, sender, row, embed): all to all
  auto arriving = placed(sent.sizes, e.received, e.sent);
  const auto counts = sum(arriving, e.experts);
  auto received = with_counts(placed(sent.rows, e.received, e.sent), counts, Row);
  // (receiver, rows): sorted by local expert. Rows that do not exist are last.
  auto ends = cumsum(arriving, e.experts);
  auto key = sum(less_equal(broadcast_axis(ends, Row), sent.row), e.experts);
  auto order = argsort(flatten_axes(key, {e.sender.name, Row.name}, Rows), Rows);
  auto inputs = take(flatten_axes(received, {e.sender.name, Row.name}, Rows), Rows, order);
  auto sizes = sum(arriving, e.sender);
  const auto gate = on_each(e, m.gate), up = on_each(e, m.up), down = on_each(e, m.down);
  auto results = down(m.activation(gate(inputs, sizes)) * up(inputs, sizes), sizes);
  auto returned = unflatten_axis(take(results, Rows, argsort(order, Rows)), Rows, {e.sender, Row});
  return first_rows(returned, counts, Row);
}
// Sums the results of the choices of each token, on the device of the token.
NamedArray combine(const ExpertParallel& e, const Routing& to, const Dispatched& sent,
                   const NamedArray& results) {
  axis_mapping scope(e.sent);
  auto& Row = sent.Row;
  const Axis Cell("cell of moe", Row.size * e.sender.size);
  auto returned = with_counts(placed(results, e.sent, e.received), sent.counts, Row);
  // (sender, slot): the receiver of each pair, and its row there
  auto receiver = floor_divide(to.expert, e.experts.size);
  auto returned_row =
      receiver * Row.size + to.place() - take(sent.first_slot, e.receiver, receiver);
  auto cells = flatten_axes(returned, {e.receiver.name, Row.name}, Cell);
  return to.mixed(take(cells, Cell, returned_row));
}
// The sender has `tokens`, (sender, token, embed). Each pair of a token and a choice is a row,
// which the sender sends to the device of the expert. An array of rows has room for all rows of a
// sender, but only the rows that exist are sent and multiplied.
NamedArray expert_parallel_moe(const MoE& m, const ExpertParallel& e, const NamedArray& tokens,
                               const Axis& Token) {
  const auto to = [&] {
    axis_mapping scope(e.sent);
    return Routing(m, tokens, Token);
  }();
  const auto sent = dispatch(m, e, to, tokens);
  return combine(e, to, sent, run_experts(m, e, sent));
}

}  // namespace

NamedArray MoE::operator()(Arr x) const {
  LayerScope scope(x, gate.weight);
  auto shown = x.axes();
  if (!has(shown, Embed.name))
    fail("moe", "axis {} is not in the input {}{}", Embed.name, shown,
         did_you_mean(Embed.name, shown));
  const auto others = without(shown, {Embed});
  NamedArray y;
  if (auto e = expert_parallel(Experts, others, joined({Embed}, {gate.Out}))) {
    const Axis Token("token of moe", e->local_tokens());
    auto tokens = placed(e->split(x, others, Token), e->sent, e->sent);
    y = constrained("moe", e->joined(expert_parallel_moe(*this, *e, tokens, Token), others, Token));
  } else {
    const Axis Token("token of moe", axis_size(others));
    NamedArray tokens =
        others.empty() ? broadcast_axis(x, Token) : flatten_axes(x, names_of(others), Token);
    const Routing to(*this, tokens, Token);
    auto rows = take(tokens, Token, floor_divide(to.order, experts_per_token));
    auto hidden = activation(gate(rows, to.sizes)) * up(rows, to.sizes);
    if (down.bias) {
      y = to.mixed(take(down(hidden, to.sizes), to.Slot, to.place()));
    } else {
      // Weights of the hidden features: the gradient then needs no results of the experts.
      hidden = hidden * astype(to.sorted_weights(), hidden.dtype());
      y = sum(to.by_token(down(hidden, to.sizes)), to.Choice);
    }
    y = others.empty() ? at(y, Token, 0) : unflatten_axis(y, Token, others);
  }
  return rearrange(astype(y, x.dtype()), names_of(shown));
}

}  // namespace nn
}  // namespace haliax
