// Meshes, mappings, and the scopes that hold them.
#include "haliax/mesh.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/name.h"
#include "base/where.h"
#include "ops/named.h"
#include "ops/prim.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

constexpr int most_devices = 1 << 24;
int devices_asked(const char* text) {
  if (!text || !*text) return 8;
  int n = 0;
  const char* end = text + std::strlen(text);
  auto [read, error] = std::from_chars(text, end, n);
  if (error != std::errc() || read != end || n < 1 || n > most_devices)
    throw Error("[devices] HALIAX_DEVICES is " + std::string(text) + "; it must be a number from 1 to " +
                std::to_string(most_devices));
  return n;
}
std::atomic<int>& device_count() {
  static std::atomic<int> count = devices_asked(std::getenv("HALIAX_DEVICES"));
  return count;
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string out;
  for (auto& p : parts) out += (out.empty() ? "" : between) + p;
  return out;
}

}  // namespace

// ---- devices ----
void set_devices(int n) {
  if (n < 1 || n > most_devices) throw Error("[devices] there cannot be " + std::to_string(n) + " devices");
  device_count() = n;
}
int devices() { return device_count(); }

Mesh::Mesh(std::vector<std::pair<std::string, int>> given, SourceLocation at) : axes_(std::move(given)) {
  Here here(at);
  std::pair<std::string, int>* open = nullptr;
  std::int64_t others = 1;
  int split = 0;
  for (auto& a : axes_) {
    auto& [name, size] = a;
    if (name.empty()) fail("mesh", "a mesh axis has no name");
    for (auto* b = axes_.data(); b != &a; ++b)
      if (b->first == name) fail("mesh", "mesh axis " + name + " is there twice");
    if (size == -1 && open)
      fail("mesh", "mesh axes " + open->first + " and " + name + " both have size -1; one of them has to be known");
    if (size == -1) {
      open = &a;
      continue;
    }
    if (size < 1)
      fail("mesh", "mesh axis " + name + " has size " + std::to_string(size) + "; it must be at least 1, or -1 for what is left");
    others *= size, split += size > 1;
    if (split >= Cut::most) fail("mesh", "a mesh has fewer than " + std::to_string(Cut::most) + " axes of more than one device");
    if (others > most_devices)
      fail("mesh", "the mesh " + to_string(*this) + " has more than " + std::to_string(most_devices) + " devices");
  }
  if (!open) return;
  int all = haliax::devices();
  if (all % others)
    fail("mesh", std::to_string(all) + " devices cannot be shared out as " + to_string(*this) +
                     "; set_devices or HALIAX_DEVICES changes their number");
  open->second = int(all / others);
}
int Mesh::devices() const {
  int n = 1;
  for (auto& [name, size] : axes_) n *= size;
  return n;
}
int Mesh::size(std::string_view axis) const {
  std::vector<std::string> known;
  for (auto& [name, size] : axes_) {
    if (name == axis) return size;
    known.push_back(name);
  }
  throw Error("[mesh] there is no mesh axis " + std::string(axis) + "; the mesh has " + joined(known, ", ") +
              did_you_mean(axis, known));
}
std::string to_string(const Mesh& m) {
  std::vector<std::string> out;
  for (auto& [name, size] : m.axes()) out.push_back(name + "=" + std::to_string(size));
  return joined(out, ", ");
}

// ---- mappings ----
Mapping Mapping::of(std::vector<Entry> entries, SourceLocation at) {
  Here here(at);
  Mapping m;
  for (auto& e : entries) {
    auto axis = std::string(e.axis.text());
    if (axis.empty()) fail("mapping", "an axis has no name");
    if (m.find(e.axis)) fail("mapping", "axis " + axis + " is there twice; for several mesh axes give a list of them");
    for (auto& mesh_axis : e.mesh_axes) {
      if (mesh_axis.empty())
        fail("mapping", "axis " + axis + " is sent to a mesh axis without a name; nullopt says that it is whole");
      if (std::count(e.mesh_axes.begin(), e.mesh_axes.end(), mesh_axis) > 1)
        fail("mapping", "axis " + axis + " is sent to mesh axis " + mesh_axis + " twice");
    }
    m.entries_.push_back(std::move(e));
  }
  return m;
}
const std::vector<std::string>* Mapping::find(Name n) const {
  for (auto& e : entries_)
    if (e.axis.text() == n.text()) return &e.mesh_axes;  // by text: an axis hidden by vmap keeps its public name
  return nullptr;
}
std::string to_string(const Mapping& m) {
  std::vector<std::string> out;
  for (auto& e : m.entries())
    out.push_back(std::string(e.axis.text()) + ": " + (e.mesh_axes.empty() ? "None" : joined(e.mesh_axes, "+")));
  return "{" + joined(out, ", ") + "}";
}
const Mapping* Mappings::of(std::size_t argument) const {
  auto k = one_ ? 0 : argument;
  return k < each_.size() && each_[k] ? &*each_[k] : nullptr;
}

// ---- scopes ----
namespace {

void require_axes_here(const char* op, const Mapping& m) {
  if (auto mesh = current_mesh()) require_axes(op, m, *mesh);
}

}  // namespace

use_mesh::use_mesh(Mesh m) : outer_(context().mesh) { context().mesh = std::make_shared<const Mesh>(std::move(m)); }
use_mesh::~use_mesh() { context().mesh = outer_; }
axis_mapping::axis_mapping(Mapping m, SourceLocation at) : outer_(context().origin.mapping) {
  Here here(at);
  require_axes_here("axis_mapping", m);
  context().origin.mapping = std::make_shared<const Mapping>(std::move(m));
}
axis_mapping::~axis_mapping() { context().origin.mapping = outer_; }
std::shared_ptr<const Mesh> current_mesh() { return context().mesh; }
std::shared_ptr<const Mapping> current_mapping() { return context().origin.mapping; }
use_scopes::use_scopes(const Scopes& s) { context().mesh = s.mesh, context().origin.mapping = s.mapping; }
use_scopes::~use_scopes() { context().mesh = outer_.mesh, context().origin.mapping = outer_.mapping; }

// ---- where axes are ----
namespace {

std::vector<std::string> mesh_axes_of(Name axis, const Mapping& m) {
  auto* to = m.find(axis);
  return to ? *to : std::vector<std::string>();
}

}  // namespace

PartitionSpec pspec_for_axis(const AxisSelection& axes, const Mapping& m, SourceLocation at) {
  Here here(at);
  if (axes.all()) fail("pspec_for_axis", "name the axes; `{}` would be those of an array, and there is none");
  require_axes_here("pspec_for_axis", m);
  PartitionSpec out;
  for (auto& a : axes.items()) out.axes.push_back(mesh_axes_of(a.name, m));
  return out;
}
PartitionSpec pspec_for_axis(const AxisSelection& axes, SourceLocation at) {
  auto m = current_mapping();
  return pspec_for_axis(axes, m ? *m : Mapping(), at);
}
std::string to_string(const PartitionSpec& s) {
  std::vector<std::string> out;
  for (auto& a : s.axes) out.push_back(a.empty() ? "None" : joined(a, "+"));
  return "P(" + joined(out, ", ") + ")";
}
std::vector<std::string> physical_axis_name(const AxisSelector& axis, const Mapping& m, SourceLocation at) {
  Here here(at);
  require_axes_here("physical_axis_name", m);
  return mesh_axes_of(axis.name, m);
}
std::vector<std::string> physical_axis_name(const AxisSelector& axis, SourceLocation at) {
  auto m = current_mapping();
  return physical_axis_name(axis, m ? *m : Mapping(), at);
}
std::optional<std::int64_t> physical_axis_size(const AxisSelector& axis, const Mapping& m, SourceLocation at) {
  Here here(at);
  auto mesh = current_mesh();
  if (!mesh) fail("physical_axis_size", "there is no mesh in scope; use_mesh puts one there");
  require_axes("physical_axis_size", m, *mesh);
  if (mesh_axes_of(axis.name, m).empty()) return {};
  return ranks(*mesh, sharding_for({Axis(axis.name, 1)}, m, *mesh, "an array").cut(axis.name));
}
std::optional<std::int64_t> physical_axis_size(const AxisSelector& axis, SourceLocation at) {
  auto m = current_mapping();
  return physical_axis_size(axis, m ? *m : Mapping(), at);
}
Axis round_axis_for_partitioning(const Axis& axis, const Mapping& m, SourceLocation at) {
  auto pieces = physical_axis_size(axis, m, at);
  return pieces ? axis.resize((axis.size + *pieces - 1) / *pieces * *pieces, at) : axis;
}
Axis round_axis_for_partitioning(const Axis& axis, SourceLocation at) {
  auto m = current_mapping();
  return round_axis_for_partitioning(axis, m ? *m : Mapping(), at);
}

// ---- constraints ----
namespace {

// Raises where the constraint is written: two axes on one mesh axis, and what the mesh in scope does not have.
void check(const Node& x, const Mapping& m) {
  refuse_shared(x, m);
  require_axes_here("shard", m);
}
NamedArray placed_or_pinned(const NodePtr& x, const std::shared_ptr<const Mapping>& m) {
  check(*x, *m);
  auto mesh = current_mesh();
  if (context().tracing > 0) return NamedArray(prim::pin(x, m));
  if (!mesh) {
    auto waits = prim::pin(x, m);
    const_cast<Node&>(*waits).placement = std::make_shared<const Placement>(Placement{{}, *m});
    return NamedArray(waits);
  }
  require_devices("shard", *mesh);
  NamedArray(x).eval(context().origin.at);
  auto out = make_data(x->value, x->axes, x->dtype);  // the same memory
  const_cast<Node&>(*out).placement = std::make_shared<const Placement>(Placement{*mesh, *m});
  return NamedArray(out);
}

}  // namespace

NamedArray shard(Arr x, const Mapping& m) {
  Here here(x.at());
  return placed_or_pinned(ops::node_of("shard", x), std::make_shared<const Mapping>(m));
}
NamedArray shard(Arr x) {
  auto m = current_mapping();
  return m ? shard(x, *m) : NamedArray(x);
}
NamedArray auto_sharded(Arr x) {
  auto m = current_mapping();
  if (!m) return x;
  Here here(x.at());
  return ops::constrained("shard", NamedArray(ops::node_of("auto_sharded", x)));
}
NamedArray ops::constrained(const char* op, const NamedArray& x) {
  auto m = current_mapping();
  if (!m) return x;
  check(*x.node(), *m);
  return NamedArray(prim::pin(x.node(), m, op));
}
std::shared_ptr<const Placement> placement(const NamedArray& a) {
  auto p = !a.empty() ? a.node()->placement : nullptr;
  if (!p || !waits(*p)) return p;
  auto mesh = current_mesh();
  if (!mesh) return nullptr;
  require_axes("shard", p->mapping, *mesh);
  return std::make_shared<const Placement>(Placement{*mesh, p->mapping});
}

}  // namespace haliax
