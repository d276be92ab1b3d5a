// Typed views of `Attr`, the attributes of a node: one struct per op, which names the fields that
// `Attr` stores as names and integers.
#pragma once
#include "graph/loop.h"
#include "ops/prim.h"

namespace haliax {

// Ops that work along one axis, such as a sort or a concatenation. An op with Op::segments has this
// axis as its first name.
struct AlongAttr {
  Name axis;
  Attr attr() const { return {.names = {axis}}; }
  static AlongAttr of(const Node& n) { return {n.attr.names[0]}; }
};
// The name by which a checkpoint policy saves a value.
struct CheckpointNameAttr {
  Name name;
  Attr attr() const { return {.names = {name}}; }
  static CheckpointNameAttr of(const Node& n) { return {n.attr.names[0]}; }
};
// argmax, argmin: the reduced axes, in the order in which flat positions count them; other
// reductions have no attribute. softmax, logsumexp: the axes of the sums.
struct ReduceAttr {
  Names over;
  Attr attr() const { return {.names = over}; }
  static ReduceAttr of(const Node& n) { return {n.attr.names}; }
};
// flatten: merges the axes `parts` into `flat`, row-major. unflatten: splits `flat` into `parts`.
struct RegroupAttr {
  Names parts;
  Name flat;
  Attr attr() const {
    Attr a{.names = parts};
    a.names.push_back(flat);
    return a;
  }
  static RegroupAttr of(const Attr& a) {
    return {{a.names.begin(), a.names.end() - 1}, a.names.back()};
  }
  static RegroupAttr of(const Node& n) { return of(n.attr); }
  // Returns true if the axis is a part. `flat` may have the name of one of the parts.
  bool is_part(Name a) const { return has(parts, a); }
};
struct RenameAttr {
  Names from, to;
  Attr attr() const {
    Attr a{.names = from};
    a.names.insert(a.names.end(), to.begin(), to.end());
    return a;
  }
  static RenameAttr of(const Node& n) {
    auto half = n.attr.names.begin() + std::ptrdiff_t(n.attr.names.size() / 2);
    return {{n.attr.names.begin(), half}, {half, n.attr.names.end()}};
  }
  Name renamed(Name a) const {
    auto at = std::find(from.begin(), from.end(), a);
    return at == from.end() ? a : to[std::size_t(at - from.begin())];
  }
};
// Returns the axes of the table (take) or of the base (scatter) that the ids index.
inline const Names& indexed_axes(const Node& n) { return n.attr.names; }
// take: the operands are the table, then ids for each indexed axis.
struct GatherAttr {
  Names axes;  // indexed axes of the table
  program::Outside outside = program::Outside::fill;
  Attr attr() const { return {.names = axes, .ints = {std::int64_t(outside)}}; }
  static GatherAttr of(const Node& n) {
    return {indexed_axes(n), program::Outside(n.attr.ints[0])};
  }
};
// scatter: the operands are the base, the updates, then ids for each indexed axis of the base.
struct ScatterAttr {
  Names axes;
  program::Update update = program::Update::add;
  bool clamp = false;
  Attr attr() const { return {.names = axes, .ints = {std::int64_t(update), clamp}}; }
  static ScatterAttr of(const Node& n) {
    return {indexed_axes(n), program::Update(n.attr.ints[0]), n.attr.ints[1] != 0};
  }
};
// A custom op of the user: the axes that the call names, and the index of the selected kernel.
struct CustomAttr {
  Names axes;
  std::size_t kernel = 0;
  Attr attr() const { return {.names = axes, .ints = {std::int64_t(kernel)}}; }
  static CustomAttr of(const Node& n) { return {n.attr.names, std::size_t(n.attr.ints[0])}; }
};
// Returns the tiled axis of a region. The attributes of region boundaries (ChunkKey) begin with it.
inline Axis tiled_axis(const Attr& region) { return {region.names[0], region.ints[0]}; }
inline std::optional<SliceAttr> slice_of(const Node& n) {
  return n.op == &prim::kSlice ? std::optional(SliceAttr::of(n)) : std::nullopt;
}
// Returns true if the start of the slice is an operand, such as the index of a loop.
inline bool is_dynamic_slice(const Node& n) { return n.op == &prim::kSlice && n.in.size() > 1; }
// Returns true if `n` is the slice that one iteration reads of an array, at this loop index.
inline bool is_slice_at(const Node& n, const Node* index) {
  return is_dynamic_slice(n) && n.in[1].get() == index;
}
inline bool is_scatter_add(const Node& n) {
  return n.op == &prim::kScatter && ScatterAttr::of(n).update == program::Update::add;
}
inline std::size_t result_number(const Node& result) { return std::size_t(result.attr.ints[0]); }
inline bool is_loop_result(const Node& n) { return n.op == &kResult && n.in[0]->op == &kLoop; }
// `result` is a result of a loop.
inline const LoopResult& result_of(const Node& result) {
  return loop_of(result).results[result_number(result)];
}
inline std::int64_t integer_of(const Node& number) {
  return number.attr.ints.empty() ? 0 : number.attr.ints[0];
}
// Returns the number as a double. Valid for integers as well.
inline double real_of(const Node& number) { return number.attr.number; }
struct CumulativeAttr {
  Name axis;
  Monoid monoid = Monoid::sum;
  bool reverse = false;
  Attr attr() const { return {.names = {axis}, .ints = {std::int64_t(monoid), reverse}}; }
  static CumulativeAttr of(const Node& n) {
    return {n.attr.names[0], Monoid(n.attr.ints[0]), n.attr.ints[1] != 0};
  }
};

}  // namespace haliax
