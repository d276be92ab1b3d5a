// Sharding of trees, fully sharded data parallelism, functions of local shards, and tables of the
// shards of an array. See docs/how-to/parallelism.md.
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

/// @name Trees
/// @{

/// Returns the tree with each array sharded by one mapping; see `shard` for an array.
template <class T>
requires(!std::is_convertible_v<const T&, Arr>) T
    shard(const T& tree, const Mapping& m, SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : shard(Arr(a, at), m); }, tree);
}
/// Returns the tree with each array sharded by one mapping on `mesh` instead of the mesh in scope.
template <class T>
requires(!std::is_convertible_v<const T&, Arr>) T
    shard(const T& tree, const Mapping& m, const Mesh& mesh,
          SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : shard(Arr(a, at), m, mesh); },
                  tree);
}
/// Returns `shard(tree, m)`, for an array or a tree.
template <class T>
T shard_with_axis_mapping(const T& tree, const Mapping& m,
                          SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : shard(Arr(a, at), m); }, tree);
}
/// Returns `shard(tree, m, mesh)`, for an array or a tree.
template <class T>
T shard_with_axis_mapping(const T& tree, const Mapping& m, const Mesh& mesh,
                          SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : shard(Arr(a, at), m, mesh); },
                  tree);
}
/// Returns the tree with each array constrained by the mapping in scope; see `auto_sharded` for an
/// array.
template <class T>
requires(!std::is_convertible_v<const T&, Arr>) T
    auto_sharded(const T& tree, SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : auto_sharded(Arr(a, at)); },
                  tree);
}
/// Returns the tree with each array sharded by the mapping in scope. Without one, the tree is
/// returned unchanged.
template <class T>
requires(!std::is_convertible_v<const T&, Arr>) T
    shard(const T& tree, SourceLocation at = SourceLocation::current()) {
  return tree_map([&](const NamedArray& a) { return a.empty() ? a : shard(Arr(a, at)); }, tree);
}

/// @}

/// @name Shardings of trees
/// @{

/// Options of `pspec_for` and `infer_resource_partitions`.
struct PspecOptions {
  /// Returns the sharding that an array has already, if `named_jit` or `shard` placed it, instead
  /// of that of the mapping.
  bool preserve_existing_shardings = true;
};
/// The mesh axes of an array of a tree.
struct LeafPspec {
  std::string path;    ///< Path of the array, as of `tree_paths`.
  PartitionSpec spec;  ///< Mesh axes of each of its axes.
  /// Compares path and names.
  friend bool operator==(const LeafPspec&, const LeafPspec&) = default;
};
/// The sharding of an array of a tree.
struct LeafSharding {
  std::string path;        ///< Path of the array, as of `tree_paths`.
  NamedSharding sharding;  ///< Mesh, and mesh axes of each of its axes.
  /// Compares path, mesh and names.
  friend bool operator==(const LeafSharding&, const LeafSharding&) = default;
};

namespace detail {
std::vector<LeafPspec> pspecs(const Walk&, const Mapping&, PspecOptions, SourceLocation);
std::vector<LeafSharding> shardings(const Walk&, const Mapping&, const Mesh*, PspecOptions,
                                    SourceLocation);
Mapping mapping_or_none();
}  // namespace detail

/// Returns the mesh axes of each array of a tree, in the order of its fields. Empty arrays are
/// skipped. The mapping is `m`, or the mapping in scope; without one, all arrays are replicated.
/// @throws haliax::Error if there is a mesh in scope that lacks a mesh axis of the mapping
///
///     for (auto& [path, spec] : pspec_for(model, params)) std::cout << path << " " << spec;
/// @see pspec_for_axis
template <class T>
std::vector<LeafPspec> pspec_for(const T& tree, const Mapping& m, PspecOptions options = {},
                                 SourceLocation at = SourceLocation::current()) {
  return detail::pspecs(walk_of(tree, {.paths = true}), m, options, at);
}
template <class T>
std::vector<LeafPspec> pspec_for(const T& tree, SourceLocation at = SourceLocation::current()) {
  return detail::pspecs(walk_of(tree, {.paths = true}), detail::mapping_or_none(), {}, at);
}
/// Returns the sharding of each array of a tree, in the order of its fields. Empty arrays are
/// skipped. The defaults are the mapping and the mesh in scope.
/// @throws haliax::Error if two axes of an array are on one mesh axis, if the mesh lacks a mesh
/// axis
///     of the mapping, or if there is no mesh
/// @see sharding_for_axis
template <class T>
std::vector<LeafSharding> infer_resource_partitions(const T& tree, const Mapping& m,
                                                    const Mesh& mesh, PspecOptions options = {},
                                                    SourceLocation at = SourceLocation::current()) {
  return detail::shardings(walk_of(tree, {.paths = true}), m, &mesh, options, at);
}
template <class T>
std::vector<LeafSharding> infer_resource_partitions(const T& tree, const Mapping& m,
                                                    SourceLocation at = SourceLocation::current()) {
  return detail::shardings(walk_of(tree, {.paths = true}), m, nullptr, {}, at);
}
template <class T>
std::vector<LeafSharding> infer_resource_partitions(const T& tree,
                                                    SourceLocation at = SourceLocation::current()) {
  return detail::shardings(walk_of(tree, {.paths = true}), detail::mapping_or_none(), nullptr, {},
                           at);
}

/// @}

namespace detail {
JitOptions fsdp_options(Mapping params, Mapping compute, JitOptions);
}

/// @name Two mappings
/// @{

/// Returns `f`, compiled for fully sharded data parallelism (FSDP, ZeRO): `params` shards arguments
/// and results, and `compute` shards the intermediates of `f`.
///
/// The compiler all-gathers a weight where a layer reads it, and reduce-scatters its gradient. The
/// call is `named_jit(f, {.axis_resources = compute, .in = params, .out = params})`.
///
///     auto step = fsdp(train_step, {{"embed", "data"}}, {{"batch", "data"}},
///                      {.donate = {0}, .mesh = mesh});
///
/// @param f        function of trees
/// @param params   mapping of arguments and results
/// @param compute  mapping inside `f`
/// @param options  other options; `in`, `out` and `axis_resources` are overwritten
/// @see JitOptions::regather
template <class F>
Jitted<F> fsdp(F f, Mapping params, Mapping compute, JitOptions options = {},
               SourceLocation at = SourceLocation::current()) {
  return named_jit(std::move(f),
                   detail::fsdp_options(std::move(params), std::move(compute), std::move(options)),
                   at);
}

/// @}

namespace detail {
// The mesh axes are hidden axes of the arrays inside f. Each one is the outer part of the axes that
// it shards.
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

/// @name Functions of local shards
/// @{

/// Returns a function that runs `f` on the shards of one device, for code with explicit
/// collectives.
///
/// Inside `f`, arrays have local axis sizes. `f` computes and draws random numbers on each device
/// separately; `psum` and the other functions below communicate. The returned function is a
/// `named_jit`. Inside another traced function it becomes part of that graph. `grad` works inside
/// of `f` and around the returned function.
///
/// - `in` shards the arguments and `out` the results; the default of both is `axis_resources`, or
///   the mapping in scope.
/// - A result that differs between the devices along a mesh axis must be sharded along that mesh
///   axis.
///
///     auto normalized = shard_map(
///         [](const NamedArray& part) {  // (batch / 4, embed)
///           return part / sqrt(psum(sum(part * part), "data"));
///         },
///         {.mesh = Mesh{{{"data", 4}}}, .axis_resources = Mapping{{"batch", "data"}}});
///
/// @param f        function of trees that returns a tree
/// @param options  options, as for `named_jit`
/// @throws haliax::Error (from a call) if there is no mesh, if the devices do not divide a sharded
///     axis evenly, or if a result differs along a mesh axis that does not shard it
template <class F>
auto shard_map(F f, JitOptions options = {}, SourceLocation at = SourceLocation::current()) {
  options = detail::located(std::move(options), at);
  auto global = detail::transform_of<F>([f = std::move(f), options](const auto&... args) {
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
  return named_jit(std::move(global), options);
}
/// Returns the sum of `x` over the devices along one or more mesh axes (all-reduce). Inside
/// `shard_map` only, like all functions of this section. All devices have the result. A sum of
/// bools is `i32`.
/// @throws haliax::Error if there is no `shard_map` around the call, or if the mesh lacks a mesh
///     axis
NamedArray psum(Arr x, const AxisSelection& mesh_axes);
/// Returns the mean of `x` over the devices along one or more mesh axes.
NamedArray pmean(Arr x, const AxisSelection& mesh_axes);
/// Returns the elementwise maximum of `x` over the devices along one or more mesh axes.
NamedArray pmax(Arr x, const AxisSelection& mesh_axes);
/// Returns the elementwise minimum of `x` over the devices along one or more mesh axes.
NamedArray pmin(Arr x, const AxisSelection& mesh_axes);
/// Returns the arrays of all devices, concatenated along `axis` in the order of the mesh axes, the
/// first one slowest.
/// @return `x` with `axis` of size `devices * size`
NamedArray all_gather(Arr x, const AxisSelector& axis, const AxisSelection& mesh_axes);
/// Returns one part along `axis` of `psum(x, mesh_axes)` on each device (reduce-scatter).
/// @throws haliax::Error if the devices do not divide the size of `axis`
NamedArray psum_scatter(Arr x, const AxisSelector& axis, const AxisSelection& mesh_axes);
/// Returns the position of the device along a mesh axis, an `i32` scalar.
NamedArray axis_index(const AxisSelector& mesh_axis, SourceLocation at = SourceLocation::current());

/// @}

/// @name Pictures of shardings
/// @{

/// Returns a table of the devices that hold each block of an array. Rows and columns are the blocks
/// of the sharded axes.
///
/// @param axes     axes of the array
/// @param mapping  mapping
/// @param mesh     mesh of any size
/// @param svg      file for a picture of the table; empty: none
/// @throws haliax::Error if two axes are on one mesh axis, if the mesh lacks a mesh axis, or if the
///     file cannot be written
std::string visualize_sharding(const AxisSpec& axes, const Mapping& mapping, const Mesh& mesh,
                               const std::string& svg = {},
                               SourceLocation at = SourceLocation::current());
/// Returns the table for the placement of an array. The default is the mapping and the mesh in
/// scope, or one device.
std::string visualize_sharding(const NamedArray& array, const std::string& svg = {},
                               SourceLocation at = SourceLocation::current());

/// @}

namespace detail {
std::string sharding_table(const Leaves&, const std::vector<std::string>& paths, const Mapping&,
                           const Mesh&, SourceLocation);
std::string placement_table(const Leaves&, const std::vector<std::string>& paths, SourceLocation);
}

/// @name Tables of trees
/// @{

/// Returns one line for each array of a tree: its axes, their sharding, its bytes, and the bytes on
/// one device. The last line has the sums.
template <class T>
std::string visualize_shardings(const T& tree, const Mapping& m, const Mesh& mesh,
                                SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(tree, {.paths = true});
  return detail::sharding_table(w.leaves(), w.paths, m, mesh, at);
}
/// Returns the table for the placement of each array. The default of an array that is not placed is
/// the mapping and the mesh in scope, or one device. This is also the case inside of a traced
/// function, where the compiler has not yet chosen a sharding.
template <class T>
std::string visualize_shardings(const T& tree, SourceLocation at = SourceLocation::current()) {
  Walk w = walk_of(tree, {.paths = true});
  return detail::placement_table(w.leaves(), w.paths, at);
}

/// @}

}  // namespace haliax
