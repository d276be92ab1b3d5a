// The sharding of a value: the mesh axes that shard each of its axes, and the mesh axes over which
// it is a partial sum (or maximum, ...).
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "haliax/mesh.h"
#include "program/program.h"

namespace haliax {

using program::Monoid;
class Node;

constexpr int kMostDevices = 1 << 24;  // limit of devices per mesh

// Indices of the mesh axes that shard one axis of an array, major to minor.
class MeshAxes {
 public:
  static constexpr int most = 15;
  MeshAxes() = default;
  MeshAxes(std::initializer_list<int> axes) {
    for (int x : axes) push_back(x);
  }
  void push_back(int x) { at_[std::size_t(size_++)] = std::int8_t(x); }
  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int operator[](int k) const { return at_[std::size_t(k)]; }
  const std::int8_t* begin() const { return at_.data(); }
  const std::int8_t* end() const { return at_.data() + size_; }
  bool has(int x) const;
  bool overlaps(const MeshAxes&) const;                  // true if a mesh axis is in both
  MeshAxes prefix(int n) const { return part(0, n); }    // the first n
  MeshAxes from(int n) const { return part(n, size_); }  // all but the first n
  int common(const MeshAxes&) const;                     // length of the common prefix
  bool starts_with(const MeshAxes& p) const { return common(p) == p.size(); }
  friend MeshAxes operator+(MeshAxes a, const MeshAxes& b) {
    for (int x : b) a.push_back(x);
    return a;
  }
  friend bool operator==(const MeshAxes&, const MeshAxes&) = default;

 private:
  MeshAxes part(int first, int end) const;
  std::array<std::int8_t, most> at_{};
  std::int8_t size_ = 0;
};

// A mesh axis occurs at most once in a Sharding.
struct Sharding {
  // In alphabetical order. An axis that is not listed is replicated.
  std::vector<std::pair<Name, MeshAxes>> dims;
  // Per mesh axis: the value is the sum (max, ...) of the values of its ranks.
  std::vector<std::pair<int, Monoid>> partial;

  MeshAxes mesh_axes(Name) const;
  void set(Name, const MeshAxes&);
  bool uses(int x) const;  // true if mesh axis x shards an axis
  bool is_partial(int x) const;
  void add_partial(int x, Monoid);
  void resolve(int x);  // marks the value as complete over x
  bool is_replicated() const { return dims.empty() && partial.empty(); }
  Sharding on(const Axes&) const;  // restricted to these axes
  Sharding without_partial() const { return {dims, {}}; }
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

int ranks(const Mesh&, const MeshAxes&);
int coordinate(const Mesh&, int device, int mesh_axis);
std::string to_string(const Mesh&, const MeshAxes&);  // "data+model"
std::string to_string(const Sharding&);               // with indices of mesh axes
// Returns the first position and the length of the block of an axis on this device. Blocks have
// ceil(size / devices) positions; the last ones may be shorter or empty.
std::pair<std::int64_t, std::int64_t> block_of(const Axis&, const MeshAxes&, const Mesh&,
                                               int device);
// Returns the first of the devices that store the same block.
int owner_of(const Sharding&, const Mesh&, int device);
Axes local_axes(const Axes&, const Sharding&, const Mesh&, int device);
// Returns the number of elements on one device, on average.
double local_size(const Axes&, const Sharding&, const Mesh&);
// Returns true if each block of `mesh_axes` is inside of one block of its first `n` mesh axes.
bool nested(const Axis&, const MeshAxes& mesh_axes, int n, const Mesh&);

// Returns the sharding of these axes by a mapping. Raises if two axes of one array are mapped to
// the same mesh axis, or if the mapping names a mesh axis that the mesh lacks. `what`: the array,
// for messages; a node provides its own description.
Sharding sharding_for(const Axes&, const Mapping&, const Mesh&, const std::string& what);
Sharding sharding_for(const Node&, const Mapping&, const Mesh&);

// Returns true for an array that was placed without a mesh. It is placed on the first mesh that it
// meets.
inline bool is_unplaced(const Placement& p) { return p.mesh.axes().empty(); }

// ---- checks; all of them raise ----
void refuse_shared(const Node&, const Mapping&);  // if two axes are mapped to one mesh axis
// Raises if the mapping names an axis that the mesh lacks.
void require_axes(const char* op, const Mapping&, const Mesh&);
void require_devices(const char* op, const Mesh&);  // if this process lacks the devices
// Raises unless there is one mapping for all arguments (or results), or one for each. field: the
// public name of the option.
void require_each(const char* op, const char* field, const std::optional<Mappings>&, int count,
                  const char* of_what);

}  // namespace haliax
