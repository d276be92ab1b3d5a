// Chooses the steps of a resharding.
#include "compile/sharding/reshard.h"

#include <algorithm>

namespace haliax {
namespace {

struct Resharding {
  const Mesh& mesh;
  const Axes& axes;
  DType dtype;
  const Sharding& to;
  Sharding now;
  std::vector<ReshardStep> steps = {};

  double bytes(const Sharding& s) const { return local_size(axes, s, mesh) * bytes_of(dtype); }
  double ring_bytes(const MeshAxes& over, double n) const {
    double g = ranks(mesh, over);
    return (g - 1) / g * n;
  }
  const Axis& axis(Name n) const { return *find_axis(axes, n); }
  bool stays_partial(int x, Monoid m) const {  // partial over x, as requested
    return std::find(to.partial.begin(), to.partial.end(), std::pair(x, m)) != to.partial.end();
  }
  bool add(ReshardStep step) {
    now = step.to;
    steps.push_back(std::move(step));
    return true;
  }

  // Returns the longest prefix of the requested sharding of an axis that can be reached with mesh
  // axes that `may` accepts. Returns the current sharding if none can.
  template <class May>
  MeshAxes reachable(Name name, const MeshAxes& requested, const Sharding& s, May may) const {
    auto have = s.mesh_axes(name);
    if (!requested.starts_with(have)) return have;
    int n = have.size();
    while (n < requested.size() && may(requested[n])) ++n;
    auto reached = requested.prefix(n);
    bool fits =
        nested(axis(name), reached, have.size(), mesh) && nested(axis(name), requested, n, mesh);
    return fits ? reached : have;
  }
  bool slice() {
    auto next = now;
    for (auto& [name, requested] : to.dims)
      next.set(name, reachable(name, requested, next,
                               [&](int x) { return !next.uses(x) && !next.is_partial(x); }));
    return !(next == now) && add({ReshardStep::Kind::slice, next, {}, {}, 0});
  }
  // A partial value of another monoid is reduced first: the identity of one monoid is not the
  // identity of the other.
  bool make_partial() {
    auto next = now;
    auto reduced_before = [&](Monoid m) {
      return std::any_of(now.partial.begin(), now.partial.end(), [&](auto& p) {
        return p.second != m && !stays_partial(p.first, p.second);
      });
    };
    for (auto& [x, m] : to.partial)
      if (!now.is_partial(x) && !now.uses(x) && !reduced_before(m)) next.add_partial(x, m);
    return !(next == now) && add({ReshardStep::Kind::make_partial, next, {}, {}, 0});
  }
  bool reduce_scatter() {
    for (auto& [name, requested] : to.dims) {
      auto have = now.mesh_axes(name), reached = reachable(name, requested, now, [&](int x) {
                                         return now.is_partial(x) && !to.is_partial(x);
                                       });
      if (reached == have) continue;
      auto over = reached.from(have.size());
      std::optional<Monoid> monoid;
      bool mixed = false;
      for (auto& [x, m] : now.partial)
        if (over.has(x)) {
          mixed |= monoid && *monoid != m;
          monoid = m;
        }
      if (mixed) continue;
      auto next = now;
      next.set(name, reached);
      for (int x : over) next.resolve(x);
      return add(
          {ReshardStep::Kind::reduce_scatter, next, over, name, ring_bytes(over, bytes(now))});
    }
    return false;
  }
  // Moves mesh axes to other axes of the array, in one all-to-all. Mesh axes that are gathered
  // afterwards stay in place if the blocks then match the requested layout. Otherwise, the
  // all-to-all produces the requested layout directly. For example, [a: x, b: y] -> [b: x]: the
  // all-to-all produces [b: x+y], and b is gathered over y later. If the blocks of x+y are not
  // inside of the blocks of x (b = 10, x = y = 2), it produces [b: x] directly.
  bool exchange() {
    auto next = now;
    std::vector<int> placed;  // mesh axes that reach their requested axis now
    for (auto& [name, requested] : to.dims) {
      int reached = 0;
      while (reached < requested.size() && now.uses(requested[reached])) {
        placed.push_back(requested[reached]);
        ++reached;
      }
      next.set(name, requested.prefix(reached));
    }
    for (auto& [name, have] : now.dims) {
      if (to.mesh_axes(name).empty()) next.set(name, {});
      auto own = next.mesh_axes(name);
      for (int x : have)  // the other mesh axes stay here until they are gathered
        if (std::find(placed.begin(), placed.end(), x) == placed.end()) own.push_back(x);
      next.set(name, own);
    }
    bool blocks_match = std::all_of(next.dims.begin(), next.dims.end(), [&](auto& d) {
      return nested(axis(d.first), d.second, d.second.common(to.mesh_axes(d.first)), mesh);
    });
    if (blocks_match && next == now) return false;
    if (!blocks_match) {
      if (std::any_of(now.partial.begin(), now.partial.end(),
                      [&](auto& p) { return !to.is_partial(p.first); }))
        return false;  // reduced first
      next = now;
      next.dims = to.dims;
    }
    return exchange(next);
  }
  bool exchange(const Sharding& next) {
    return add(exchange_step(mesh, {{.axes = axes, .sharding = now}}, axes, dtype, next));
  }
  bool exchange_directly() {  // if blocks are not nested, each device receives its final block
    auto next = now;
    next.dims = to.dims;
    return !(next == now) && exchange(next);
  }
  bool all_reduce() {
    for (auto m : {Monoid::sum, Monoid::prod, Monoid::max, Monoid::min}) {
      auto next = now;
      MeshAxes over;
      for (auto& [x, how] : now.partial)
        if (how == m && !stays_partial(x, how)) {
          over.push_back(x);
          next.resolve(x);
        }
      if (!over.empty())
        return add(
            {ReshardStep::Kind::all_reduce, next, over, {}, 2 * ring_bytes(over, bytes(now))});
    }
    return false;
  }
  bool all_gather() {
    for (auto& [name, have] : now.dims) {
      int keep = have.common(to.mesh_axes(name));
      if (keep == have.size() || !nested(axis(name), have, keep, mesh)) continue;
      auto next = now;
      auto over = have.from(keep);
      next.set(name, have.prefix(keep));
      return add({ReshardStep::Kind::all_gather, next, over, name, ring_bytes(over, bytes(next))});
    }
    return false;
  }
};

}  // namespace

ReshardStep exchange_step(const Mesh& mesh, const std::vector<CopyBox>& boxes, const Axes& axes,
                          DType dtype, const Sharding& sharding, Name axis) {
  return {ReshardStep::Kind::exchange, sharding, exchange_over(boxes, axes, sharding), axis,
          exchange_bytes(boxes, axes, sharding, bytes_of(dtype), mesh)};
}
program::CollectiveKind ReshardStep::collective() const {
  using program::CollectiveKind;
  return kind == Kind::all_reduce       ? CollectiveKind::all_reduce
         : kind == Kind::all_gather     ? CollectiveKind::all_gather
         : kind == Kind::reduce_scatter ? CollectiveKind::reduce_scatter
                                        : CollectiveKind::exchange;
}
std::vector<ReshardStep> reshard(const Mesh& mesh, const Axes& axes, DType dtype, Sharding from,
                                 const Sharding& to) {
  Resharding r{mesh, axes, dtype, to, std::move(from)};
  while (!(r.now == to))
    if (!r.slice() && !r.make_partial() && !r.reduce_scatter() && !r.exchange() &&
        !r.all_reduce() && !r.all_gather() && !r.exchange_directly())
      throw Error("[partition] there are no reshard steps from " + to_string(r.now) + " to " +
                  to_string(to) + " of " + to_string(axes));
  return std::move(r.steps);
}

}  // namespace haliax
