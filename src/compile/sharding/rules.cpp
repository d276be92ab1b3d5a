// Sharding rules, derived from the `Along` rule of an op for each axis.
#include "compile/sharding/rules.h"

#include <algorithm>

#include "ops/attr.h"

namespace haliax::rules {
namespace {

using Way = Along::Way;

// Calls f(operand, axis, rule) for each axis of each operand.
template <class F> void each_axis(const Node& n, F f) {
  for (std::size_t k = 0; k < n.in.size(); ++k)
    if (n.in[k] && !is_order_only(n, k))
      for (auto& a : n.in[k]->axes) f(k, a, along(n, k, a.name));
}
bool has_way(const Node& n, Way way) {
  if (!n.op->along && way != Way::full)
    return false;  // the kind of op decides, see `haliax::along`
  bool found = false;
  each_axis(n, [&](std::size_t, const Axis&, const Along& rule) { found |= rule.way == way; });
  return found;
}

// An op that splits one axis into parts or merges parts into one axis.
struct RegroupRule {
  Axes parts;
  Name flat;
  bool flattens = false;
  bool is_part(Name a) const { return has(parts, a); }  // `flat` may have the name of a part
  MeshAxes joined(const Sharding& s) const {
    MeshAxes c;
    for (auto& p : parts) c = c + s.mesh_axes(p.name);
    return c;
  }
};
std::optional<RegroupRule> regroup_of(const Node& n) {
  if (!regroups(n)) return {};
  auto attr = RegroupAttr::of(n);
  RegroupRule r{{}, attr.flat, true};
  each_axis(n, [&](std::size_t, const Axis&, const Along& rule) {
    if (rule.way == Way::regroup) r.flattens = bool(rule.point);
  });
  for (auto p : attr.parts) r.parts.push_back(*find_axis(r.flattens ? n.in[0]->axes : n.axes, p));
  return r;
}

}  // namespace

Axes iteration_axes(const Node& n) {
  Axes out = n.axes;
  each_axis(n, [&](std::size_t, Axis a, const Along& rule) {
    if (rule.way == Way::regroup || !rule.point) return;
    a.name = rule.point;
    if (!has(out, a.name)) out.push_back(a);
  });
  return out;
}

std::optional<std::vector<MeshAxes>> split_over_parts(const MeshAxes& mesh_axes, const Axes& parts,
                                                      const Mesh& mesh) {
  std::vector<MeshAxes> out;
  MeshAxes rest = mesh_axes;
  for (auto& p : parts) {
    int n = 0;
    while (n < rest.size() && p.size % ranks(mesh, rest.prefix(n + 1)) == 0) ++n;
    out.push_back(rest.prefix(n));
    rest = rest.from(n);
    if (!rest.empty() && ranks(mesh, out.back()) != p.size) return {};
  }
  if (!rest.empty()) return {};
  return out;
}

bool may_shard(const Node& n, Name a, const MeshAxes& mesh_axes, const Sharding& work,
               const Mesh& mesh) {
  auto r = regroup_of(n);
  if (r && r->flattens && a == r->flat)
    return split_over_parts(mesh_axes, r->parts, mesh).has_value();
  if (r && !r->flattens && r->is_part(a)) {
    auto more = work;
    more.set(a, mesh_axes);
    auto even = split_over_parts(r->joined(more), r->parts, mesh);
    if (!even) return false;
    for (std::size_t k = 0; k < r->parts.size(); ++k)
      if (!((*even)[k] == more.mesh_axes(r->parts[k].name))) return false;
    return true;
  }
  bool there = has(n.axes, a), full = there && along(n, kResultSide, a).way == Way::full;
  each_axis(n, [&](std::size_t, const Axis&, const Along& rule) {
    if (!(rule.point == a)) return;
    there = true;
    full |= rule.way == Way::full;
  });
  return there && !full;
}

Sharding operand_sharding(const Node& n, std::size_t k, const Sharding& work, const Mesh& mesh) {
  Sharding out;
  auto r = regroup_of(n);
  for (auto& a : n.in[k]->axes) {
    auto rule = along(n, k, a.name);
    if (rule.way == Way::full || rule.way == Way::shift) continue;
    if (rule.way != Way::regroup)
      out.set(a.name, work.mesh_axes(rule.point));
    else if (!r->flattens)
      out.set(a.name, r->joined(work));
  }
  if (r && r->flattens)
    if (auto even = split_over_parts(work.mesh_axes(r->flat), r->parts, mesh))
      for (std::size_t p = 0; p < r->parts.size(); ++p) out.set(r->parts[p].name, (*even)[p]);
  return out;
}

Sharding result_sharding(const Node& n, const Sharding& work) {
  Sharding out;
  Names in_result;  // axes of the iteration space that the result has
  for (auto& a : n.axes) {
    auto rule = along(n, kResultSide, a.name);
    if (rule.way == Way::full) continue;
    out.set(a.name, work.mesh_axes(rule.point));
    in_result.push_back(rule.point);
  }
  for (auto& [name, mesh_axes] : work.dims) {
    if (std::find(in_result.begin(), in_result.end(), name) != in_result.end()) continue;
    auto monoid = Monoid::sum;
    each_axis(n, [&, point = name](std::size_t, const Axis&, const Along& rule) {
      if (rule.point == point) monoid = rule.monoid;
    });
    for (int x : mesh_axes) out.add_partial(x, monoid);
  }
  return out;
}

Sharding work_sharding(const Node& n, std::size_t k, const Sharding& operand, const Mesh& mesh,
                       Sharding* left) {
  Sharding out;
  if (is_order_only(n, k)) return out;
  auto leave = [&](Name a, const MeshAxes& c) {
    if (left && !c.empty()) left->set(a, c);
  };
  if (auto r = regroup_of(n)) {
    if (r->flattens) {
      auto c = r->joined(operand);
      if (split_over_parts(c, r->parts, mesh))
        out.set(r->flat, c);
      else
        for (auto& p : r->parts) leave(p.name, operand.mesh_axes(p.name));
    } else if (auto c = operand.mesh_axes(r->flat); !c.empty()) {
      if (auto even = split_over_parts(c, r->parts, mesh))
        for (std::size_t p = 0; p < r->parts.size(); ++p) out.set(r->parts[p].name, (*even)[p]);
      else
        leave(r->flat, c);
    }
  }
  for (auto& [name, mesh_axes] : operand.dims) {
    auto rule = along(n, k, name);
    if (rule.way == Way::full)
      leave(name, mesh_axes);
    else if (rule.way != Way::regroup)
      out.set(rule.point, mesh_axes);
  }
  return out;
}

Name shifted(const Node& n) {
  Name axis;
  if (!n.op->along) return axis;
  each_axis(n, [&](std::size_t, const Axis& a, const Along& rule) {
    if (rule.way == Way::shift) axis = a.name;
  });
  return axis;
}
bool picks(const Node& n) { return has_way(n, Way::pick); }
bool regroups(const Node& n) { return has_way(n, Way::regroup); }
bool flattens(const Node& n) { return regroup_of(n)->flattens; }
bool writes_into(const Node& n) {
  // Also true if an axis of the ids has the name of the axis that they select along, so that the op
  // requires both axes in full.
  return !n.in.empty() && n.in[0] &&
         std::any_of(n.in[0]->axes.begin(), n.in[0]->axes.end(), [&](auto& a) {
           if (!n.op->on_block || !has(n.axes, a.name)) return false;
           auto way = along(n, 0, a.name).way;
           return way == Way::pick ||
                  (way == Way::full && along(n, kResultSide, a.name).way == Way::full);
         });
}
bool is_free_to_recompute(const Node& n) {
  if (n.op->kind == Kind::view) return !shifted(n);
  return n.op->kind == Kind::map ? n.op->cheap : n.op->kind == Kind::wrap && n.in.size() == 1;
}
bool computable_anywhere(const Node& n) {
  return n.op->kind == Kind::map ||
         (n.op->kind == Kind::view && !has_way(n, Way::shift) && !has_way(n, Way::full));
}
bool jointly_partial(const Node& n) {
  int moved = 0;
  for (std::size_t k = 0; k < n.in.size(); ++k) {
    if (!n.in[k] || is_order_only(n, k)) continue;
    auto how = linear_in(n, k);
    if (how == Linear::all) return true;
    moved += how == Linear::moves;
  }
  return moved > 1;
}

}  // namespace haliax::rules
