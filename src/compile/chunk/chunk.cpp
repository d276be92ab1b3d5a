// Replaces the regions of chunked_reduce calls by loops over tiles, level by level.
#include "compile/chunk/chunk.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {
namespace {

bool of_region(const Loop& l) { return origin_of(l) == LoopOrigin::region; }

// Tiles the regions of a graph, level by level.
struct RegionTiler {
  const CompileTrial& compile_trial;
  bool ring;
  std::vector<std::string>* untiled_notes;
  // Returns the next call to tile in this level; nothing if there is none. The order is: fewest
  // loops around the call, then calls of the user before scores, then the outermost of nested
  // calls, then the oldest boundary.
  //
  // - loop_invariant: false: calls that were traced at this depth. true: loop-invariant calls that
  //   were traced in a loop.
  // - done: calls that are tiled. Their boundaries may still be found here: the body of a loop may
  //   read a value that was entered outside of the body, and only the enclosing level removes that
  //   boundary.
  std::optional<ChunkKey> next(const Nodes& level, const Node* index, int depth,
                               bool loop_invariant, const std::vector<ChunkKey>& done) const {
    const Node* first = nullptr;  // boundary of the call that is returned
    auto place = [](const Node& n) {
      auto call = ChunkKey::of(n.attr);
      return std::tuple(call.depth, call.scores, call.inside, n.id);
    };
    auto consider = [&](const Node& n) {
      const auto call = ChunkKey::of(n.attr);
      if (loop_invariant ? call.depth <= depth : call.depth != depth) return;
      if (std::any_of(done.begin(), done.end(), [&](auto& d) { return d.same_call(call); })) return;
      if (!first || place(n) < place(*first)) first = &n;
    };
    for (auto& n : level) {
      if (index && !n->varies_with(index)) continue;
      if (n->op == &prim::kEnter) consider(*n);
      for (auto& x : n->in)  // values that enter outside of this body
        for (auto* e = x.get(); e && e->op == &prim::kEnter; e = e->in[0].get()) consider(*e);
    }
    return first ? std::optional(ChunkKey::of(first->attr)) : std::nullopt;
  }
  // Tiles the calls in the bodies of loops over tiles.
  Nodes tile_bodies_of_regions(const Nodes& roots, const Node* index, int depth) const {
    return in_bodies(roots, index, of_region, [&](const Nodes& values, const Node* i) {
      return tile_level(values, i, depth);
    });
  }
  // Tiles the calls in the bodies of the other loops of this level. These calls are one loop
  // deeper. Loops over tiles do not count, because they did not exist when the calls were traced.
  // Loops in bodies follow when the level of their body is tiled.
  Nodes tile_bodies_of_other_loops(const Nodes& roots, const Node* index) const {
    const auto here = loops_of_level(roots, index);
    return in_bodies(
        roots, index, [&](const Loop& l) { return here.count(&l) > 0 && !of_region(l); },
        [&](const Nodes& values, const Node* i) {
          return tile_level(values, i, IndexAttr::of(*i).depth + 1);
        });
  }
  // Tiles the calls of a level. A call that was traced inside of a loop is outside of it if it is
  // loop-invariant. Such calls follow after the bodies of the loops.
  Nodes tile_level(const Nodes& roots, const Node* index, int depth) const {
    std::vector<ChunkKey> done;
    auto out = tile_calls(roots, index, depth, false, done);
    out = tile_bodies_of_other_loops(out, index);
    return tile_calls(out, index, depth, true, done);
  }
  Nodes tile_calls(Nodes roots, const Node* index, int depth, bool loop_invariant,
                   std::vector<ChunkKey>& done) const {
    for (;;) {
      auto level = level_of(roots, index);
      auto call = next(level, index, depth, loop_invariant, done);
      if (!call) return roots;
      done.push_back(*call);
      auto plan = plan_tiles(*call, roots, level, compile_trial, ring);
      roots = apply(plan, roots, index);
      // A loop may read a part of the region of a loop-invariant call. The part stays untiled.
      if (!plan.refusal.empty() && !call->scores && !loop_invariant) throw Error(plan.refusal);
      if (auto note = plan.untiled_note(); untiled_notes && !note.empty())
        untiled_notes->push_back(note);
      roots = tile_bodies_of_regions(roots, index, depth);
    }
  }
};

}  // namespace

// Widens only matmuls that are summed over tiles, and those whose value leaves the region. For
// example, the gradient of an f32 parameter that is cast to bf16 for a matmul is the sum of a
// matmul over tiles. The gradient stays f32 throughout, instead of being rounded to bf16 and cast.
Nodes f32_matmuls(const Nodes& roots) {
  auto all = all_nodes(roots);
  auto users = users_of(all, roots);
  auto inside = inside_regions(all);
  std::unordered_set<const Node*> leaving;  // values that leave a region
  Names tiled_names;
  for (auto& n : all) {
    if (n->op == &prim::kEnter) tiled_names.push_back(tiled_axis(n->attr).name);
    if (n->op == &prim::kLeave && users[n->in[0].get()] == 1) leaving.insert(n->in[0].get());
  }
  auto reduces = [&](const Node& n) {
    return std::any_of(tiled_names.begin(), tiled_names.end(),
                       [&](Name a) { return has(n.in[0]->axes, a) && !has(n.axes, a); });
  };
  auto narrower = [](DType a, DType b) {
    return is_float(a) && is_float(b) && bytes_of(a) < bytes_of(b);
  };
  Rewrite to;
  for (auto& n : all) {
    if (n->op != &prim::kCast || !narrower(n->in[0]->dtype, n->dtype)) continue;
    Nodes boundaries;
    auto x = n->in[0];
    for (; users[x.get()] == 1 && is_region_boundary(*x); x = x->in[0]) boundaries.push_back(x);
    if (x->op->kind != Kind::contract || users[x.get()] > 1 || !inside.count(x.get())) continue;
    if (boundaries.empty() && !leaving.count(n.get()) && !reduces(*x)) continue;
    auto wide = make(*x->op, substitute(x->in, to), x->axes, n->dtype, x->attr);
    for (auto b = boundaries.rbegin(); b != boundaries.rend(); ++b)
      wide = make(*(*b)->op, {wide}, (*b)->axes, n->dtype, (*b)->attr);
    to[n.get()] = wide;
  }
  return to.empty() ? roots : substitute(roots, to);
}

Nodes tile_regions(const Nodes& roots, const CompileTrial& compile_trial, int depth, bool ring,
                   std::vector<std::string>* untiled_notes) {
  auto boundaries = level_of(roots, nullptr);
  if (std::none_of(boundaries.begin(), boundaries.end(),
                   [](auto& n) { return n->op == &prim::kEnter; }))
    return roots;
  return RegionTiler{compile_trial, ring, untiled_notes}.tile_level(roots, nullptr, depth);
}

bool shares_queries(const Nodes& roots) {
  auto all = all_nodes(roots);
  return std::any_of(all.begin(), all.end(), [](auto& n) {
    if (n->op != &prim::kEnter) return false;
    auto call = ChunkKey::of(n->attr);
    return call.scores && call.blocks > 1;
  });
}

void check_chunks(const Nodes& outs, const ChunkKey& call, const std::vector<Attr>& boundaries,
                  const CompileTrial& compile_trial) {
  auto roots = strip_wraps(outs, true);
  auto level = level_of(roots, nullptr);
  std::unordered_set<const Node*> entered;
  for (auto& n : level)
    if (n->op == &prim::kEnter && ChunkKey::of(n->attr).same_call(call)) entered.insert(n.get());
  // A loop on which the call depends may read the index of an enclosing loop that is still being
  // traced. It is not a loop of this level.
  auto after = dependents(roots, entered);
  std::erase_if(level, [&](auto& n) { return n->op == &kLoop && !after.count(n.get()); });
  for (auto& b : boundaries)
    if (Region region(b, roots, level); !region.refusal().empty()) throw Error(region.refusal());
  if (!boundaries.empty()) check_budget(call, roots, level, compile_trial);
}

}  // namespace haliax
