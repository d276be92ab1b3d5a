// Builds the nodes of a region on one tile, and the loops over all tiles.
#include <algorithm>
#include <cmath>

#include "ops/attr.h"
#include "ops/block.h"
#include "ops/blockwise.h"
#include "compile/chunk/region_loops.h"

namespace haliax {

// Returns the axes of a value on a tile. An axis with this name but another size is unchanged, as
// in the result of top_k.
Axes RegionLoops::axes_on_tile(Axes axes, Name a, std::size_t b) const {
  for (auto& x : axes)
    if (x.name == a && x.size == members_.axis().size) x.size = prim::index_chunk(*index_[b]);
  return axes;
}
// Returns the part of x that an iteration of body b reads: the value computed on the tile, a slice
// of an array outside of the region, or x itself if it lacks the axis.
NodePtr RegionLoops::tile_of(const NodePtr& x, Name a, std::size_t b) {
  if (auto& tiles = tiles_of(*x).values; !tiles.empty()) return tiles[b];
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
NodePtr RegionLoops::node_on_tile(const NodePtr& n, Name a, std::size_t b) {
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
    // The initial value is added once, as the start of the loop result (see reduction_result). Each
    // tile starts at the identity.
    in[0] = prim::fit(prim::identity(*m, n->dtype), n->axes);
  return prim::rebuilt(*n, std::move(in), axes);
}
NodePtr RegionLoops::loop_on_tile(const NodePtr& n, std::size_t b) {
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

LoopResult RegionLoops::reduction_result(const NodePtr& n) {
  LoopResult r{ResultKind::fold, *members_.reduction_monoid(*n), {}, {}, {}};
  for (std::size_t b = 0; b < index_.size(); ++b) {
    auto v = node_on_tile(n, members_.name_in(*n), b);
    r.value.push_back(r.monoid == Monoid::sum ? widened(v) : v);
  }
  if (r.monoid == Monoid::prod) {
    r.kind = ResultKind::carry;
    r.start = prim::filled(1, n->dtype, n->axes);
    r.carry = prim::carry(index_[0], n->axes, n->dtype);
    for (auto& v : r.value) v = prim::build(prim::kMul, {r.carry, v}, n->axes, n->dtype);
  }
  if (n->op == &kResult && members_.is_along_axis(*n)) r.start = result_of(*n).start;
  bool from_zeros = r.monoid == Monoid::sum && prim::is_number(n->in[0], 0);
  if (n->op->accumulates && !from_zeros) r.start = prim::cast(n->in[0], r.value[0]->dtype);
  return r;
}
// Swaps two axis names: `a`, the name of the tiled axis in x, and the name that the loop has for
// it.
NodePtr RegionLoops::with_swapped_names(const NodePtr& x, Name a) const {
  return prim::rename(x, {a, members_.axis().name}, {members_.axis().name, a});
}

// Returns the final value of a reduction, computed from the result of its loop and the final values
// so far.
NodePtr RegionLoops::final_value(const NodePtr& n, const NodePtr& result, Finals& finals) {
  auto v = prim::cast(result, n->dtype);
  if (auto s = passes_.streamed(n); !s.guarded && holds(passes_.order_of(*s.top).rescaled, n)) {
    auto& top = finals.values.at(s.top);
    auto valid = prim::map(prim::kIsFinite, {top}, DType::boolean);
    if (s.drops_nan)
      valid = prim::map(prim::kBitOr, {valid, prim::equal(top, prim::extreme(top->dtype, false))},
                        DType::boolean);
    v = prim::map(prim::kSelect, {valid, v, prim::number(std::nan(""), n->dtype)}, n->dtype,
                  &n->axes);
  }
  if (!members_.indexes_along(*n, members_.name_in(*n))) return v;
  auto in = n->in;
  for (std::size_t k = 1; k < in.size(); ++k) in[k] = finals({in[k]})[0];
  return prim::where_in_range(*n, in, v, prim::picked_outside(n->dtype));
}

// Replaces the values that the bodies read from outside by final values. For example, in
// y = x / sum(x), the loop of pass 1 reads the result of the loop of pass 0 in place of the sum. A
// node after the region is computed once for all passes and the roots, outside of the loops.
// `finals.tiles` only applies to this loop: a loop outside that contains the same tiles computes
// them in its own body.
void RegionLoops::read_final_values(Loop& l, Finals& finals) const {
  Rewrite to = finals.tiles;
  auto add_final = [&](const NodePtr& x) {
    if (x && !to.count(x.get())) to[x.get()] = finals({x})[0];
  };
  for (std::size_t b = 0; b < index_.size(); ++b) {
    Nodes values, reads;
    for (auto& r : l.results) values.push_back(r.value[b]);
    std::unordered_set<const Node*> body;
    for (auto& n : level_of(values, index_[b].get())) {
      if (is_region_boundary(*n) && !n->varies_with(index_[b].get())) continue;  // entered outside
      body.insert(n.get());
      append(reads, reads_of(*n));
    }
    append(reads, values);
    for (auto& x : reads)
      if (!body.count(x.get())) add_final(x);
  }
  for (auto& r : l.results) {
    r.value = substitute(r.value, to);
    if (r.start) r.start = finals({r.start})[0];
  }
}

Loop RegionLoops::loop_of_pass(int pass, Nodes& nodes) {
  Loop l;
  l.axis = members_.axis();
  l.index = index_;
  l.save = Save::nothing;
  l.reverse = passes_.is_reversed(pass);
  l.of_scores = members_.call().scores;
  l.any_order = passes_.stateful(pass).empty() &&
                std::none_of(passes_.reductions(pass).begin(), passes_.reductions(pass).end(),
                             [&](auto& n) { return members_.scan_of(*n); });
  std::unordered_set<const Node*> done;
  auto add = [&](LoopResult r, const NodePtr& n) {
    l.results.push_back(std::move(r));
    nodes.push_back(n);
  };
  for (auto& n : passes_.stateful(pass))
    if (!members_.scan_of(*n))
      add_loop_state(l, nodes, n);
    else
      for (auto& r : tiles_of(*n).state) add(r, nullptr);
  for (auto& n : passes_.reductions(pass)) {
    if (n->op == &kResult && members_.is_along_axis(*n) && result_of(*n).carry) continue;
    auto& order = passes_.order_of(*n);
    if (!order.rescaled.empty()) {
      add_running_max(l, nodes, n);
      for (auto& x : order.rescaled) done.insert(x.get());
    } else if (members_.scan_of(*n)) {
      add_scan_results(l, nodes, n);
      for (auto& x : order.gathers) done.insert(x.get());
    } else if (!done.count(n.get())) {
      add(reduction_result(n), n);
    }
  }
  for (auto& n : stacked_[pass]) {
    LoopResult r{ResultKind::stack, Monoid::sum, tiles_of(*n).values, {}, {}};
    auto a = members_.axis_in(*n);
    for (auto& v : r.value) v = with_swapped_names(v, a);
    add(std::move(r), n);
  }
  return l;
}

void RegionLoops::add_final_values(const NodePtr& loop, const Nodes& nodes, Finals& finals) {
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    auto& n = nodes[k];
    if (!n) continue;
    auto result = loop_result(loop, k);
    if (!members_.on_tile(n)) {
      auto v = result;
      for (auto& scan : reduced_scans_)
        if (scan.positions && find(*result, scan.positions))
          v = prim::rename(result, {scan.positions}, {scan.axis});
      finals.values[n.get()] = final_value(n, prim::fit(v, n->axes), finals);
      continue;
    }
    auto a = members_.axis_in(*n);
    finals.values[n.get()] = prim::fit(with_swapped_names(result, a), n->axes);
    // A later pass reads the stacked value instead of rematerializing it.
    for (std::size_t b = 0; b < index_.size(); ++b) {
      auto& tile = tiles_of(*n).values[b];
      if (!is_slice_at(*tile, index_[b].get()))
        finals.tiles[tile.get()] = with_swapped_names(prim::slice_at(result, index_[b], false), a);
    }
  }
}

RegionLoops::RegionLoops(const RegionMembers& members, const RegionPasses& passes,
                         std::int64_t size)
    : members_(members), passes_(passes), stacked_(passes.stacked()) {
  // The axis may be a tile of an enclosing call, and shorter than the tile of this call.
  auto& axis = members_.axis();
  size = std::min(size, axis.size);
  index_ = {prim::index(axis, 0, size, 0, LoopOrigin::region)};
  if (auto left = axis.size % size)
    index_.push_back(prim::index(axis, axis.size - left, left, 0, LoopOrigin::region));
}
Nodes RegionLoops::build(const std::string& form, const std::string& why) {
  for (auto& n : members_.level()) {
    if (!members_.contains(n) || !members_.on_tile(n)) continue;
    Nodes tiles;
    for (std::size_t b = 0; b < index_.size(); ++b)
      tiles.push_back(node_on_tile(n, members_.name_in(*n), b));
    tiles_[n.get()].values = std::move(tiles);
  }
  Finals finals{members_.around()};
  for (int pass = 0; pass < passes_.count(); ++pass) {
    Nodes nodes;
    Loop l = loop_of_pass(pass, nodes);
    if (l.results.empty()) continue;
    l.form = form;
    l.why = why;
    read_final_values(l, finals);
    add_final_values(make_loop(std::move(l)), nodes, finals);
  }
  return finals(members_.roots());
}

}  // namespace haliax
