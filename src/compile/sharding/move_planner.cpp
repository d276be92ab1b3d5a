// Plans ops that move positions along a sharded axis.
#include "compile/sharding/move_planner.h"

#include <algorithm>

#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax::partitioning {

void MovePlanner::shift(int n, const Sharding& work) {
  auto& me = node(n);
  const auto in = graph_.at(n).in;  // a copy, since the graph may grow
  Name axis = rules::shifted(me);
  Shift kind;
  Version v{.node = n, .sharding = rules::result_sharding(me, work)};
  std::vector<CopyBox> moving;
  std::int64_t done_to = 0;
  auto read = [&](int x, AxisSegment r) {
    if (shardings_.is_deferred_slice(x)) {
      auto below = node(x).op->segments(node(x))[0];
      r.from = below.from + r.from * below.step;
      r.step *= below.step;
      x = operand(x, 0);
    }
    auto need = rules::operand_sharding(me, 0, work, mesh_);
    if (!generated(x)) {
      auto mesh_axes = sharding_of(x).mesh_axes(axis);
      // If another axis requires the same mesh axes, x is sent in the sharding that it has.
      if (std::any_of(need.dims.begin(), need.dims.end(),
                      [&](auto& d) { return d.first != axis && d.second.overlaps(mesh_axes); }))
        need.dims = sharding_of(x).dims;
      need.set(axis, mesh_axes);
    }
    Axes axes;  // in the order of the result axes
    for (auto& a : me.axes) axes.push_back(*haliax::find(node(x), a.name));
    v.in.push_back(versions_.obtain(x, need));
    kind.boxes.push_back({int(v.in.size()) - 1, axes, need, axis, r.from, r.to, r.size, r.step});
    if (!need.mesh_axes(axis).empty()) moving.push_back(kind.boxes.back());
    done_to = r.to + r.size;
  };
  auto zeros = [&](std::int64_t to) {
    if (to == done_to) return;
    auto axes = me.axes;
    for (auto& a : axes)
      if (a.name == axis) a.size = to - done_to;
    int x = graph_.add(prim::filled(0, me.dtype, axes));
    track_new_nodes();
    read(x, {.to = done_to, .size = to - done_to});
  };
  for (auto& r : me.op->segments(me)) {
    zeros(r.to);
    read(in[r.operand], r);
  }
  zeros(haliax::find(me, axis)->size);
  kind.step = exchange_step(mesh_, moving, me.axes, me.dtype, v.sharding, axis);
  v.kind = std::move(kind);
  add_computed(std::move(v), local_size(me.axes, work, mesh_));
}

bool MovePlanner::regroup(int n, const Sharding& work, const Sharding& partial) {
  auto& me = node(n);
  if (!rules::regroups(me) || is_chosen(n, Choice::gather)) return false;
  bool flattens = rules::flattens(me);
  const int x = operand(n, 0);
  auto attr = RegroupAttr::of(me);
  Name flat = attr.flat;
  auto& long_form = flattens ? me : node(x);   // has the flat axis
  auto& short_form = flattens ? node(x) : me;  // has the parts
  Sharding left, target;
  rules::work_sharding(me, 0, sharding_of(x), mesh_, &left);
  Axes parts;
  for (auto p : attr.parts) parts.push_back(*haliax::find(short_form, p));
  auto layout = [&](const Sharding& s) {
    AxisLayout l{parts, {}};
    for (auto& p : parts) l.mesh_axes.push_back(s.mesh_axes(p.name));
    return l;
  };
  auto unused = [&](const MeshAxes& c, const Sharding& also) {
    return !c.overlaps(blocked_axes(me)) && std::none_of(c.begin(), c.end(), [&](int m) {
      return work.uses(m) || also.uses(m) || sharding_of(x).is_partial(m);
    });
  };
  auto over = flattens ? layout(left).over() : left.mesh_axes(flat);
  if (left.dims.empty() || !unused(over, {})) return false;
  add_alternative(n, Choice::gather);
  // Uses the preferred sharding if the mesh axes are unused. Otherwise, a flat axis is sharded
  // along the mesh axes of its parts. If there are several parts, the first one with even
  // blocks is sharded, or else the largest one.
  for (auto& a : flattens ? Axes{*haliax::find(me, flat)} : parts)
    if (auto c = preferred(n).mesh_axes(a.name); !c.empty() && unused(c, target))
      target.set(a.name, c);
  if (target.dims.empty() && flattens) target.set(flat, over);
  if (target.dims.empty()) {
    auto even = std::find_if(parts.begin(), parts.end(),
                             [&](auto& p) { return p.size % ranks(mesh_, over) == 0; });
    if (even == parts.end())
      even = std::max_element(parts.begin(), parts.end(),
                              [](auto& a, auto& b) { return a.size < b.size; });
    target.set(even->name, over);
  }
  auto need = rules::operand_sharding(me, 0, work, mesh_);
  for (auto& [name, mesh_axes] : left.dims) need.set(name, mesh_axes);
  Version v{.node = n, .sharding = rules::result_sharding(me, work)};
  for (auto& [name, mesh_axes] : target.dims) v.sharding.set(name, mesh_axes);
  need.partial = v.sharding.partial = partial.partial;
  v.in = {versions_.obtain(x, need)};
  CopyBox p{.axes = long_form.axes, .sharding = need, .axis = flat};
  (flattens ? p.source_layout : p.result_layout) = layout(flattens ? need : v.sharding);
  const std::vector boxes{p};
  v.kind = Regroup{{exchange_step(mesh_, boxes, p.axes, me.dtype, v.sharding, flat), boxes}};
  add_computed(std::move(v));  // a view computes nothing
  return true;
}

}  // namespace haliax::partitioning
