// Gather and scatter.
#include <algorithm>

#include "graph/emit.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/distributed_order.h"
#include "ops/fault.h"
#include "ops/prim.h"

namespace haliax::prim {
namespace {

using program::Outside;
using program::Update;

program::View table_view(const Place& p, const Axes& axes, const Names& indexed, const Axes& dims) {
  auto v = Emit::view(p, axes, dims);
  for (std::size_t d = 0; d < dims.size(); ++d)
    // The name of an indexed axis may also be the name of an axis of the ids.
    for (auto n : indexed)
      if (dims[d].name == n) v.strides[d] = 0;
  return v;
}
std::vector<program::Indexed> indexed_of(const Node& n, std::size_t first, const Place& table,
                                         const Axes& table_axes, const Axes& dims, Emit& e) {
  std::vector<program::Indexed> out;
  for (auto& [axis, ids] : picks_of(n, first)) {
    std::size_t d = 0;
    while (table_axes[d].name != axis) ++d;
    out.push_back({Emit::view(e.operand(first + out.size()), ids->axes, dims), table.strides[d],
                   table_axes[d].size});
  }
  return out;
}
void gather_lower(const Node& n, Emit& e) {
  auto table = e.operand(0);
  auto gather = GatherAttr::of(n);
  auto& axes = n.in[0]->axes;
  e.push({.kind = program::Kind::gather,
          .gather = {Emit::sizes(n.axes), table_view(table, axes, gather.axes, n.axes),
                     Emit::view(e.result(), n.axes, n.axes),
                     indexed_of(n, 1, table, axes, n.axes, e), gather.outside}});
}
void scatter_lower(const Node& n, Emit& e) {
  auto target = e.result();
  auto scatter = ScatterAttr::of(n);
  if (is_number(n.in[0], 0))
    e.zero(target, n.axes);
  else
    e.copy(e.operand(0), target, n.axes);
  auto& dims = n.in[1]->axes;
  e.push({.kind = program::Kind::scatter,
          .scatter = {Emit::sizes(dims), Emit::view(e.operand(1), dims, dims),
                      table_view(target, n.axes, scatter.axes, dims),
                      indexed_of(n, 2, target, n.axes, dims, e), scatter.update, scatter.clamp}});
}
// ---- rules along axes ----
using Way = Along::Way;
// An indexed axis may also be an axis of the ids. Then its name denotes the axis of the ids, and
// the axis of the table has no name.
Along gather_along(const Node& n, std::size_t k, Name a) {
  if (k != 0 || !has(indexed_axes(n), a)) return {Way::map, a};
  if (has(n.axes, a)) return {Way::full, {}};
  return {Way::pick, a, n.dtype == DType::boolean ? Monoid::max : Monoid::sum};
}
// Returns the monoid that combines updates; for `set`, of values that are 0 in all blocks but one.
// The sum of booleans is a logical or, hence max.
Monoid monoid_of(const Node& scatter) {
  switch (ScatterAttr::of(scatter).update) {
    case Update::mul:
      return Monoid::prod;
    case Update::min:
      return Monoid::min;
    case Update::max:
      return Monoid::max;
    case Update::add:
    case Update::set:
      break;
  }
  return scatter.dtype == DType::boolean ? Monoid::max : Monoid::sum;
}
Along scatter_along(const Node& n, std::size_t k, Name a) {
  bool indexed = has(indexed_axes(n), a), clashes = indexed && has(n.in[1]->axes, a);
  if (k == 0 || k == kResultSide) {  // the base, or the result
    if (clashes) return {Way::full, {}};
    return indexed && k == 0 ? Along{Way::pick, a, monoid_of(n)} : Along{Way::map, a};
  }
  if (has(n.axes, a) && !clashes) return {Way::map, a};
  // For `set`, the last one of several updates wins, so their order matters.
  return {ScatterAttr::of(n).update == Update::set ? Way::full : Way::fold, a, monoid_of(n)};
}
std::optional<Monoid> scatter_monoid(const Node& n) {
  return ScatterAttr::of(n).update == Update::set ? std::nullopt : std::optional(monoid_of(n));
}
Linear scatter_zero_in(const Node& n, std::size_t k) {
  if (k > 1 || scatter_monoid(n) != Monoid::sum) return Linear::no;
  return !is_number(n.in[0], 0) ? Linear::all : k == 1 ? Linear::one : Linear::no;
}
// ---- gradients of gathers ----
// Returns the inverse of a permutation along an axis, or null if the ids are no permutation.
NodePtr inverse_permutation(NodeRef ids, Name axis) {
  auto permutes = [&](NodeRef n) { return n->op == &kArgsort && AlongAttr::of(*n).axis == axis; };
  if (!permutes(ids)) return nullptr;
  return permutes(ids->in[0]) ? ids->in[0] : argsort(ids, axis);
}
// The cotangent of rows that a permutation picks: a gather by the inverse permutation, which is
// cheaper than a sum of updates. Returns null for other gathers, and for short rows, for which the
// sort of the inverse permutation costs more.
constexpr std::int64_t kLongRow = 16;
NodePtr permuted_back(const Node& o, NodeRef g) {
  auto &table = o.in[0], &ids = o.in[1];
  auto picked = picks_of(o, 1);
  if (picked.size() != 1 || table->size() < kLongRow * ids->size()) return nullptr;
  const Name axis = picked[0].axis;
  const auto own = without(ids->axes, table->axes);  // the axes of the ids that the table lacks
  const Name along = own.empty() ? axis : own[0].name;
  auto *from = find(*ids, along), *to = find(*table, axis);
  if (own.size() > 1 || !from || from->size != to->size) return nullptr;
  if (along != axis && has(ids->axes, axis)) return nullptr;
  auto inverse = inverse_permutation(ids, along);
  if (!inverse) return nullptr;
  return gather(g, {{along, rename(inverse, {along}, {axis})}}, table->axes, Outside::clamp);
}
// The cotangent of a roll is rolled back. Returns null for other gathers.
NodePtr rolled_back(const Node& o, NodeRef g) {
  auto& table = o.in[0];
  auto& picked = indexed_axes(o);
  const NodePtr by = picked.size() == 1 ? rolled_by(o, picked[0]) : nullptr;
  if (!by || !is_signed(by->dtype) || !without(by->axes, table->axes).empty()) return nullptr;
  const Axis a = *find(*table, picked[0]);
  const auto size = integer(a.size, by->dtype);
  auto back = rolled_ids(a, sub(size, map(kMod, {by, size}, by->dtype)));
  return gather(g, {{a.name, back}}, table->axes, Outside::clamp);
}
// ---- gradients of scatters ----
// The cotangents of the base and of the updates.
class ScatterGradient {
 public:
  explicit ScatterGradient(NodeRef o)
      : o_(o), base_(o->in[0]), updates_(o->in[1]), picks_(picks_of(*o, 2)),
        clamp_(ScatterAttr::of(*o).clamp) {}
  Nodes of(NodeRef g) const {
    switch (ScatterAttr::of(*o_).update) {
      case Update::add:
        return {g, picked(g)};
      case Update::set: {
        auto none = filled(0, g->dtype, updates_->axes);
        return {scatter(g, none, picks_, Update::set, clamp_), picked(g)};
      }
      case Update::mul:
        return of_product(g);
      case Update::min:
      case Update::max:
        break;
    }
    return of_extreme(g);
  }

 private:
  // Returns x at the positions of the updates.
  NodePtr picked(NodeRef x) const {
    return gather(x, picks_, updates_->axes, clamp_ ? Outside::clamp : Outside::zero);
  }
  // Returns zeros (or ones) with `updates` combined at the positions of the scatter.
  NodePtr combined(double start, NodeRef updates, Update how) const {
    return scatter(filled(start, updates->dtype, o_->axes), updates, picks_, how, clamp_);
  }
  // The derivative by one factor is the product of the other factors of its element. It is computed
  // from the product of the nonzero factors and the number of zeros, so that it is exact at 0.
  Nodes of_product(NodeRef g) const {
    auto& u = updates_;
    auto zero = equal(u, number(0, u->dtype)), is_zero = cast(zero, u->dtype);
    auto factors = select(zero, one(u), u);
    auto zeros = combined(0, is_zero, Update::add);
    auto product = combined(1, factors, Update::mul);
    auto of_base = mul(g, combined(1, u, Update::mul));
    auto others = div(picked(mul(mul(g, base_), product)), factors);
    return {of_base, select(equal(picked(zeros), is_zero), others, number(0, u->dtype))};
  }
  // The operands that equal the result share the gradient evenly.
  Nodes of_extreme(NodeRef g) const {
    auto zero = number(0, g->dtype);
    auto own = equal(base_, o_), hits = equal(updates_, picked(o_));
    auto count = add(cast(own, g->dtype), combined(0, cast(hits, g->dtype), Update::add));
    auto share = div(g, max(count, one(g)));
    return {select(own, share, zero), select(hits, picked(share), zero)};
  }

  NodePtr o_, base_, updates_;
  std::vector<AxisIds> picks_;
  bool clamp_;
};
// ---- for the verifier ----
// After the first `first` operands, there is one operand of ids for each indexed axis.
std::string ids_fault(const Node& n, std::size_t first) {
  auto& picked = indexed_axes(n);
  if (n.in.size() != first + picked.size())
    return fmt::format("it has {} operands, but indexes {} axes", n.in.size(), picked.size());
  for (auto a : picked)
    if (!has(n.in[0]->axes, a)) return fmt::format("{} has no axis {}", n.in[0]->axes, a);
  return fault_of_dtypes(n, first);
}
std::string gather_fault(const Node& n) { return ids_fault(n, 1); }
std::string scatter_fault(const Node& n) {
  auto wrong = ids_fault(n, 2);
  return wrong.empty() && !same_set(n.axes, n.in[0]->axes) ? fault_of_sizes(n) : wrong;
}
}  // namespace

const Op kGather{.name = "take",
                 .kind = Kind::step,
                 .linear = Linear::no,
                 .grad =
                     [](NodeRef o, NodeRef g) {
                       auto& table = o->in[0];
                       Nodes out(o->in.size());
                       if ((out[0] = rolled_back(*o, g)) || (out[0] = permuted_back(*o, g)))
                         return out;
                       bool clamp = GatherAttr::of(*o).outside == Outside::clamp;
                       out[0] = scatter(filled(0, table->dtype, table->axes), g, picks_of(*o, 1),
                                        Update::add, clamp);
                       return out;
                     },
                 .lower = gather_lower,
                 .along = gather_along,
                 .on_block = gather_on_block,
                 .in_range = gather_in_range,
                 .linear_in =
                     [](const Node& n, std::size_t k) {
                       return k == 0 && is_float(n.dtype) ? Linear::one : Linear::no;
                     },
                 .fault = gather_fault,
                 .blockwise = gather_blockwise};
const Op kScatter{.name = "scatter",
                  .kind = Kind::step,
                  .linear = Linear::no,
                  .grad =
                      [](NodeRef o, NodeRef g) {
                        auto out = ScatterGradient(o).of(g);
                        out.resize(o->in.size());  // ids have no cotangent
                        return out;
                      },
                  .lower = scatter_lower,
                  .along = scatter_along,
                  .on_block = scatter_on_block,
                  .linear_in =
                      [](const Node& n, std::size_t k) {
                        return k == 1 && is_scatter_add(n) ? Linear::one : Linear::no;
                      },
                  .zero_in = scatter_zero_in,
                  .accumulates = scatter_monoid,
                  .fault = scatter_fault,
                  .blockwise = scatter_blockwise};
std::vector<AxisIds> picks_of(const Node& n, std::size_t first) {
  std::vector<AxisIds> picks;
  for (auto axis : indexed_axes(n)) picks.push_back({axis, n.in[first + picks.size()]});
  return picks;
}
NodePtr signed_ids(NodeRef ids, std::int64_t size) {
  auto d =
      bytes_of(ids->dtype) == 8 || ids->dtype == DType::u32 ? DType::i64 : position_dtype(2 * size);
  auto x = cast(ids->dtype == DType::u64 ? min(ids, integer(size, DType::u64)) : ids, d);
  return select(less(x, integer(0, x->dtype)), add(x, integer(size, x->dtype)), x);
}
NodePtr gather(NodeRef table, const std::vector<AxisIds>& picks, const Axes& out, Outside outside) {
  Nodes in{table};
  GatherAttr attr{{}, outside};
  for (auto& [axis, ids] : picks) {
    attr.axes.push_back(axis);
    in.push_back(ids);
  }

  return make(kGather, in, out, table->dtype, attr.attr());
}
NodePtr scatter(NodeRef base, NodeRef updates, const std::vector<AxisIds>& picks, Update update,
                bool clamp) {
  Axes dims;  // axes of the ids, then the remaining axes of the base
  Axes rest = base->axes;
  for (auto& [axis, ids] : picks) {
    dims = joined(dims, ids->axes);
    rest = replaced(rest, axis, {});
  }

  dims = joined(dims, rest);
  Nodes in{base, update == Update::add ? sum_to(updates, dims) : fit(updates, dims)};
  ScatterAttr attr{{}, update, clamp};
  for (auto& [axis, ids] : picks) {
    attr.axes.push_back(axis);
    in.push_back(ids);
  }

  return make(kScatter, in, base->axes, base->dtype, attr.attr());
}

namespace {
const bool picks_registered = register_ops({&kGather, &kScatter});
}  // namespace
}  // namespace haliax::prim
