// Chooses the shardings of loops: the mesh axes that share its iterations, or around which its
// blocks rotate, and the shardings of its results.
#include "compile/sharding/loop_shardings.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::partitioning {

bool LoopShardings::accumulates(int loop, std::size_t k, std::size_t body) const {
  auto& r = loop_of(node(loop)).results[k];
  auto& level = graph_.level(loop, body);
  int at = graph_.find(r.carry.get()), value = graph_.add(r.value[body]);
  while (at >= 0 && at != value) {
    auto u = level.users.find(at);
    if (u == level.users.end() || u->second.size() != 1 || u->second[0] < 0) return false;
    at = u->second[0];
    auto& op = *node(at).op;
    if (op.linear != Linear::all &&
        !(op.linear == Linear::moves && rules::is_free_to_recompute(node(at))))
      return false;
  }
  if (at != value) return false;
  auto u = level.users.find(value);
  return u == level.users.end() || u->second.size() == 1;
}
// Returns true if a sharding constraint in the loop shards another axis than the tiled one along
// these mesh axes, so that the devices share the work of each iteration.
bool LoopShardings::shares_work(int loop, Name tiled, const MeshAxes& devices) const {
  const auto inside = graph_.level(loop, 0).order;
  return !devices.empty() && std::any_of(inside.begin(), inside.end(), [&](int s) {
    if (node(s).op == &kLoop) return shares_work(s, tiled, devices);
    if (node(s).op != &prim::kShardingConstraint) return false;
    auto constrained = constraint(node(s), mesh_);
    return std::any_of(constrained.dims.begin(), constrained.dims.end(),
                       [&](auto& d) { return d.first != tiled && d.second.overlaps(devices); });
  });
}
// Returns true if one of these nodes, or a node of an inner loop, reads more of x along the axis
// than the slice of the current iteration.
bool LoopShardings::reads_beyond_slice(const std::vector<int>& order, int x, Name axis,
                                       const Node* index) const {
  return std::any_of(order.begin(), order.end(), [&](int s) {
    auto& in = graph_.at(s).in;
    if (std::find(in.begin(), in.end(), x) == in.end()) return false;
    auto& me = node(s);
    if (me.op == &kLoop) {
      const auto bodies = loop_of(me).index.size();
      for (std::size_t b = 0; b < bodies; ++b)
        if (reads_beyond_slice(graph_.level(s, b).order, x, axis, index)) return true;
      return false;
    }
    auto part = slice_of(me);
    if (!part) return true;
    return part->axis == axis ? !is_slice_at(me, index) : reads_beyond_slice(order, s, axis, index);
  });
}
MeshAxes LoopShardings::iterations_shared_by(int n) const {
  auto& l = loop_of(node(n));
  if (l.index.size() != 1) return {};
  for (std::size_t k = 0; k < l.results.size(); ++k)
    if (l.results[k].carry && !accumulates(n, k, 0)) return {};
  MeshAxes shared_by;
  std::int64_t most = 0;
  auto is_tile = [&](const Node& s) {
    return is_slice_at(s, l.index[0].get()) && !varies_in(*s.in[0], l, 0);
  };
  const auto order = graph_.level(n, 0).order;
  for (int s : order) {
    auto& me = node(s);
    if (!is_tile(me)) continue;
    auto& tiled = *haliax::find(*me.in[0], SliceAttr::of(me).axis);
    if (tiled.size != l.axis.size || SliceAttr::of(me).start != 0) return {};
    auto mesh_axes = sharding_of(operand(s, 0)).mesh_axes(tiled.name);
    if (!mesh_axes.empty() && me.in[0]->bytes() > most) {
      shared_by = mesh_axes;
      most = me.in[0]->bytes();
    }
  }
  if (shares_work(n, l.axis.name, shared_by)) return {};
  // Not if this requires an all-gather of a weight that the mapping shards.
  for (int s : order)
    for (int x : graph_.at(s).in) {
      auto& mapping = node(s).origin.mapping;
      if (x < 0 || !mapping || !graph_.at(x).of_inputs || varies_in(node(x), l, 0)) continue;
      for (auto& [name, mesh_axes] : sharding_of(x).dims)
        if (mesh_axes.overlaps(shared_by) && mapping->find(name) &&
            reads_beyond_slice(order, x, name, l.index[0].get()))
          return {};
    }
  auto blocks = ranks(mesh_, shared_by), chunk = int(prim::index_chunk(*l.index[0]));
  bool even = l.axis.size % blocks == 0 && l.axis.size / blocks % chunk == 0;
  return even && !shared_by.overlaps(blocked_axes(node(n))) ? shared_by : MeshAxes();
}
Sharding LoopShardings::iteration_sharding(int n, const LoopResult& r) const {
  auto at = sharding_of(n);
  if (at.partial.empty()) return shardings_.reduced_sharding(n);
  if (r.kind == ResultKind::fold) {
    bool same = std::all_of(at.partial.begin(), at.partial.end(),
                            [&](auto& p) { return p.second == r.monoid; });
    return same ? at : shardings_.reduced_sharding(n);
  }
  for (int v : versions(n))
    if (version(v).sharding.partial.empty()) return version(v).sharding;
  auto scattered = shardings_.reduced_sharding(n);
  bool shrinks = bytes(n, scattered) < bytes(n, at);
  return options_.regather && shrinks ? scattered : at;
}

}  // namespace haliax::partitioning
