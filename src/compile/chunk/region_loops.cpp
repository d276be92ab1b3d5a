// Builds the loops over all tiles of a region.
#include "ops/attr.h"
#include "ops/blockwise.h"
#include "compile/chunk/region_loops.h"
#include "compile/chunk/running_max.h"

namespace haliax {

void RegionLoops::add_loop_state(Loop& out, Nodes& nodes, const NodePtr& n) {
  auto& l = loop_of(*n);
  for (std::size_t k = 0; k < l.results.size(); ++k) {
    auto& r = l.results[k];
    if (!r.carry) continue;
    LoopResult state{ResultKind::carry, r.monoid, {}, r.start, tiles_.of(*n).carried[k]};
    for (auto& tile : tiles_.of(*n).values) state.value.push_back(loop_result(tile, k));
    auto last = loop_result(n, k);
    out.results.push_back(std::move(state));
    nodes.push_back(members_.contains(last) ? last : nullptr);
  }
}

void RegionLoops::add_scan_results(Loop& l, Nodes& nodes, const NodePtr& n) {
  auto& gathers = passes_.order_of(*n).gathers;
  auto& t = reduced_scans_.emplace_back(*n->op->block_scan(n, gathers));
  auto state = tiles_.initial_state(t);
  for (std::size_t b = 0; b < tiles_.index().size(); ++b)
    tiles_.scan_iteration(t, state, b, l.reverse);
  for (std::size_t k = 0; k < state.size(); ++k) {
    l.results.push_back(std::move(state[k]));
    nodes.push_back(k < t.value ? nullptr : k == t.value ? n : gathers[k - t.value - 1]);
  }
}
// Returns the result of a loop for a reduction over the axis. `prod` is a carry, since a fold
// accumulates sums and extremes only. A scatter starts from its first operand, unless that is 0.
LoopResult RegionLoops::reduction_result(const NodePtr& n) {
  LoopResult r{ResultKind::fold, *members_.reduction_monoid(*n), {}, {}, {}};
  for (std::size_t b = 0; b < tiles_.index().size(); ++b) {
    auto v = tiles_.node_on_tile(n, members_.name_in(*n), b);
    r.value.push_back(r.monoid == Monoid::sum ? widened(v) : v);
  }
  if (r.monoid == Monoid::prod) {
    r.kind = ResultKind::carry;
    r.start = prim::filled(1, n->dtype, n->axes);
    r.carry = prim::carry(tiles_.index()[0], n->axes, n->dtype);
    for (auto& v : r.value) v = prim::build(prim::kMul, {r.carry, v}, n->axes, n->dtype);
  }
  if (n->op == &kResult && members_.is_along_axis(*n)) r.start = result_of(*n).start;
  const bool adds_to_zeros = r.monoid == Monoid::sum && prim::is_number(n->in[0], 0);
  if (n->op->accumulates && !adds_to_zeros) r.start = prim::cast(n->in[0], r.value[0]->dtype);
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
      valid = prim::either(valid, prim::equal(top, prim::extreme(top->dtype, false)));
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
  for (std::size_t b = 0; b < tiles_.index().size(); ++b) {
    Nodes values, reads;
    for (auto& r : l.results) values.push_back(r.value[b]);
    std::unordered_set<const Node*> body;
    for (auto& n : level_of(values, tiles_.index()[b].get())) {
      if (is_region_boundary(*n) && !n->varies_with(tiles_.index()[b].get()))
        continue;  // entered outside
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
  l.index = tiles_.index();
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
      for (auto& r : tiles_.of(*n).state) add(r, nullptr);
  for (auto& n : passes_.reductions(pass)) {
    if (n->op == &kResult && members_.is_along_axis(*n) && result_of(*n).carry) continue;
    auto& order = passes_.order_of(*n);
    if (!order.rescaled.empty()) {
      RunningMax(members_, passes_, tiles_, n).add_to(l, nodes);
      for (auto& x : order.rescaled) done.insert(x.get());
    } else if (members_.scan_of(*n)) {
      add_scan_results(l, nodes, n);
      for (auto& x : order.gathers) done.insert(x.get());
    } else if (!done.count(n.get())) {
      add(reduction_result(n), n);
    }
  }
  for (auto& n : stacked_[pass]) {
    LoopResult r{ResultKind::stack, Monoid::sum, tiles_.of(*n).values, {}, {}};
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
    for (std::size_t b = 0; b < tiles_.index().size(); ++b) {
      auto& tile = tiles_.of(*n).values[b];
      if (!is_slice_at(*tile, tiles_.index()[b].get()))
        finals.tiles[tile.get()] =
            with_swapped_names(prim::slice_at(result, tiles_.index()[b], false), a);
    }
  }
}

Nodes RegionLoops::build(const std::string& form, const std::string& why) {
  tiles_.build();
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
