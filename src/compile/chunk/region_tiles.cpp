// Builds the nodes of a region on one tile.
#include <algorithm>

#include "compile/chunk/region_tiles.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

RegionTiles::RegionTiles(const RegionMembers& members, std::int64_t size) : members_(members) {
  // The axis may be a tile of an enclosing call, and shorter than the tile of this call.
  auto& axis = members_.axis();
  size = std::min(size, axis.size);
  index_ = {prim::index(axis, 0, size, 0, LoopOrigin::region)};
  if (auto left = axis.size % size)
    index_.push_back(prim::index(axis, axis.size - left, left, 0, LoopOrigin::region));
}
void RegionTiles::build() {
  for (auto& n : members_.level()) {
    if (!members_.contains(n) || !members_.on_tile(n)) continue;
    Nodes tiles;
    for (std::size_t b = 0; b < index_.size(); ++b)
      tiles.push_back(node_on_tile(n, members_.name_in(*n), b));
    tiles_[n.get()].values = std::move(tiles);
  }
}

// Returns the axes of a value on a tile. An axis with this name but another size is unchanged, as
// in the result of top_k.
Axes RegionTiles::axes_on_tile(Axes axes, Name a, std::size_t b) const {
  for (auto& x : axes)
    if (x.name == a && x.size == members_.axis().size) x.size = prim::index_chunk(*index_[b]);
  return axes;
}
// Returns the part of x that an iteration of body b reads: the value computed on the tile, a slice
// if x is outside of the region, or x itself if it does not have the axis.
NodePtr RegionTiles::tile_of(const NodePtr& x, Name a, std::size_t b) {
  if (auto& tiles = of(*x).values; !tiles.empty()) return tiles[b];
  if (members_.enters(*x)) return tile_of(x->in[0], members_.axis().name, b);
  if (!members_.has_axis(*x, a)) return x;
  auto& tiles = outside_tiles_[{x.get(), a.data()}];
  if (tiles.empty()) {
    for (std::size_t k = 0; k < index_.size(); ++k) {
      if (members_.is_expanded(x, a) || members_.is_carry_of_level(*x))
        tiles.push_back(node_on_tile(x, a, k));
      else
        tiles.push_back(prim::block_of(x, {block(a, k)}));
    }
  }
  return tiles[b];
}

// Returns n on the tiles of its operands. `a`: the name of the tiled axis, see name_in.
NodePtr RegionTiles::node_on_tile(const NodePtr& n, Name a, std::size_t b) {
  OriginScope here(n->origin);
  // barrier of a branch of `cond`
  bool per_iteration = n->op == &prim::kBarrier && n->in[1]->op == &prim::kIndex;
  if (per_iteration) return prim::barrier(tile_of(n->in[0], a, b), n->in[1]);
  if (members_.enters(*n) || members_.leaves(*n) || n->op == &prim::kBarrier)
    return tile_of(n->in[0], a, b);
  if (n->op == &kLoop) return loop_on_tile(n, b);
  if (members_.scan_of(*n)) return running_scan_on_tile(n, b);
  if (n->op == &kResult) return loop_result(tile_of(n->in[0], a, b), result_number(*n));
  if (n->op == &prim::kCarry) return prim::carry(n->in[0], axes_on_tile(n->axes, a, b), n->dtype);
  Name inner = is_transparent_view(*n) ? name_in_operand(*n, 0, a) : a;
  Nodes in;
  bool from_table = members_.indexes_along(*n, a);
  // An array outside of the region may be read in full, except for the table of a gather along the
  // axis.
  for (std::size_t k = 0; k < n->in.size(); ++k) {
    auto& x = n->in[k];
    bool table = from_table && k == 0;
    bool in_full = !x || (!table && !members_.contains(x) && members_.has_axis(*x, inner) &&
                          along(*n, k, inner).way == Along::Way::full);
    in.push_back(in_full ? x : tile_of(x, inner, b));
  }
  auto axes = members_.contains(n) && !members_.is_tiled(n) ? n->axes : axes_on_tile(n->axes, a, b);
  // A tile processes the indices that are inside of it.
  if (from_table) return prim::on_block(*n, std::move(in), axes, {block(a, b)});
  if (auto m = n->op->accumulates ? n->op->accumulates(*n) : std::nullopt;
      m && !members_.is_tiled(n))
    // The initial value is added once, as the start of the loop result (see
    // RegionLoops::reduction_result). Each tile starts at the identity.
    in[0] = prim::fit(prim::identity(*m, n->dtype), n->axes);
  return prim::rebuilt(*n, std::move(in), axes);
}
NodePtr RegionTiles::loop_on_tile(const NodePtr& n, std::size_t b) {
  if (members_.is_along_axis(*n)) return loop_along_axis_on_tile(n, b);
  Loop l = loop_of(*n);
  auto a = members_.name_in(*n);
  for (auto& r : l.results) {
    for (auto& v : r.value) v = tile_of(v, a, b);
    if (r.start) r.start = tile_of(r.start, a, b);
    if (r.carry) r.carry = tile_of(r.carry, a, b);
  }
  return make_loop(std::move(l));
}

// Returns a loop along the axis on one tile. It starts from the final state of the previous tile.
// For example, a scan over 10 positions in tiles of 4 becomes an outer loop over the tiles at 0
// and 4, which scans 4 positions per iteration, and a remainder at 8, which scans 2 positions.
NodePtr RegionTiles::loop_along_axis_on_tile(const NodePtr& n, std::size_t b) {
  Loop l = loop_of(*n);
  auto& old = l.index[0];
  l.axis.size = prim::index_chunk(*index_[b]);
  auto index = prim::index(l.axis, 0, 1, IndexAttr::of(*old).depth, IndexAttr::of(*old).origin);
  Rewrite to{{old.get(), prim::add(index_[b], index)}};
  for (auto& x : inputs_of(l).slices)
    to[prim::slice_at(x, old, true).get()] =
        prim::slice_at(tile_of(x, l.axis.name, b), index, true);
  auto& states = tiles_[n.get()].carried;
  bool first = states.empty();
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    if (first)
      states.push_back(r.carry ? prim::carry(index_[0], r.carry->axes, r.carry->dtype) : nullptr);
    r.start = states[k];
    if (r.carry) r.carry = to[r.carry.get()] = prim::carry(index, r.carry->axes, r.carry->dtype);
  }
  for (auto& r : l.results) r.value = substitute(r.value, to, old.get());
  l.index = {index};
  return make_loop(std::move(l));
}

// Returns the state of a block scan as loop results that are carried from tile to tile.
std::vector<LoopResult> RegionTiles::initial_state(const BlockScan& t) const {
  std::vector<LoopResult> out;
  for (auto& x : t.start) out.push_back(carried_result(Monoid::sum, x, index_[0]));
  return out;
}
// Appends the state after an iteration of body b to `state`. Returns the last node of
// BlockScan::next: for a running scan, the block of the value.
NodePtr RegionTiles::scan_iteration(const BlockScan& t, std::vector<LoopResult>& state,
                                    std::size_t b, bool reverse) {
  Nodes before, blocks;
  for (auto& r : state) before.push_back(r.carry);
  for (auto& x : t.reads) blocks.push_back(tile_of(x, t.axis, b));
  auto now = t.next(before, blocks, {t.axis, index_[b], prim::index_chunk(*index_[b])}, reverse);
  for (std::size_t k = 0; k < state.size(); ++k) state[k].value.push_back(now[k]);
  return now.back();
}
NodePtr RegionTiles::running_scan_on_tile(const NodePtr& n, std::size_t b) {
  auto& t = *members_.scan_of(*n);
  auto& state = tiles_[n.get()].state;
  if (state.empty()) state = initial_state(t);
  return scan_iteration(t, state, b, *t.reverse);
}

}  // namespace haliax
