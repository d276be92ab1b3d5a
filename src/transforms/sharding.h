// How a value lies on a mesh: which mesh axes cut each of its axes, and over which a sum (or max,
// ...) is still pending.
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

constexpr int kMostDevices = 1 << 24;  // of a mesh

// Mesh axes by number, major to minor: what cuts one axis of an array.
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
  bool overlaps(const MeshAxes&) const;                  // do they have a mesh axis in common?
  MeshAxes prefix(int n) const { return part(0, n); }    // its first n
  MeshAxes from(int n) const { return part(n, size_); }  // the others
  int common(const MeshAxes&) const;                     // how many of the first are the same
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

// A mesh axis appears at most once in all of it.
struct Sharding {
  // in alphabetical order; an axis that is not listed is whole
  std::vector<std::pair<Name, MeshAxes>> dims;
  // by mesh axis: the value is the sum (max, ...) of what the ranks hold
  std::vector<std::pair<int, Monoid>> partial;

  MeshAxes mesh_axes(Name) const;
  void set(Name, const MeshAxes&);
  bool uses(int x) const;  // does mesh axis x cut some axis?
  bool is_partial(int x) const;
  void add_partial(int x, Monoid);
  void resolve(int x);  // no longer pending over x
  bool is_replicated() const { return dims.empty() && partial.empty(); }
  Sharding on(const Axes&) const;  // what it says about these axes
  Sharding without_partial() const { return {dims, {}}; }
  friend bool operator==(const Sharding&, const Sharding&) = default;
};

int ranks(const Mesh&, const MeshAxes&);
int coordinate(const Mesh&, int device, int mesh_axis);
std::string to_string(const Mesh&, const MeshAxes&);  // data+model
std::string to_string(const Sharding&);               // by the numbers of mesh axes
// First position and length of this device's block of an axis: ceil blocks, the last may be short
// or empty.
std::pair<std::int64_t, std::int64_t> block_of(const Axis&, const MeshAxes&, const Mesh&,
                                               int device);
// of the devices that have the same block, the first
int owner_of(const Sharding&, const Mesh&, int device);
Axes local_axes(const Axes&, const Sharding&, const Mesh&, int device);
// elements on one device, on average
double local_size(const Axes&, const Sharding&, const Mesh&);
// Are the blocks of `cut` parts of the blocks of its first `n` mesh axes?
bool nested(const Axis&, const MeshAxes& cut, int n, const Mesh&);

// The sharding that a mapping gives to axes; raises if two axes of one array are on the same mesh
// axis, or if the mapping names a mesh axis that the mesh does not have. `what`: the array, for
// people; a node says itself what it is and where it was made.
Sharding sharding_for(const Axes&, const Mapping&, const Mesh&, const std::string& what);
Sharding sharding_for(const Node&, const Mapping&, const Mesh&);

// Is an array so placed that has met no mesh yet? It takes the first.
inline bool is_unplaced(const Placement& p) { return p.mesh.axes().empty(); }

// ---- what is checked by itself; all of them raise ----
void refuse_shared(const Node&, const Mapping&);  // two of its axes on one mesh axis
// the mesh has all that the mapping names
void require_axes(const char* op, const Mapping&, const Mesh&);
void require_devices(const char* op, const Mesh&);  // this process has as many
// As many mappings as there are arguments (or results); field: what the user calls them.
void require_each(const char* op, const char* field, const std::optional<Mappings>&, int count,
                  const char* of_what);

}  // namespace haliax
