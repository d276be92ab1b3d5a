// Ring loops: loops over the blocks of an axis that is sharded along a mesh axis, in which the
// devices along that mesh axis also share the work of each iteration along another axis.
//
// An example is attention whose queries and keys are both sharded along `context`, with 4 devices.
// Device 1 has queries 1 and keys 1. It processes keys 1, 0, 3, 2: it starts with its own block and
// receives one other block per iteration. In the gradient, it returns the partial sums of keys 0 to
// the device that stores keys 0.
//
// Each device processes the blocks in a different order. Therefore an iteration contains no other
// collective along the mesh axis, and its results do not depend on the order. Under a mask, an
// iteration may leave all results unchanged. The device then skips it and receives no block
// (emit.cpp).
#include <algorithm>

#include "compile/analysis/masks.h"
#include "ops/attr.h"
#include "compile/sharding/loop_planner.h"
#include "compile/sharding/passes.h"

namespace haliax::partitioning {
namespace {

bool is_block(const SliceAttr& s, std::int64_t size) {
  return !s.drop && s.start == 0 && s.step == 1 && s.size == size;
}

bool sends_nothing_else(const Plan& plan, const GlobalGraph& graph, int body, int ring_body,
                        bool& masked) {
  for (int k : plan.body(body).versions) {
    auto& v = plan.version(k);
    if (!v.live) continue;
    masked |= analysis::reads_mask(graph.node(v.node));
    if (v.communicates() && (!v.in_ring_loop() || body != ring_body)) return false;
    for (int inner : plan.bodies_of(v))
      if (!sends_nothing_else(plan, graph, inner, ring_body, masked)) return false;
  }
  return true;
}

}  // namespace

bool may_skip(const Plan& plan, const GlobalGraph& graph, int body) {
  bool masked = false;
  return sends_nothing_else(plan, graph, body, body, masked) && masked;
}
MeshAxes LoopShardings::ring_axes_of(int n) const {
  auto& l = loop_of(node(n));
  if (!options_.ring_attention || !l.any_order || l.index.size() != 1 || l.drop) return {};
  auto chunk = prim::index_chunk(*l.index[0]);
  MeshAxes over;
  for (int s : graph_.level(n, 0).order) {
    auto& me = node(s);
    if (!is_slice_at(me, l.index[0].get()) || varies_in(*me.in[0], l, 0)) continue;
    auto slice = SliceAttr::of(me);
    auto mesh_axes = sharding_of(operand(s, 0)).mesh_axes(slice.axis);
    if (mesh_axes.empty()) continue;
    bool other = !over.empty() && !(mesh_axes == over),
         full_axis = haliax::find(*me.in[0], slice.axis)->size == l.axis.size;
    if (other || !full_axis || !is_block(slice, chunk)) return {};
    over = mesh_axes;
  }
  const int count = ranks(mesh_, over);
  bool busy = over.overlaps(blocked_axes(node(n)));
  for (auto& o : state_.open_bodies) busy |= over.overlaps(o.ring_axes);
  bool fits =
      over.size() == 1 && count > 1 && count <= kMaxRingSteps && l.axis.size == chunk * count;
  return fits && !busy && shares_work(n, l.axis.name, over) ? over : MeshAxes();
}
bool LoopPlanner::plan_ring_receive(int n) {
  auto& me = node(n);
  for (auto& o : state_.open_bodies) {
    auto& l = loop_of(node(o.loop));
    if (o.ring_axes.empty() || !is_slice_at(me, l.index[0].get()) || varies_in(*me.in[0], l, 0))
      continue;
    auto axis = SliceAttr::of(me).axis;
    auto source = sharding_of(operand(n, 0)).without_partial();
    bool in_loop_inside = &o != &state_.open_bodies.back();
    if (in_loop_inside || !(source.mesh_axes(axis) == o.ring_axes)) return false;
    auto at = source.on(me.axes);
    at.set(axis, {});
    const double remote_share = 1 - 1. / ranks(mesh_, o.ring_axes);  // the first step is local
    const ReshardStep step{
        .to = at, .over = o.ring_axes, .axis = axis, .bytes = bytes(n, at) * remote_share};
    const int from = versions_.obtain(operand(n, 0), source);
    add_computed({.kind = RingReceive{step}, .node = n, .sharding = at, .in = {from}});
    return true;
  }
  return false;
}
// Adds a version that returns the partial sum of an iteration to the device that stores the block.
// There, the sum is complete over the ring axis.
int LoopPlanner::add_ring_return(const LoopAttempt& a, int n, const Sharding& at) {
  auto complete = at;
  complete.resolve(a.plan.ring_axes[0]);
  const double remote_share = 1 - 1. / ranks(mesh_, a.plan.ring_axes);  // the first step is local
  const ReshardStep step{.to = complete,
                         .over = a.plan.ring_axes,
                         .axis = a.l.axis.name,
                         .bytes = bytes(n, complete) * remote_share};
  return add(
      {.kind = RingReturn{step}, .node = n, .sharding = complete, .in = {versions_.obtain(n, at)}});
}
// Returns true if the loop cannot be a ring loop after all: it contains another collective along
// the mesh axis, or a replicated result depends on the order of iterations by rounding.
bool LoopPlanner::breaks_ring(const LoopAttempt& a) const {
  if (a.plan.ring_axes.empty()) return false;
  const int x = a.plan.ring_axes[0];
  for (std::size_t k = 0; k < a.l.results.size(); ++k) {
    auto& r = a.l.results[k];
    auto& v = plan().version(a.plan.value[k][0]);
    bool exact =
        r.kind == ResultKind::fold &&
        (r.monoid == Monoid::max || r.monoid == Monoid::min || !is_float(node(v.node).dtype));
    bool own = r.kind != ResultKind::stack && (v.sharding.uses(x) || v.sharding.is_partial(x));
    if (!v.is<RingReturn>() && !own && !exact) return true;
  }
  // the body of the loop, and the bodies of inner loops
  for (auto body = std::size_t(a.plan.bodies[0]); body < plan().bodies.size(); ++body)
    for (int k : plan().bodies[body].versions)
      if (auto& v = plan().version(k);
          v.communicates() && !v.in_ring_loop() && v.step().over.has(x))
        return true;
  return false;
}

}  // namespace haliax::partitioning
