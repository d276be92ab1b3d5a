// Applies a plan of chunk sizes to the regions of one call.
#include "compile/chunk/tile_plan.h"

#include "compile/chunk/defer_normalization.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

bool CutPlan::is_whole() const {
  return std::all_of(cuts.begin(), cuts.end(), [](auto& c) { return c.second >= c.first.size; });
}
std::string CutPlan::line() const {
  std::string axes;
  for (auto& a : call.tiled_axes) axes += (axes.empty() ? "" : ", ") + std::string(a.text());
  return "whole over " + axes + ": " + how.why;
}

Nodes tiled(const Nodes& roots, const Nodes& level, const Node* index, const Regions& regions,
            const ChunkKey& tile) {
  return with_boundaries(
      roots, level, index, [&](const NodePtr& n) { return regions.contain(n); }, tile.attr());
}
static bool is_border_of(const Node& n, const ChunkKey& call) {
  return is_region_boundary(n) && ChunkKey::of(n.attr).same_call(call);
}
// Returns x without the boundaries of the call at its root: given enter(enter(v)), returns v; given
// a slice of enter(v), returns the slice of v.
static NodePtr bare(const NodePtr& x, const ChunkKey& call) {
  if (is_border_of(*x, call)) return bare(x->in[0], call);
  if (!is_dynamic_slice(*x)) return x;
  auto in = x->in;
  in[0] = bare(in[0], call);
  return in[0] == x->in[0] ? x : prim::rebuilt(*x, std::move(in), x->axes);
}
Nodes without_boundaries(const Nodes& roots, const ChunkKey& call, const Node* index) {
  Rewrite to;
  for (auto& n : level_of(roots, index)) {
    for (auto& x : n->in)  // slices, outside of the body, of values that entered there
      if (x && index && !x->varies_with(index) && is_dynamic_slice(*x))
        if (auto y = bare(x, call); y != x) to[x.get()] = y;
    if (is_border_of(*n, call)) to[n.get()] = substitute({n->in[0]}, to, index)[0];
  }
  return to.empty() ? roots : substitute(roots, to, index);
}
namespace {
// largest sums that a parallel slot carries in the gradient of scores, in bytes, in addition to
// results
constexpr std::int64_t kMostSums = 4 << 20;

// Values that belong to the regions of the inner loops, but are computed outside of the loop over
// keys, such as scaled queries. The body of the loop over keys must enter them into these regions,
// whose boundaries are listed here.
using Entered = std::unordered_map<const Node*, std::vector<Attr>>;
Entered made_before(const CutPlan& plan, const Nodes& roots, const Node* index) {
  Entered out;
  const auto level = without_bodies(level_of(roots, index));
  for (std::size_t k = *plan.keys + 1; k < plan.cuts.size(); ++k) {
    auto key = plan.cuts[k].first.attr();
    Region region(key, roots, level, index);
    for (auto& n : level)
      if (region.contains(n) && region.is_tiled(n) && !is_region_boundary(*n) &&
          !is_dynamic_slice(*n))
        out[n.get()].push_back(key);
  }
  return out;
}
// Returns a copy of x that is recomputed in each iteration of a loop: the elementwise nodes below x
// are copied, and the slices and boundaries that they read wait for the iteration. Null: x is not
// computed elementwise from slices, boundaries and numbers.
NodePtr in_turns_of(const NodePtr& x, const NodePtr& index) {
  if (is_region_boundary(*x) || is_dynamic_slice(*x)) return prim::barrier(x, index);
  if (prim::is_number(x)) return x;
  if (x->op->kind != Kind::map) return nullptr;
  Nodes in;
  for (auto& operand : x->in) {
    in.push_back(in_turns_of(operand, index));
    if (!in.back()) return nullptr;
  }
  return prim::rebuilt(*x, std::move(in), x->axes);
}
Nodes with_entered(const Nodes& values, const Node* index, const Entered& before) {
  Rewrite to;
  const auto level = level_of(values, index);
  NodePtr turn;
  for (auto& n : level)
    for (auto& x : n->in)
      if (x.get() == index) turn = x;
  for (auto& n : level)
    for (auto& x : n->in) {
      auto known = x && !x->varies_with(index) ? before.find(x.get()) : before.end();
      if (known == before.end()) continue;
      auto entered = turn ? in_turns_of(x, turn) : nullptr;
      if (!entered) {
        entered = x;
        for (auto& key : known->second) entered = prim::enter(prim::leave(entered, key), key);
      }
      to[x.get()] = entered;
    }
  return to.empty() ? values : substitute(values, to, index);
}
// Stacks the sums of loops over blocks of keys in f32, and rounds them to 16 bits after the loop.
// On a mesh, the device that stores a block adds up the partial sums of the block. If an iteration
// rounded a sum, all devices would have to add it up in that iteration.
Nodes rounded_behind(const Nodes& roots, const Node* index, const Nodes& keys) {
  auto rounds = [](const NodePtr& n) {
    return (n->op->kind == Kind::contract || n->op->kind == Kind::reduce) &&
           widened(n)->dtype != n->dtype;
  };
  Rewrite to;
  for (auto& n : level_of(roots, index)) {
    if (n->op != &kLoop || loop_of(*n).index != keys) continue;
    Loop l = loop_of(*n);
    std::vector<std::size_t> rounded;
    for (std::size_t k = 0; k < l.results.size(); ++k) {
      auto& r = l.results[k];
      r.value = substitute(r.value, to, index);
      if (r.fold != Fold::stack || !std::all_of(r.value.begin(), r.value.end(), rounds)) continue;
      for (auto& v : r.value) v = widened(v);
      rounded.push_back(k);
    }
    if (rounded.empty()) continue;
    auto created = replace_loop(n, std::move(l), to);
    for (auto k : rounded) {
      auto was = loop_result(n, k);
      to[was.get()] = prim::cast(loop_result(created, k), was->dtype);
    }
  }
  return to.empty() ? roots : substitute(roots, to, index);
}
Nodes cut_tiles(const CutPlan& plan, Nodes roots, const Node* index, std::size_t from);
Nodes cut_from(const CutPlan& plan, const Nodes& roots, const Node* index, std::size_t from) {
  while (from < plan.cuts.size() && plan.cuts[from].second >= plan.cuts[from].first.size) ++from;
  if (from == plan.cuts.size()) return roots;
  if (plan.late && from + 2 == plan.cuts.size()) return cut_tiles(plan, roots, index, from);
  auto& [key, chunk] = plan.cuts[from];
  Region region(key.attr(), roots, level_of(roots, index), index);
  if (region.empty()) return cut_from(plan, roots, index, from + 1);
  if (auto free = region.without_barriers(); free != roots)
    return cut_from(plan, free, index, from);
  auto how = plan.how;
  how.size = chunk;
  auto out = region.tile(how);
  if (plan.go_round && plan.keys == from) out = rounded_behind(out, index, region.index());
  auto before = plan.keys == from ? made_before(plan, out, index) : Entered();
  return in_bodies(
      out, index, [&](const Loop& l) { return l.index == region.index(); },
      [&](const Nodes& values, const Node* inner) {
        return cut_from(plan, with_entered(values, inner, before), inner, from + 1);
      });
}
// Tiles scores along queries and keys. There are three forms:
//
// - The loop over queries is outermost, and carries the sums of each key. It is used if the results
//   have the dtype of the sums, so that the sums are stored in the memory of the results.
// - Otherwise, values that belong to queries alone are computed first. The outermost loop is then
//   the one that carries fewer bytes. In the gradient this usually is the loop over keys, since the
//   gradient has two sums for each key and one for each query.
// - If even the smaller sums exceed kMostSums, no sum is carried. A loop over queries computes the
//   results with queries, and a loop over keys computes the other results. Both compute the scores.
Nodes cut_tiles(const CutPlan& plan, Nodes roots, const Node* index, std::size_t from) {
  auto by_queries = plan, by_keys = plan;
  by_queries.late = by_keys.late = false;
  std::swap(by_keys.cuts[from], by_keys.cuts[from + 1]);
  by_keys.keys = from;
  auto region = [&](const CutPlan& p) {
    return Region(p.cuts[from].first.attr(), roots, level_of(roots, index), index);
  };
  auto cut = [&](const CutPlan& p, const Nodes& values) {
    return cut_from(p, values, index, from);
  };
  if (region(by_queries).wide_accumulator_bytes() == 0) return cut(by_queries, roots);
  if (auto rows = region(by_keys).values_between_passes(); !rows.empty()) {
    // boundaries along keys, and along queries
    const auto &keys = by_keys.cuts[from].first, &own = by_queries.cuts[from].first;
    auto sweeps = [&](const Nodes& values) {
      return Region(keys.attr(), values, level_of(values, index), index).assign_passes();
    };
    const int least = sweeps(rows);
    // adds results that need no further pass, such as the matmul of weights and values
    for (auto& r : roots) {
      auto with = rows;
      with.push_back(r);
      if (!has(r->axes, keys.axis) && sweeps(with) == least) rows = std::move(with);
    }
    auto created = without_boundaries(cut(by_queries, rows), plan.call, index);
    // The rows enter the region of queries again, so that nodes that are computed from rows alone,
    // such as a matmul with values, are tiled along queries as well.
    Rewrite to, entered;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      to[rows[k].get()] = entered[rows[k].get()] = created[k];
      if (has(created[k]->axes, own.axis))
        entered[rows[k].get()] = prim::enter(prim::leave(created[k], own.attr()), own.attr());
    }
    auto rest = substitute(roots, entered, index);
    for (std::size_t k = 0; k < roots.size(); ++k)
      if (auto r = to.find(roots[k].get()); r != to.end()) rest[k] = r->second;
    roots = std::move(rest);
  }
  auto queries = region(by_queries);
  const auto for_keys = queries.wide_accumulator_bytes(),
             for_queries = region(by_keys).wide_accumulator_bytes();
  if (std::min(for_keys, for_queries) <= kMostSums)
    return cut(for_queries < for_keys ? by_keys : by_queries, roots);
  auto out = cut(by_queries, roots);
  const auto rest = cut(by_keys, roots);
  for (std::size_t k = 0; k < roots.size(); ++k)
    if (!queries.contains(roots[k]) || !queries.is_tiled(roots[k])) out[k] = rest[k];
  return out;
}
}  // namespace

Nodes apply(const CutPlan& plan, const Nodes& roots, const Node* index) {
  auto in = roots;
  if (plan.late) {
    auto level = level_of(in, index);
    in = defer_normalization(in, level, index, Regions(plan.call, in, level));
  }
  for (auto& t : plan.tiles) {
    auto level = level_of(in, index);
    in = tiled(in, level, index, Regions(plan.call, in, level), t);
  }
  return without_boundaries(cut_from(plan, in, index, 0), plan.call, index);
}

}  // namespace haliax
