// Meshes, mappings, and the scopes that hold them.
#include "haliax/mesh.h"

#include "base/name.h"
#include "ops/prim.h"

namespace haliax {
namespace {

std::shared_ptr<const Mesh>& mesh_here() {
  static thread_local std::shared_ptr<const Mesh> mesh;
  return mesh;
}

}  // namespace

int Mesh::devices() const {
  int n = 1;
  for (auto& [name, size] : axes) n *= size;
  return n;
}
int Mesh::size(std::string_view axis) const {
  std::vector<std::string> known;
  for (auto& [name, size] : axes) {
    if (name == axis) return size;
    known.push_back(name);
  }
  std::string all;
  for (auto& n : known) all += (all.empty() ? "" : ", ") + n;
  throw Error("[mesh] there is no mesh axis " + std::string(axis) + "; the mesh has " + all + did_you_mean(axis, known));
}
const std::vector<std::string>* Mapping::find(Name n) const {
  for (auto& e : entries)
    if (e.axis.text() == n.text()) return &e.mesh_axes;   // by text: an axis hidden by vmap keeps its public name
  return nullptr;
}

const Mapping* Mappings::of(std::size_t argument) const {
  if (one) return &*each[0];
  return argument < each.size() && each[argument] ? &*each[argument] : nullptr;
}

use_mesh::use_mesh(Mesh m) : outer_(mesh_here()) {
  for (auto& [name, size] : m.axes)
    if (size < 1) throw Error("[mesh] mesh axis " + name + " has size " + std::to_string(size));
  mesh_here() = std::make_shared<const Mesh>(std::move(m));
}
use_mesh::~use_mesh() { mesh_here() = outer_; }
axis_mapping::axis_mapping(Mapping m) : outer_(context().origin.mapping) { context().origin.mapping = std::make_shared<const Mapping>(std::move(m)); }
axis_mapping::~axis_mapping() { context().origin.mapping = outer_; }
std::shared_ptr<const Mesh> current_mesh() { return mesh_here(); }
std::shared_ptr<const Mapping> current_mapping() { return context().origin.mapping; }

NamedArray shard(Arr x, const Mapping& m) {
  Here here(x.at());
  return NamedArray(prim::pin(x.node(), std::make_shared<const Mapping>(m)));
}
NamedArray auto_sharded(Arr x) {
  auto& m = context().origin.mapping;
  if (!m) return x;
  return NamedArray(prim::pin(x.node(), m));
}

}  // namespace haliax
