// Meshes of devices, mappings from axis names to mesh axes, and sharding constraints. See
// docs/concepts/meshes-and-mappings.md.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

/// @name Devices
/// @{

/// Sets the number of devices of this process.
///
/// By default, devices are threads of the process. A mesh that runs may have at most as many
/// devices as there are. In a program of several ranks (ranks.h), it has exactly the devices of all
/// ranks. A mesh that is only planned (`Jitted::plan`) may have any number of devices.
///
/// @throws haliax::Error if `count` is less than 1
void set_devices(int count, SourceLocation at = SourceLocation::current());
/// Returns the number of devices of all ranks. The number of each process is that of `set_devices`,
/// or else `HALIAX_DEVICES`, or else 8 (1 in a program of several ranks).
/// @throws haliax::Error if `HALIAX_DEVICES` is invalid
int devices(SourceLocation at = SourceLocation::current());

/// @}

/// @name Meshes and mappings
/// @{

/// A grid of devices with named axes. Devices are numbered row-major: the last mesh axis runs
/// fastest, as in JAX.
///
///     Mesh mesh{{{"data", -1}, {"model", 2}}};  // data=4, model=2 on 8 devices
class Mesh {
 public:
  static constexpr bool is_static = true;  ///< A mesh is a static value in a tree.
  /// Creates a mesh of one device, without axes.
  Mesh() = default;
  /// Creates a mesh of these axes.
  ///
  /// @param axes  names and sizes, the outermost first. One size may be -1: as many as there are
  ///     devices for.
  /// @throws haliax::Error if another size is less than 1, if a name is empty or occurs twice, or
  ///     if -1 does not divide evenly
  Mesh(std::vector<std::pair<std::string, int>> axes,
       SourceLocation at = SourceLocation::current());
  Mesh(const Mesh&);
  Mesh(Mesh&&) noexcept;
  Mesh& operator=(const Mesh&);
  Mesh& operator=(Mesh&&) noexcept;
  ~Mesh();
  /// Returns the names and sizes of the axes.
  const std::vector<std::pair<std::string, int>>& axes() const { return axes_; }
  /// Returns the number of devices: the product of the sizes.
  int devices() const;
  /// Returns the size of a mesh axis.
  /// @throws haliax::Error if the mesh has no such axis
  int size(std::string_view axis, SourceLocation at = SourceLocation::current()) const;
  /// Compares names and sizes.
  friend bool operator==(const Mesh& a, const Mesh& b) { return a.equal(b); }

 private:
  bool equal(const Mesh& other) const;
  std::vector<std::pair<std::string, int>> axes_;
};
/// Returns the axes as text: `data=4, model=2`.
std::string to_string(const Mesh& mesh);
/// Prints `Mesh(data=4, model=2)`.
std::ostream& operator<<(std::ostream& out, const Mesh& mesh);

/// Usual names of mesh axes. A mesh may have any other names.
///
///     Mesh mesh{{{ResourceAxis::DATA, -1}, {ResourceAxis::MODEL, 2}}};
///     Mapping compute{{"batch", ResourceAxis::DATA}, {"mlp", ResourceAxis::MODEL}};
struct ResourceAxis {
  static constexpr const char* MODEL = "model";      ///< Tensor parallelism.
  static constexpr const char* DATA = "data";        ///< Data parallelism and FSDP.
  static constexpr const char* REPLICA = "replica";  ///< Replicas of groups of `DATA`.
  static constexpr const char* CONTEXT = "context";  ///< Positions of a sequence.
};

/// A table from axis names to mesh axes. One mapping shards all arrays that have these axes.
///
/// - An axis with an entry is sharded along the mesh axes of the entry. An axis without one, or
///   with `std::nullopt`, is replicated.
/// - Several mesh axes may shard one axis. The first one is the outermost: on a mesh of `data` and
///   `model`, `{"data", "model"}` places shard k on device k.
/// - An entry for an axis that no array has is ignored.
/// - An empty mapping replicates all axes. No mapping at all is no constraint.
/// - A mesh axis that the mesh lacks raises where mapping and mesh meet: in `axis_mapping` with a
///   mesh in scope, `named_jit` and `shard`.
/// - A mapping without a mesh has no effect.
///
///     Mapping compute{{"batch", "data"}, {"mlp", "model"}};
///     Mapping both{{"batch", {"replica", "data"}}, {"embed", std::nullopt}};
class Mapping {
 public:
  static constexpr bool is_static = true;  ///< A mapping is a static value in a tree.
  /// An axis with the mesh axes that shard it, the outermost first.
  struct Entry {
    Name axis;                           ///< Name of the axis.
    std::vector<std::string> mesh_axes;  ///< The mesh axes. Empty: replicated.
    /// Shards an axis along one mesh axis.
    Entry(Name axis, const char* mesh_axis);
    /// Shards an axis along one mesh axis.
    Entry(const char* axis, const char* mesh_axis);
    /// Shards an axis along one mesh axis. The size of the axis has no effect.
    Entry(const Axis& axis, const char* mesh_axis);
    /// Shards an axis along several mesh axes, the outermost first.
    Entry(Name axis, std::vector<std::string> mesh_axes);
    /// Shards an axis along several mesh axes. The size of the axis has no effect.
    Entry(const Axis& axis, std::vector<std::string> mesh_axes);
    /// Replicates an axis.
    Entry(Name axis, std::nullopt_t);
    /// Compares names.
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  /// Creates an empty mapping, which replicates all axes.
  Mapping() = default;
  /// Creates a mapping.
  /// @throws haliax::Error if an axis occurs twice, if a mesh axis occurs twice in one entry, or if
  ///     a name is empty
  Mapping(std::initializer_list<Entry> entries, SourceLocation at = SourceLocation::current());
  Mapping(const Mapping&);
  Mapping(Mapping&&) noexcept;
  Mapping& operator=(const Mapping&);
  Mapping& operator=(Mapping&&) noexcept;
  ~Mapping();
  /// Creates a mapping from a vector of entries. Raises as the constructor does.
  static Mapping of(std::vector<Entry> entries, SourceLocation at = SourceLocation::current());
  /// Returns the entries, in order.
  const std::vector<Entry>& entries() const { return entries_; }
  /// Returns the mesh axes of an axis, or null if the mapping has no entry for it.
  const std::vector<std::string>* find(Name axis) const;
  /// Compares entries, in order.
  friend bool operator==(const Mapping& a, const Mapping& b) { return a.equal(b); }

 private:
  bool equal(const Mapping& other) const;
  std::vector<Entry> entries_;
};
/// Returns the mapping as text: `{batch: data, embed: data+model}`.
std::string to_string(const Mapping& mapping);
/// Prints the text of `to_string`.
std::ostream& operator<<(std::ostream& out, const Mapping& mapping);

/// One mapping for all arguments or results of a function, or one for each of them. An empty
/// optional is no constraint.
///
///     named_jit(f, {.in = Mappings::of_each({params, compute, std::nullopt})})
class Mappings {
 public:
  /// Creates a mapping for all arguments or results.
  Mappings(Mapping all);
  /// Creates one mapping for each argument or result.
  Mappings(std::vector<std::optional<Mapping>> each);
  Mappings(const Mappings&);
  Mappings(Mappings&&) noexcept;
  Mappings& operator=(const Mappings&);
  Mappings& operator=(Mappings&&) noexcept;
  ~Mappings();
  /// Creates one mapping for each argument or result.
  static Mappings of_each(std::vector<std::optional<Mapping>> each);
  /// Returns the mappings: a vector of one if it is for all.
  const std::vector<std::optional<Mapping>>& each() const { return each_; }
  /// Returns true if one mapping is for all.
  bool one() const { return one_; }
  /// Returns the mapping of an argument or result (from 0), or null if it has none.
  const Mapping* of(std::size_t argument) const;

 private:
  std::vector<std::optional<Mapping>> each_;
  bool one_ = false;
};
/// Prints the mapping for all, or a list such as `[{batch: data}, none]`.
std::ostream& operator<<(std::ostream& out, const Mappings& mappings);

/// @}

/// @name Scopes
/// Objects that set the mesh or the mapping of a thread until they are destroyed. The innermost one
/// holds.
/// @{

/// Sets the mesh of this thread until the object is destroyed.
///
///     use_mesh on(mesh);
///     axis_mapping by(compute);
class use_mesh {
 public:
  /// Sets the mesh.
  // clang-format off
  [[nodiscard("the mesh is in scope as long as this object lives: give it a name")]]
  explicit use_mesh(Mesh mesh);
  // clang-format on
  /// Restores the outer mesh.
  ~use_mesh();
  use_mesh(const use_mesh&) = delete;

 private:
  std::shared_ptr<const Mesh> outer_;
};
/// The name of `use_mesh` in Haliax.
using set_mesh = use_mesh;
/// Another name of `use_mesh` in Haliax.
using mesh_context = use_mesh;

/// Options of `axis_mapping`.
struct AxisMappingOptions {
  /// Adds the entries of the outer mapping, as in Haliax. An axis with an entry in both has that of
  /// the outer mapping. Default: the new mapping replaces the outer one.
  bool merge = false;
};
/// Sets the mapping of this thread until the object is destroyed. It replaces the outer mapping, or
/// adds to it with `{.merge = true}`.
///
/// Inside a traced function, the results of contractions, lookups (`take`), `rearrange`, `unbind`,
/// random draws and the layers that use them are constrained by the mapping in scope. The compiler
/// chooses the sharding of all other values. See docs/concepts/meshes-and-mappings.md.
class axis_mapping {
 public:
  /// Sets the mapping.
  /// @throws haliax::Error if there is a mesh in scope that lacks a mesh axis of the mapping
  // clang-format off
  [[nodiscard("the mapping is in scope as long as this object lives: give it a name")]]
  explicit axis_mapping(Mapping mapping, SourceLocation at = SourceLocation::current());
  [[nodiscard("the mapping is in scope as long as this object lives: give it a name")]]
  axis_mapping(Mapping mapping, AxisMappingOptions options,
               SourceLocation at = SourceLocation::current());
  // clang-format on
  /// Restores the outer mapping.
  ~axis_mapping();
  axis_mapping(const axis_mapping&) = delete;

 private:
  std::shared_ptr<const Mapping> outer_;
};
/// Returns the mesh in scope, or null.
std::shared_ptr<const Mesh> current_mesh();
/// Returns the mapping in scope, or null.
std::shared_ptr<const Mapping> current_mapping();
/// Returns `current_mapping()`.
std::shared_ptr<const Mapping> current_thread_local_mapping();

/// The mesh and the mapping in scope of the thread that creates the object. A new thread starts
/// without scopes; threads of the library have the scopes of their caller.
struct Scopes {
  std::shared_ptr<const Mesh> mesh = current_mesh();           ///< The mesh, or null.
  std::shared_ptr<const Mapping> mapping = current_mapping();  ///< The mapping, or null.
};
/// Sets both scopes of this thread until the object is destroyed.
class use_scopes {
 public:
  /// Sets the scopes.
  // clang-format off
  [[nodiscard("the scopes last as long as this object lives: give it a name")]]
  explicit use_scopes(const Scopes& scopes);
  // clang-format on
  /// Restores the outer scopes.
  ~use_scopes();
  use_scopes(const use_scopes&) = delete;

 private:
  Scopes outer_;
};
/// Returns `f` with the scopes of the thread that calls `in_scopes`.
///
///     std::thread worker(in_scopes([&] { train(); }));
template <class F> auto in_scopes(F f) {
  return [f = std::move(f), scopes = Scopes()](auto&&... args) {
    use_scopes here(scopes);
    return f(std::forward<decltype(args)>(args)...);
  };
}

/// @}

/// @name Axes on a mesh
/// Look-ups in a mapping, or in the mapping in scope. Without a mapping, no axis is sharded. All
/// functions raise if the mapping names a mesh axis that the mesh in scope lacks.
/// @{

/// The mesh axes of each axis of an array, the outermost first. An empty list: replicated.
struct PartitionSpec {
  std::vector<std::vector<std::string>> axes;  ///< The mesh axes of each axis.
  /// Compares names.
  friend bool operator==(const PartitionSpec&, const PartitionSpec&) = default;
};
/// Returns the specification as text: `P(data, None, data+model)`.
std::string to_string(const PartitionSpec& spec);
/// Prints the text of `to_string`.
std::ostream& operator<<(std::ostream& out, const PartitionSpec& spec);
/// Returns the mesh axes of each of `axes`, by `mapping` or the mapping in scope. Two axes of one
/// array on one mesh axis do not raise here; they raise where an array is sharded.
PartitionSpec pspec_for_axis(const AxisSelection& axes,
                             SourceLocation at = SourceLocation::current());
PartitionSpec pspec_for_axis(const AxisSelection& axes, const Mapping& mapping,
                             SourceLocation at = SourceLocation::current());
/// A mesh, and the mesh axes of each axis of an array on it.
struct NamedSharding {
  Mesh mesh;           ///< The mesh.
  PartitionSpec spec;  ///< The mesh axes of each axis of the array.
  /// Compares mesh and names.
  friend bool operator==(const NamedSharding&, const NamedSharding&) = default;
};
/// Returns the sharding as text: `P(data, None) on Mesh(data=4)`.
std::string to_string(const NamedSharding& sharding);
/// Prints the text of `to_string`.
std::ostream& operator<<(std::ostream& out, const NamedSharding& sharding);
/// Returns the sharding of an array with these axes. The defaults are the mesh and the mapping in
/// scope.
///
/// @param axes     axes of the array
/// @param mapping  mapping
/// @param mesh     mesh of any size
/// @throws haliax::Error if two axes are on one mesh axis, if the mesh lacks a mesh axis of the
///     mapping, or if there is no mesh
///
///     sharding_for_axis({"batch", "embed"}, {{"batch", "data"}}, mesh);  // P(data, None)
NamedSharding sharding_for_axis(const AxisSelection& axes, const Mapping& mapping, const Mesh& mesh,
                                SourceLocation at = SourceLocation::current());
NamedSharding sharding_for_axis(const AxisSelection& axes, const Mapping& mapping,
                                SourceLocation at = SourceLocation::current());
NamedSharding sharding_for_axis(const AxisSelection& axes,
                                SourceLocation at = SourceLocation::current());
/// Returns the mesh axes that shard an axis, the outermost first. Empty: replicated.
std::vector<std::string> physical_axis_name(const AxisSelector& axis,
                                            SourceLocation at = SourceLocation::current());
std::vector<std::string> physical_axis_name(const AxisSelector& axis, const Mapping& mapping,
                                            SourceLocation at = SourceLocation::current());
/// Returns the number of shards of an axis on the mesh in scope, or nothing if the axis is
/// replicated.
/// @throws haliax::Error if there is no mesh in scope
std::optional<std::int64_t> physical_axis_size(const AxisSelector& axis,
                                               SourceLocation at = SourceLocation::current());
std::optional<std::int64_t> physical_axis_size(const AxisSelector& axis, const Mapping& mapping,
                                               SourceLocation at = SourceLocation::current());
/// Returns the axis with its size rounded up to a multiple of its number of shards, so that all
/// shards have equal sizes. Sharding itself does not require a divisible size.
/// @throws haliax::Error if there is no mesh in scope
///
///     auto Padded = round_axis_for_partitioning(Axis("vocab", 50257));  // vocab=50264 on 8
///     devices
Axis round_axis_for_partitioning(const Axis& axis, SourceLocation at = SourceLocation::current());
Axis round_axis_for_partitioning(const Axis& axis, const Mapping& mapping,
                                 SourceLocation at = SourceLocation::current());

/// @}

/// @name Sharding constraints
/// @{

/// Returns `x` with a sharding constraint: sharded along the axes that the mapping names, and
/// replicated along all other mesh axes.
///
/// Inside a traced function, the result is a constrained intermediate. Outside of one, the array is
/// placed on the mesh in scope; without a mesh in scope, it is placed on the mesh of the first
/// function that it is an argument of.
///
/// @param x        array; `shard.h` has overloads for trees
/// @param mapping  default: the mapping in scope. Without one, `x` is returned unchanged.
/// @throws haliax::Error if two axes of `x` are on one mesh axis, if the mesh lacks a mesh axis of
///     the mapping, or, outside of traced functions, if the mesh has more devices than there are.
///     Also inside of a traced function on another mesh than `mesh`.
///
///     auto hidden = shard(x, {{"batch", "data"}});
///     auto replicated = shard(x, Mapping{});
NamedArray shard(Arr x, const Mapping& mapping);
NamedArray shard(Arr x, const Mapping& mapping, const Mesh& mesh);
NamedArray shard(Arr x);
/// Returns `x`, constrained by the mapping in scope inside a traced function. Outside of one, it
/// returns `x` unchanged. For library code.
NamedArray auto_sharded(Arr x);

/// The sharding of an array that `named_jit` returned or `shard` placed. `named_jit` keeps it
/// unless its options override it.
struct Placement {
  Mesh mesh;        ///< The mesh.
  Mapping mapping;  ///< The mapping on the mesh.
  /// Compares mesh and mapping.
  friend bool operator==(const Placement&, const Placement&) = default;
};
/// Prints `{batch: data} on Mesh(data=4)`.
std::ostream& operator<<(std::ostream& out, const Placement& placement);
/// Returns the placement of an array. Returns null if the array is on no mesh, or is not yet placed
/// and there is no mesh in scope.
std::shared_ptr<const Placement> placement(const NamedArray& array);

/// @}

}  // namespace haliax
