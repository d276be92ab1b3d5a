// Applies a plan of tile sizes to the regions of one call.
#include "compile/chunk/tile_plan.h"

#include <algorithm>

#include "compile/chunk/defer_normalization.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

bool TilePlan::is_untiled() const {
  return std::all_of(sizes.begin(), sizes.end(), [](auto& c) { return c.second >= c.first.size; });
}
std::string TilePlan::untiled_note() const {
  if (!refusal.empty()) return call.scores ? "scores stay materialized: " + refusal : "";
  if (!is_untiled()) return "";
  std::string axes;
  for (auto& a : call.tiled_axes) axes += (axes.empty() ? "" : ", ") + std::string(a.text());
  return "untiled along " + axes + ": " + why;
}

Nodes with_axis_boundaries(const Nodes& roots, const Nodes& level, const Node* index,
                           const Regions& regions, const ChunkKey& axis) {
  return with_boundaries(
      roots, level, index, [&](const NodePtr& n) { return regions.contain(n); }, axis.attr());
}
static bool is_boundary_of(const Node& n, const ChunkKey& call) {
  return is_region_boundary(n) && ChunkKey::of(n.attr).same_call(call);
}
// Returns x without the boundaries of the call at its root: given enter(enter(v)), returns v; given
// a slice of enter(v), returns the slice of v.
static NodePtr strip_boundaries(const NodePtr& x, const ChunkKey& call) {
  if (is_boundary_of(*x, call)) return strip_boundaries(x->in[0], call);
  if (!is_dynamic_slice(*x)) return x;
  auto in = x->in;
  in[0] = strip_boundaries(in[0], call);
  return in[0] == x->in[0] ? x : prim::rebuilt(*x, std::move(in), x->axes);
}
Nodes without_boundaries(const Nodes& roots, const ChunkKey& call, const Node* index) {
  Rewrite to;
  for (auto& n : level_of(roots, index)) {
    for (auto& x : n->in)  // slices, outside of the body, of values that entered there
      if (x && index && !x->varies_with(index) && is_dynamic_slice(*x))
        if (auto y = strip_boundaries(x, call); y != x) to[x.get()] = y;
    if (is_boundary_of(*n, call)) to[n.get()] = substitute({n->in[0]}, to, index)[0];
  }
  return to.empty() ? roots : substitute(roots, to, index);
}
namespace {
// largest sums that a parallel slot carries in the gradient of scores, in bytes, in addition to
// results
constexpr std::int64_t kMaxCarriedSums = 4 << 20;

// Values that belong to the regions of the inner loops, but are computed outside of the loop over
// keys, such as scaled queries. The body of the loop over keys must enter them into these regions,
// whose boundaries are listed here.
using Hoisted = std::unordered_map<const Node*, std::vector<Attr>>;
Hoisted hoisted_values(const TilePlan& plan, const Nodes& roots, const Node* index) {
  Hoisted out;
  const auto level = without_bodies(level_of(roots, index));
  for (std::size_t k = plan.keys_at + 1; k < plan.sizes.size(); ++k) {
    auto key = plan.sizes[k].first.attr();
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
NodePtr per_iteration(const NodePtr& x, const NodePtr& index) {
  if (is_region_boundary(*x) || is_dynamic_slice(*x)) return prim::barrier(x, index);
  if (prim::is_number(x)) return x;
  if (x->op->kind != Kind::map) return nullptr;
  Nodes in;
  for (auto& operand : x->in) {
    in.push_back(per_iteration(operand, index));
    if (!in.back()) return nullptr;
  }
  return prim::rebuilt(*x, std::move(in), x->axes);
}
Nodes enter_hoisted(const Nodes& values, const Node* index, const Hoisted& hoisted) {
  Rewrite to;
  const auto level = level_of(values, index);
  NodePtr index_node;
  for (auto& n : level)
    for (auto& x : n->in)
      if (x.get() == index) index_node = x;
  for (auto& n : level)
    for (auto& x : n->in) {
      auto known = x && !x->varies_with(index) ? hoisted.find(x.get()) : hoisted.end();
      if (known == hoisted.end()) continue;
      auto entered = index_node ? per_iteration(x, index_node) : nullptr;
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
Nodes round_after_loop(const Nodes& roots, const Node* index, const Nodes& keys) {
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
      if (r.kind != ResultKind::stack || !std::all_of(r.value.begin(), r.value.end(), rounds))
        continue;
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
Nodes tile_scores(const TilePlan& plan, const Nodes& roots, const Node* index, std::size_t from,
                  std::string& refusal);
// Tiles the axes of the plan from number `from` on. If a region cannot be tiled, sets `refusal`,
// and the result is unused.
Nodes tile_from(const TilePlan& plan, const Nodes& roots, const Node* index, std::size_t from,
                std::string& refusal) {
  while (from < plan.sizes.size() && plan.sizes[from].second >= plan.sizes[from].first.size) ++from;
  if (from == plan.sizes.size()) return roots;
  if (plan.key_loop == TilePlan::KeyLoop::inside_queries && from + 2 == plan.sizes.size())
    return tile_scores(plan, roots, index, from, refusal);
  auto& [key, size] = plan.sizes[from];
  Region region(key.attr(), roots, level_of(roots, index), index);
  if (refusal.empty()) refusal = region.refusal();
  if (!refusal.empty()) return roots;
  if (region.empty()) return tile_from(plan, roots, index, from + 1, refusal);
  if (auto free = region.without_barriers(); free != roots)
    return tile_from(plan, free, index, from, refusal);
  auto out = region.tile(size, plan.form, plan.why);
  if (plan.key_loop == TilePlan::KeyLoop::ring && plan.keys_at == from)
    out = round_after_loop(out, index, region.index());
  auto hoisted = plan.loops_over_keys(from) ? hoisted_values(plan, out, index) : Hoisted();
  return in_bodies(
      out, index, [&](const Loop& l) { return l.index == region.index(); },
      [&](const Nodes& values, const Node* inner) {
        return tile_from(plan, enter_hoisted(values, inner, hoisted), inner, from + 1, refusal);
      });
}
// Tiles scores along queries and keys. There are three forms:
//
// - The loop over queries is outermost, and carries the sums of each key. It is used if the results
//   have the dtype of the sums, so that the sums are stored in the memory of the results.
// - Otherwise, values that belong to queries alone are computed first. The outermost loop is then
//   the one that carries fewer bytes. In the gradient this usually is the loop over keys, since the
//   gradient has two sums for each key and one for each query.
// - If even the smaller sums exceed kMaxCarriedSums, no sum is carried. A loop over queries
//   computes the results with queries, and a loop over keys computes the other results. Both
//   compute the scores.
class ScoreTiles {
 public:
  // from: the number of the axis of queries in the plan; keys follow it.
  ScoreTiles(const TilePlan& plan, const Node* index, std::size_t from, std::string& refusal)
      : by_queries_(plan), by_keys_(plan), index_(index), from_(from), refusal_(refusal) {
    by_queries_.key_loop = TilePlan::KeyLoop::none;
    std::swap(by_keys_.sizes[from], by_keys_.sizes[from + 1]);
    by_keys_.key_loop = TilePlan::KeyLoop::around_queries;
    by_keys_.keys_at = from;
  }
  Nodes of(Nodes roots) {
    if (region(by_queries_, roots).wide_accumulator_bytes() == 0) return tile(by_queries_, roots);
    if (auto rows = region(by_keys_, roots).values_between_passes(); !rows.empty())
      roots = with_rows_computed(roots, std::move(rows));
    auto queries = region(by_queries_, roots);
    // bytes carried if the outermost loop is over queries, and if it is over keys
    const auto key_sums = queries.wide_accumulator_bytes(),
               query_sums = region(by_keys_, roots).wide_accumulator_bytes();
    if (std::min(key_sums, query_sums) <= kMaxCarriedSums)
      return tile(query_sums < key_sums ? by_keys_ : by_queries_, roots);
    auto out = tile(by_queries_, roots);
    const auto rest = tile(by_keys_, roots);
    for (std::size_t k = 0; k < roots.size(); ++k)
      if (!queries.contains(roots[k]) || !queries.is_tiled(roots[k])) out[k] = rest[k];
    return out;
  }

 private:
  Region region(const TilePlan& p, const Nodes& values) {
    Region out(p.sizes[from_].first.attr(), values, level_of(values, index_), index_);
    if (refusal_.empty()) refusal_ = out.refusal();
    return out;
  }
  Nodes tile(const TilePlan& p, const Nodes& values) {
    return tile_from(p, values, index_, from_, refusal_);
  }
  // Computes `rows`, the values that belong to queries alone, in loops of their own. Returns the
  // roots as functions of these values. For example, given the weights w = exp(s - m) / l, the max
  // m and the sum l of each row become inputs of the loops that compute the sums over w.
  Nodes with_rows_computed(const Nodes& roots, Nodes rows) {
    // the boundaries of the region along each axis
    const auto &keys = by_keys_.sizes[from_].first, &queries = by_queries_.sizes[from_].first;
    const int min_passes = region(by_keys_, rows).passes();
    // adds results that need no further pass, such as the matmul of weights and values
    for (auto& r : roots) {
      auto with = rows;
      with.push_back(r);
      if (!has(r->axes, keys.axis) && region(by_keys_, with).passes() == min_passes)
        rows = std::move(with);
    }
    auto created = without_boundaries(tile(by_queries_, rows), by_queries_.call, index_);
    // The rows enter the region of queries again, so that nodes that are computed from rows alone,
    // such as a matmul with values, are tiled along queries as well.
    Rewrite computed, entered;
    for (std::size_t k = 0; k < rows.size(); ++k) {
      computed[rows[k].get()] = entered[rows[k].get()] = created[k];
      if (has(created[k]->axes, queries.axis))
        entered[rows[k].get()] =
            prim::enter(prim::leave(created[k], queries.attr()), queries.attr());
    }
    auto rest = substitute(roots, entered, index_);
    for (std::size_t k = 0; k < roots.size(); ++k)
      if (auto r = computed.find(roots[k].get()); r != computed.end()) rest[k] = r->second;
    return rest;
  }

  TilePlan by_queries_, by_keys_;
  const Node* index_;
  std::size_t from_;
  std::string& refusal_;
};
Nodes tile_scores(const TilePlan& plan, const Nodes& roots, const Node* index, std::size_t from,
                  std::string& refusal) {
  return ScoreTiles(plan, index, from, refusal).of(roots);
}
}  // namespace

Nodes apply(TilePlan& plan, const Nodes& roots, const Node* index) {
  auto in = roots;
  if (plan.key_loop == TilePlan::KeyLoop::inside_queries) {
    auto level = level_of(in, index);
    in = defer_normalization(in, level, index, Regions(plan.call, in, level));
  }
  for (auto& [key, size] : plan.sizes) {  // an axis that the call did not request has no boundaries
    auto level = level_of(in, index);
    auto enters = [&, &axis = key.axis](auto& n) {
      return n->op == &prim::kEnter && is_boundary_of(*n, plan.call) &&
             tiled_axis(n->attr).name == axis;
    };
    if (std::none_of(level.begin(), level.end(), enters))
      in = with_axis_boundaries(in, level, index, Regions(plan.call, in, level), key);
  }
  auto tiled = tile_from(plan, in, index, 0, plan.refusal);
  return without_boundaries(plan.refusal.empty() ? tiled : roots, plan.call, index);
}

}  // namespace haliax
