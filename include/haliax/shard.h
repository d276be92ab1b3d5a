// Sharding whole trees, functions of local shards, and pictures of which device holds what.
#pragma once
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "haliax/jit.h"
#include "haliax/mesh.h"
#include "haliax/tree.h"

namespace [[gnu::visibility("default")]] haliax {

// ---- trees ----
// Every array of a tree by one mapping; see `shard` of an array.
template <class T>
requires(!std::is_convertible_v<const T&, Arr>) T
    shard(const T& tree, const Mapping& m, SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : shard(Arr(a, at), m); }, tree);
}
template <class T>
requires(!std::is_convertible_v<const T&, Arr>) T
    auto_sharded(const T& tree, SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : auto_sharded(Arr(a, at)); },
                  tree);
}
template <class T>
requires(!std::is_convertible_v<const T&, Arr>) T
    shard(const T& tree, SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : shard(Arr(a, at)); }, tree);
}

// ---- two mappings ----
// Fully sharded data parallelism: arguments and results lie as `params` says, what is computed as
// `compute` says. The same as named_jit(f, {.axis_resources = compute, .in = params, .out =
// params}).
namespace detail {
JitOptions fsdp_options(Mapping params, Mapping compute, JitOptions);
}
template <class F> Jitted<F> fsdp(F f, Mapping params, Mapping compute, JitOptions options = {}) {
  return named_jit(std::move(f),
                   detail::fsdp_options(std::move(params), std::move(compute), std::move(options)));
}

// ---- functions of local shards ----
namespace detail {
// mesh axes hidden from what f sees, each the outer part of the axes that it cuts
class ShardMap {
 public:
  explicit ShardMap(const JitOptions&);
  Leaves enter(const Leaves&, const Parts& arguments);
  Leaves leave(const Leaves&, const Parts& of_result) const;

 private:
  const Mapping& mapping_of(const std::optional<Mappings>&, int part) const;
  const JitOptions& options_;
  std::shared_ptr<const Mesh> mesh_;
  std::shared_ptr<const Mapping> outside_;
};
}  // namespace detail

// f sees the shard of one device: arrays whose axes have their local sizes, which have to divide
// evenly. Arguments are cut by `in`, results put together by `out`; else by `axis_resources`, or
// the mapping in scope. What f draws and computes, each device does by itself, and psum and the
// like are all that passes between them; a result that is another on devices for which the mapping
// does not cut it raises. Called by itself it is a named_jit; inside another it is part of that
// one's graph, and it can be differentiated, inside and outside. Other options as for named_jit.
template <class F> auto shard_map(F f, JitOptions options = {}) {
  auto whole = detail::transform_of<F>([f = std::move(f), options](const auto&... args) {
    if constexpr (!std::is_void_v<detail::CallResult<const F&, std::decay_t<decltype(args)>...>>) {
      detail::Tracing tracing;
      detail::ShardMap local(options);
      std::tuple<std::decay_t<decltype(args)>...> in(args...);
      detail::Parts parts;
      detail::walk_parts(parts, args...);
      Walk w = walk_of(in);
      w.assign(local.enter(w.leaves(), parts));
      auto out = detail::spread(f, in);
      Walk r = walk_of(out);
      r.assign(local.leave(r.leaves(), detail::parts_of(out)));
      return out;
    } else {
      return Nothing{};
    }
  });
  return named_jit(std::move(whole), options);
}
// Inside shard_map, over one or more mesh axes. Sums, means and extremes of what the devices along
// them have; all have the result.
NamedArray psum(Arr, const AxisSelection& mesh_axes);
NamedArray pmean(Arr, const AxisSelection& mesh_axes);
NamedArray pmax(Arr, const AxisSelection& mesh_axes);
NamedArray pmin(Arr, const AxisSelection& mesh_axes);
// The parts of all devices, one after the other along `axis`, in the order of the mesh axes, the
// first slowest.
NamedArray all_gather(Arr, const AxisSelector& axis, const AxisSelection& mesh_axes);
// psum, of which each device keeps its part along `axis`, whose size has to divide.
NamedArray psum_scatter(Arr, const AxisSelector& axis, const AxisSelection& mesh_axes);
// The place of this device along a mesh axis: i32.
NamedArray axis_index(const AxisSelector& mesh_axis, SourceLocation = SourceLocation::current());

// ---- who holds what ----
// Which devices hold which positions, as a table: rows and columns are the blocks of two axes that
// are cut (of further ones it tells how). `svg`: the file to draw it in as well. Raises as `shard`
// does, and for a file that cannot be written.
std::string visualize_sharding(const AxisSpec&, const Mapping&, const Mesh&,
                               const std::string& svg = {},
                               SourceLocation = SourceLocation::current());
// As the array is placed; without a placement by the mapping and mesh in scope, or whole on one
// device.
std::string visualize_sharding(const NamedArray&, const std::string& svg = {},
                               SourceLocation = SourceLocation::current());

namespace detail {
std::string sharding_table(const Leaves&, const std::vector<std::string>& paths, const Mapping&,
                           const Mesh&, SourceLocation);
}
// Of each array of a tree one line: its axes, how they are cut, its size, and what one device holds
// of it. Then their sums.
template <class T>
std::string visualize_shardings(const T& tree, const Mapping& m, const Mesh& mesh,
                                SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(tree, {.paths = true});
  return detail::sharding_table(w.leaves(), w.paths, m, mesh, at);
}

}  // namespace haliax
