// Meshes and mappings: which axis of the model is cut along which axis of the mesh.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "haliax/array.h"

namespace haliax {

// A grid of devices. Row-major: the last axis runs fastest, as JAX numbers devices.
struct Mesh {
  static constexpr bool is_static = true;
  std::vector<std::pair<std::string, int>> axes;
  int devices() const;
  int size(std::string_view axis) const;               // raises for an unknown axis, naming the mesh
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

// Axis name -> mesh axes, major to minor. An axis that is not named is whole on every device.
struct Mapping {
  static constexpr bool is_static = true;
  struct Entry {
    Name axis;
    std::vector<std::string> mesh_axes;
    Entry(Name a, const char* m) : axis(a), mesh_axes{m} {}
    Entry(const char* a, const char* m) : axis(a), mesh_axes{m} {}
    Entry(Name a, std::vector<std::string> m) : axis(a), mesh_axes(std::move(m)) {}
    Entry(const Axis& a, const char* m) : axis(a.name), mesh_axes{m} {}
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> entries;
  Mapping() = default;
  Mapping(std::initializer_list<Entry> e) : entries(e) {}
  const std::vector<std::string>* find(Name) const;    // null: not mapped
  friend bool operator==(const Mapping&, const Mapping&) = default;
};

// One mapping for all arguments (or results) of a function, or one for each; an empty optional says nothing about its argument.
struct Mappings {
  std::vector<std::optional<Mapping>> each;
  bool one = false;
  Mappings(Mapping all) : each{std::move(all)}, one(true) {}
  Mappings(std::vector<std::optional<Mapping>> e) : each(std::move(e)) {}
  static Mappings of_each(std::vector<std::optional<Mapping>> e) { return Mappings(std::move(e)); }
  const Mapping* of(std::size_t argument) const;       // null: nothing is said
};

// Scopes, thread-local; the innermost holds. `axis_mapping` replaces the one around it.
class use_mesh {
 public:
  explicit use_mesh(Mesh);
  ~use_mesh();
  use_mesh(const use_mesh&) = delete;
 private:
  std::shared_ptr<const Mesh> outer_;
};
class axis_mapping {
 public:
  explicit axis_mapping(Mapping);
  ~axis_mapping();
  axis_mapping(const axis_mapping&) = delete;
 private:
  std::shared_ptr<const Mapping> outer_;
};
std::shared_ptr<const Mesh> current_mesh();            // null: none
std::shared_ptr<const Mapping> current_mapping();

// A constraint by hand: inside a traced function on a mesh, this value is cut as the mapping says, and whole along what it does not name.
NamedArray shard(Arr, const Mapping&);
NamedArray auto_sharded(Arr);                          // by the mapping in scope; without one, the array itself

}  // namespace haliax
