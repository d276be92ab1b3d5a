// Refuses regions that cannot be computed tile by tile.
#include <algorithm>

#include "compile/chunk/region_members.h"
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "ops/prim.h"

namespace haliax {

void RegionMembers::refuse(const Node& n, const std::string& why) {
  if (!refusal_.empty()) return;
  refusal_ = failure_at(
      n.origin, "chunked_reduce",
      std::string(prim::user_name(n)) + " " + why + " over the tiled axis " + to_string(axis_));
}

// Refuses the node if it cannot be computed tile by tile.
void RegionMembers::check(const NodePtr& n) {
  auto a = name_in(*n);
  auto& op = *n->op;
  if (&op == &kCustomVjp) return refuse(*n, "cannot be split into chunks");
  if (scan_of(*n)) return;
  if (&op == &kLoop) {
    if (loop_of(*n).axis.name == a) check_loop_along_axis(*n, a);
    return;
  }
  bool at_index = is_dynamic_slice(*n) && n->in[1]->op == &prim::kIndex;
  if (at_index && SliceAttr::of(*n).axis == a)
    refuse(*n, "carries values from position to position");
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    if (!n->in[k] || is_order_only(*n, k) || !is_tiled(n->in[k])) continue;
    using Way = Along::Way;
    if (k == 0 && indexes_along(*n, a)) continue;
    auto way = along(*n, k, a).way;
    bool moves = way == Way::full && op.linear == Linear::moves;
    if (way == Way::shift || way == Way::regroup || moves) refuse(*n, "mixes positions");
    if (way == Way::full) refuse(*n, "requires all positions at once");
  }
  check_sums_in_body(n);
  if (!on_tile(n) && !reduction_monoid(*n)) refuse(*n, "is not a sum, product, max or min");
}

// In the body of a loop, partial nodes have the sum of one tile, and the tiles are added after the
// loop. Therefore the ops that follow such a sum must be linear.
void RegionMembers::check_sums_in_body(const NodePtr& n) {
  auto& op = *n->op;
  auto partial = [&](const NodePtr& x) { return x && role_of(*x).partial; };
  if (partial(n)) {
    bool sums = false;
    for (auto& x : n->in) sums |= x && is_tiled(x);
    bool reduces = sums && reduction_monoid(*n) == Monoid::sum;
    bool moves = !sums && (op.linear == Linear::all || op.linear == Linear::moves);
    for (auto& x : n->in)
      moves &= !x || partial(x) || !is_float(x->dtype) || x->op->kind == Kind::leaf;
    if (!reduces && !moves && n->op != &kResult) refuse(*n, "reads a total, in a loop,");
  }
  for (auto& x : n->in) {
    bool total = partial(x) && !partial(n) && n->op != &kResult;
    if (total) refuse(*n, "reads a total, in a loop,");
  }
}
// Refuses a loop along the axis unless it can be computed tile by tile, with its state carried
// between tiles. At each position, the loop must read only this position of the nodes on
// tiles. For example, it may read x[i], but neither x[i - 1] nor all of x.
void RegionMembers::check_loop_along_axis(const Node& n, Name a) {
  auto& l = loop_of(n);
  auto* index = l.index[0].get();
  auto on_other_tiles = [&](const NodePtr& x) {
    return x && contains(x) && on_tile(x) && !is_read_in_full(x, n);
  };
  bool ok = is_along_axis(n) && l.drop && !in_body(n) && l.axis.size == axis_.size;
  for (auto& r : l.results) ok &= !on_other_tiles(r.start) && !on_other_tiles(r.value[0]);
  for (auto& m : level_) {
    if (!m->varies_with(index)) continue;
    bool own = is_slice_at(*m, index) && SliceAttr::of(*m).axis == a;
    for (auto& x : m->in) ok &= own || !on_other_tiles(x);
  }
  if (!ok) refuse(n, "carries values from position to position");
}

}  // namespace haliax
