// Meshes and mappings: which axis of the model is cut along which axis of the mesh.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "haliax/array.h"

namespace [[gnu::visibility("default")]] haliax {

// ---- devices ----
// The virtual devices of a process are threads. A mesh that runs may have at most so many; where
// several processes run the program together (haliax/ranks.h) it has exactly those of all. One that
// is only planned (Jitted::plan) may have any number. of this process; raises for less than 1
void set_devices(int, SourceLocation = SourceLocation::current());
// Of all processes. Each has as many as were set; else as HALIAX_DEVICES says, or it raises; else
// 8, and a rank 1.
int devices(SourceLocation = SourceLocation::current());

// A grid of devices. Row-major: the last axis runs fastest, as JAX numbers devices.
class Mesh {
 public:
  static constexpr bool is_static = true;
  Mesh() = default;  // one device
  // Mesh{{{"data", -1}, {"model", 2}}}. One size may be -1: as many as there are devices for.
  // Raises for other sizes below 1, for a name that is empty or there twice, and where -1 does not
  // come out even.
  Mesh(std::vector<std::pair<std::string, int>> axes, SourceLocation = SourceLocation::current());
  // names and sizes
  const std::vector<std::pair<std::string, int>>& axes() const { return axes_; }
  int devices() const;
  // Raises for an unknown axis, naming the mesh.
  int size(std::string_view axis, SourceLocation = SourceLocation::current()) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<std::pair<std::string, int>> axes_;
};
std::string to_string(const Mesh&);                    // data=4, model=2
std::ostream& operator<<(std::ostream&, const Mesh&);  // Mesh(data=4, model=2)

// Axis name -> mesh axes, major to minor: ("data", "model") puts the first piece on the first
// device of a row-major mesh and the second on the next, ("model", "data") does not. An axis that
// is not named, or has nullopt, is whole on every device, and a name that no array has is fine. An
// empty mapping says that all is whole everywhere; no mapping says nothing. A mesh axis that the
// mesh does not have raises as soon as both are known: in axis_mapping with a mesh in scope, in
// named_jit, in shard. Without a mesh a mapping cuts nothing.
class Mapping {
 public:
  static constexpr bool is_static = true;
  struct Entry {
    Name axis;
    std::vector<std::string> mesh_axes;
    Entry(Name, const char* mesh_axis);
    Entry(const char*, const char* mesh_axis);
    Entry(const Axis&, const char* mesh_axis);
    Entry(Name, std::vector<std::string> mesh_axes);
    Entry(const Axis&, std::vector<std::string> mesh_axes);
    Entry(Name, std::nullopt_t);
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  Mapping() = default;
  // Raises for an axis that is named twice, a mesh axis that is there twice for one axis, and names
  // that are empty.
  Mapping(std::initializer_list<Entry>, SourceLocation = SourceLocation::current());
  static Mapping of(std::vector<Entry>, SourceLocation = SourceLocation::current());
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<std::string>* find(Name) const;  // null: not mapped
  friend bool operator==(const Mapping&, const Mapping&) = default;

 private:
  std::vector<Entry> entries_;
};
std::string to_string(const Mapping&);  // {batch: data, embed: data+model}
std::ostream& operator<<(std::ostream&, const Mapping&);

// One mapping for all arguments (or results) of a function, or one for each; an empty optional says
// nothing about its argument.
class Mappings {
 public:
  Mappings(Mapping all);
  Mappings(std::vector<std::optional<Mapping>>);
  static Mappings of_each(std::vector<std::optional<Mapping>>);
  const std::vector<std::optional<Mapping>>& each() const { return each_; }
  bool one() const { return one_; }               // for all
  const Mapping* of(std::size_t argument) const;  // null: nothing is said

 private:
  std::vector<std::optional<Mapping>> each_;
  bool one_ = false;
};
// the mapping; [{batch: data}, none] of each
std::ostream& operator<<(std::ostream&, const Mappings&);

// ---- scopes: thread-local; the innermost holds. `axis_mapping` replaces the one around it ----
class [[nodiscard("the mesh holds as long as this object lives: give it a name")]] use_mesh {
 public:
  explicit use_mesh(Mesh);
  ~use_mesh();
  use_mesh(const use_mesh&) = delete;

 private:
  std::shared_ptr<const Mesh> outer_;
};
class [[nodiscard("the mapping holds as long as this object lives: give it a name")]] axis_mapping {
 public:
  // Raises for an axis that the mesh in scope lacks.
  explicit axis_mapping(Mapping, SourceLocation = SourceLocation::current());
  ~axis_mapping();
  axis_mapping(const axis_mapping&) = delete;

 private:
  std::shared_ptr<const Mapping> outer_;
};
std::shared_ptr<const Mesh> current_mesh();  // null: none
std::shared_ptr<const Mapping> current_mapping();

// Both scopes as they are on this thread, to hold on another: a new thread starts without. The
// library's own threads have those of the thread that called it. `std::thread
// worker(in_scopes(f));`
struct Scopes {
  std::shared_ptr<const Mesh> mesh = current_mesh();
  std::shared_ptr<const Mapping> mapping = current_mapping();
};
class [[nodiscard("the scopes hold as long as this object lives: give it a name")]] use_scopes {
 public:
  explicit use_scopes(const Scopes&);
  ~use_scopes();
  use_scopes(const use_scopes&) = delete;

 private:
  Scopes outer_;
};
template <class F> auto in_scopes(F f) {
  return [f = std::move(f), scopes = Scopes()](auto&&... args) {
    use_scopes here(scopes);
    return f(std::forward<decltype(args)>(args)...);
  };
}

// ---- where axes are: by the mapping given, or the one in scope; without one nothing is cut ----
// For each axis the mesh axes that cut it, major to minor; none: whole.
struct PartitionSpec {
  std::vector<std::vector<std::string>> axes;
  friend bool operator==(const PartitionSpec&, const PartitionSpec&) = default;
};
std::string to_string(const PartitionSpec&);  // P(data, None, data+model)
std::ostream& operator<<(std::ostream&, const PartitionSpec&);
// Says what the mapping says: whether one array may be cut so (two axes by one mesh axis) is seen
// where one is. A mesh axis that the mesh in scope does not have raises, in all four.
PartitionSpec pspec_for_axis(const AxisSelection&, SourceLocation = SourceLocation::current());
PartitionSpec pspec_for_axis(const AxisSelection&, const Mapping&,
                             SourceLocation = SourceLocation::current());
// Empty: not mapped.
std::vector<std::string> physical_axis_name(const AxisSelector&,
                                            SourceLocation = SourceLocation::current());
std::vector<std::string> physical_axis_name(const AxisSelector&, const Mapping&,
                                            SourceLocation = SourceLocation::current());
// Into how many pieces the mesh in scope cuts the axis; empty: not mapped. Raises without a mesh.
std::optional<std::int64_t> physical_axis_size(const AxisSelector&,
                                               SourceLocation = SourceLocation::current());
std::optional<std::int64_t> physical_axis_size(const AxisSelector&, const Mapping&,
                                               SourceLocation = SourceLocation::current());
// The axis, its size rounded up to a multiple of that: a vocabulary of which all devices hold as
// much. (Sizes need not divide.)
Axis round_axis_for_partitioning(const Axis&, SourceLocation = SourceLocation::current());
Axis round_axis_for_partitioning(const Axis&, const Mapping&,
                                 SourceLocation = SourceLocation::current());

// ---- constraints by hand ----
// This value is cut as the mapping says, and whole along what it does not name. Inside a traced
// function it is a constraint; outside it places the array (see placement): on the mesh in scope,
// or else on whatever mesh it comes to. Raises if two axes are on one mesh axis; for a mesh axis
// that the mesh does not have, once there is one; outside for more devices than there are.
NamedArray shard(Arr, const Mapping&);
NamedArray shard(Arr);         // by the mapping in scope; without one, the array itself
NamedArray auto_sharded(Arr);  // the same, as library code calls it: outside it places nothing

// How an array lies that a function on a mesh has made, or `shard` has placed. named_jit takes it
// so, if not told otherwise.
struct Placement {
  Mesh mesh;
  Mapping mapping;
  friend bool operator==(const Placement&, const Placement&) = default;
};
std::ostream& operator<<(std::ostream&, const Placement&);  // {batch: data} on Mesh(data=4)
// null: whole, on no mesh, or waiting for one
std::shared_ptr<const Placement> placement(const NamedArray&);

}  // namespace haliax
