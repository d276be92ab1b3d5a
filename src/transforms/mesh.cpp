// Meshes, mappings, and the scopes that set them.
#include "haliax/mesh.h"

#include <fmt/ranges.h>

#include <ostream>

#include "base/name.h"
#include "graph/fail.h"
#include "haliax/shard.h"
#include "ops/named.h"
#include "ops/prim.h"
#include "transforms/sharding.h"

namespace haliax {
namespace {

std::string joined(const std::vector<std::string>& parts, const char* between) {
  return fmt::format("{}", fmt::join(parts, between));
}
std::string shown(const std::vector<std::string>& mesh_axes) {
  return mesh_axes.empty() ? "None" : joined(mesh_axes, "+");
}

}  // namespace

Mesh::Mesh(const Mesh&) = default;
Mesh::Mesh(Mesh&&) noexcept = default;
Mesh& Mesh::operator=(const Mesh&) = default;
Mesh& Mesh::operator=(Mesh&&) noexcept = default;
Mesh::~Mesh() = default;
bool Mesh::equal(const Mesh& other) const { return axes_ == other.axes_; }
Mesh::Mesh(std::vector<std::pair<std::string, int>> given, SourceLocation at)
    : axes_(std::move(given)) {
  CallSite here(at);
  std::pair<std::string, int>* open = nullptr;
  std::int64_t others = 1;
  int split = 0;
  for (auto& a : axes_) {
    auto& [name, size] = a;
    if (name.empty()) fail("mesh", "a mesh axis has no name");
    if (std::any_of(axes_.data(), &a, [&](auto& before) { return before.first == a.first; }))
      fail("mesh", "mesh axis {} occurs twice", name);
    if (size == -1 && open)
      fail("mesh", "mesh axes {} and {} both have size -1; at most one may be -1", open->first,
           name);
    if (size == -1) {
      open = &a;
      continue;
    }
    if (size < 1)
      fail("mesh",
           "mesh axis {} has size {}; it must be at least 1, or -1 for the remaining devices", name,
           size);
    others *= size;
    split += size > 1;
    if (split >= MeshAxes::most)
      fail("mesh", "a mesh has fewer than {} axes of more than one device", int(MeshAxes::most));
    if (others > kMostDevices)
      fail("mesh", "the mesh {} has more than {} devices", *this, int(kMostDevices));
  }
  if (!open) return;
  int all = haliax::devices(at);
  if (all % others)
    fail("mesh",
         "{} devices cannot be arranged as {}; set_devices or HALIAX_DEVICES sets the device count",
         all, *this);
  open->second = int(all / others);
}
int Mesh::devices() const {
  int n = 1;
  for (auto& [name, size] : axes_) n *= size;
  return n;
}
int Mesh::size(std::string_view axis, SourceLocation at) const {
  std::vector<std::string> known;
  for (auto& [name, size] : axes_) {
    if (name == axis) return size;
    known.push_back(name);
  }
  CallSite here(at);
  fail("mesh", "there is no mesh axis {}; the mesh has {}{}", axis, joined(known, ", "),
       did_you_mean(axis, known));
}
std::ostream& operator<<(std::ostream& out, const Mesh& m) {
  return out << "Mesh(" << to_string(m) << ")";
}
std::ostream& operator<<(std::ostream& out, const Mapping& m) { return out << to_string(m); }
std::ostream& operator<<(std::ostream& out, const Mappings& m) {
  if (m.one()) return out << *m.of(0);
  std::vector<std::string> each;
  for (auto& mapping : m.each()) each.push_back(mapping ? to_string(*mapping) : "none");
  return out << "[" << joined(each, ", ") << "]";
}
std::ostream& operator<<(std::ostream& out, const Placement& p) {
  return out << p.mapping << " on " << p.mesh;
}
std::ostream& operator<<(std::ostream& out, const PartitionSpec& s) { return out << to_string(s); }
std::string to_string(const Mesh& m) {
  std::vector<std::string> out;
  for (auto& [name, size] : m.axes()) out.push_back(fmt::format("{}={}", name, size));
  return joined(out, ", ");
}

// ---- mappings ----
Mapping::Entry::Entry(Name a, const char* m) : axis(a), mesh_axes{m} {}
Mapping::Entry::Entry(const char* a, const char* m) : axis(a), mesh_axes{m} {}
Mapping::Entry::Entry(const Axis& a, const char* m) : axis(a.name), mesh_axes{m} {}
Mapping::Entry::Entry(Name a, std::vector<std::string> m) : axis(a), mesh_axes(std::move(m)) {}
Mapping::Entry::Entry(const Axis& a, std::vector<std::string> m)
    : axis(a.name), mesh_axes(std::move(m)) {}
Mapping::Entry::Entry(Name a, std::nullopt_t) : axis(a) {}
Mapping::Mapping(const Mapping&) = default;
Mapping::Mapping(Mapping&&) noexcept = default;
Mapping& Mapping::operator=(const Mapping&) = default;
Mapping& Mapping::operator=(Mapping&&) noexcept = default;
Mapping::~Mapping() = default;
bool Mapping::equal(const Mapping& other) const { return entries_ == other.entries_; }
Mapping::Mapping(std::initializer_list<Entry> e, SourceLocation at) : Mapping(of(e, at)) {}
Mapping Mapping::of(std::vector<Entry> entries, SourceLocation at) {
  CallSite here(at);
  Mapping m;
  for (auto& e : entries) {
    auto axis = e.axis;
    if (axis.text().empty()) fail("mapping", "an axis has no name");
    if (m.find(axis))
      fail("mapping", "axis {} occurs twice; use a list for several mesh axes", axis);
    for (auto& mesh_axis : e.mesh_axes) {
      if (mesh_axis.empty())
        fail("mapping",
             "axis {} is mapped to a mesh axis without a name; use nullopt to replicate it", axis);
      if (std::count(e.mesh_axes.begin(), e.mesh_axes.end(), mesh_axis) > 1)
        fail("mapping", "axis {} is mapped to mesh axis {} twice", axis, mesh_axis);
    }
    m.entries_.push_back(std::move(e));
  }
  return m;
}
const std::vector<std::string>* Mapping::find(Name n) const {
  for (auto& e : entries_)
    // Compares the text: an axis that vmap hides keeps its public name.
    if (e.axis.text() == n.text()) return &e.mesh_axes;
  return nullptr;
}
std::string to_string(const Mapping& m) {
  std::vector<std::string> out;
  for (auto& e : m.entries()) out.push_back(fmt::format("{}: {}", e.axis, shown(e.mesh_axes)));
  return "{" + joined(out, ", ") + "}";
}
Mappings::Mappings(const Mappings&) = default;
Mappings::Mappings(Mappings&&) noexcept = default;
Mappings& Mappings::operator=(const Mappings&) = default;
Mappings& Mappings::operator=(Mappings&&) noexcept = default;
Mappings::~Mappings() = default;
Mappings::Mappings(Mapping all) : each_{std::move(all)}, one_(true) {}
Mappings::Mappings(std::vector<std::optional<Mapping>> e) : each_(std::move(e)) {}
Mappings Mappings::of_each(std::vector<std::optional<Mapping>> e) { return Mappings(std::move(e)); }
const Mapping* Mappings::of(std::size_t argument) const {
  auto k = one_ ? 0 : argument;
  return k < each_.size() && each_[k] ? &*each_[k] : nullptr;
}

// ---- scopes ----
static void require_axes_here(const char* op, const Mapping& m) {
  if (auto mesh = current_mesh()) require_axes(op, m, *mesh);
}

use_mesh::use_mesh(Mesh m) : outer_(context().mesh) {
  context().mesh = std::make_shared<const Mesh>(std::move(m));
}
use_mesh::~use_mesh() { context().mesh = outer_; }
axis_mapping::axis_mapping(Mapping m, SourceLocation at)
    : axis_mapping(std::move(m), AxisMappingOptions(), at) {}
axis_mapping::axis_mapping(Mapping m, AxisMappingOptions options, SourceLocation at)
    : outer_(context().origin.mapping) {
  CallSite here(at);
  if (options.merge && outer_) {
    auto entries = outer_->entries();
    for (auto& e : m.entries())
      if (!outer_->find(e.axis)) entries.push_back(e);
    m = Mapping::of(std::move(entries), at);
  }
  require_axes_here("axis_mapping", m);
  context().origin.mapping = std::make_shared<const Mapping>(std::move(m));
}
axis_mapping::~axis_mapping() { context().origin.mapping = outer_; }
std::shared_ptr<const Mesh> current_mesh() { return context().mesh; }
std::shared_ptr<const Mapping> current_mapping() { return context().origin.mapping; }
std::shared_ptr<const Mapping> current_thread_local_mapping() { return current_mapping(); }
use_scopes::use_scopes(const Scopes& s) {
  context().mesh = s.mesh;
  context().origin.mapping = s.mapping;
}
use_scopes::~use_scopes() {
  context().mesh = outer_.mesh;
  context().origin.mapping = outer_.mapping;
}

// ---- mesh axes of axes ----
static std::vector<std::string> mesh_axes_of(Name axis, const Mapping& m) {
  auto* to = m.find(axis);
  return to ? *to : std::vector<std::string>();
}
static Mapping mapping_in_scope() {
  auto m = current_mapping();
  return m ? *m : Mapping();
}
Mapping detail::mapping_or_none() { return mapping_in_scope(); }
static PartitionSpec spec_of(const Axes& axes, const Mapping& m) {
  PartitionSpec out;
  for (auto& a : axes) out.axes.push_back(mesh_axes_of(a.name, m));
  return out;
}

PartitionSpec pspec_for_axis(const AxisSelection& axes, const Mapping& m, SourceLocation at) {
  CallSite here(at);
  if (axes.all())
    fail("pspec_for_axis", "name the axes; `{}` is the axes of an array, but there is no array");
  require_axes_here("pspec_for_axis", m);
  PartitionSpec out;
  for (auto& a : axes.items()) out.axes.push_back(mesh_axes_of(a.name, m));
  return out;
}
PartitionSpec pspec_for_axis(const AxisSelection& axes, SourceLocation at) {
  return pspec_for_axis(axes, mapping_in_scope(), at);
}
std::string to_string(const PartitionSpec& s) {
  std::vector<std::string> out;
  for (auto& a : s.axes) out.push_back(shown(a));
  return "P(" + joined(out, ", ") + ")";
}
static Mesh mesh_in_scope(const char* op) {
  auto mesh = current_mesh();
  if (!mesh) fail(op, "there is no mesh in scope; set one with use_mesh");
  return *mesh;
}
NamedSharding sharding_for_axis(const AxisSelection& axes, const Mapping& m, const Mesh& mesh,
                                SourceLocation at) {
  CallSite here(at);
  if (axes.all())
    fail("sharding_for_axis",
         "name the axes; `{{}}` is the axes of an array, but there is no array");
  Axes named;
  for (auto& a : axes.items()) named.emplace_back(a.name, a.size < 0 ? 1 : a.size);
  sharding_for(named, m, mesh, "an array");  // raises for mesh axes that conflict or are missing
  return {mesh, spec_of(named, m)};
}
NamedSharding sharding_for_axis(const AxisSelection& axes, const Mapping& m, SourceLocation at) {
  CallSite here(at);
  return sharding_for_axis(axes, m, mesh_in_scope("sharding_for_axis"), at);
}
NamedSharding sharding_for_axis(const AxisSelection& axes, SourceLocation at) {
  return sharding_for_axis(axes, mapping_in_scope(), at);
}
std::string to_string(const NamedSharding& s) {
  return fmt::format("{} on Mesh({})", to_string(s.spec), to_string(s.mesh));
}
std::ostream& operator<<(std::ostream& out, const NamedSharding& s) { return out << to_string(s); }

std::vector<LeafPspec> detail::pspecs(const Walk& w, const Mapping& m, PspecOptions options,
                                      SourceLocation at) {
  CallSite here(at);
  require_axes_here("pspec_for", m);
  std::vector<LeafPspec> out;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& a = *w.arrays[k];
    if (a.empty()) continue;
    auto placed = options.preserve_existing_shardings ? placement(a) : nullptr;
    out.push_back({w.paths[k], spec_of(a.axes(), placed ? placed->mapping : m)});
  }
  return out;
}
std::vector<LeafSharding> detail::shardings(const Walk& w, const Mapping& m, const Mesh* given,
                                            PspecOptions options, SourceLocation at) {
  CallSite here(at);
  const Mesh mesh = given ? *given : mesh_in_scope("infer_resource_partitions");
  require_axes("infer_resource_partitions", m, mesh);
  std::vector<LeafSharding> out;
  for (std::size_t k = 0; k < w.arrays.size(); ++k) {
    auto& a = *w.arrays[k];
    if (a.empty()) continue;
    auto placed = options.preserve_existing_shardings ? placement(a) : nullptr;
    if (placed) {
      out.push_back({w.paths[k], {placed->mesh, spec_of(a.axes(), placed->mapping)}});
      continue;
    }
    sharding_for(a.axes(), m, mesh, w.paths[k].empty() ? "an array" : w.paths[k]);
    out.push_back({w.paths[k], {mesh, spec_of(a.axes(), m)}});
  }
  return out;
}
std::vector<std::string> physical_axis_name(const AxisSelector& axis, const Mapping& m,
                                            SourceLocation at) {
  CallSite here(at);
  require_axes_here("physical_axis_name", m);
  return mesh_axes_of(axis.name, m);
}
std::vector<std::string> physical_axis_name(const AxisSelector& axis, SourceLocation at) {
  return physical_axis_name(axis, mapping_in_scope(), at);
}
std::optional<std::int64_t> physical_axis_size(const AxisSelector& axis, const Mapping& m,
                                               SourceLocation at) {
  CallSite here(at);
  auto mesh = current_mesh();
  if (!mesh) fail("physical_axis_size", "there is no mesh in scope; set one with use_mesh");
  require_axes("physical_axis_size", m, *mesh);
  if (mesh_axes_of(axis.name, m).empty()) return {};
  return ranks(*mesh,
               sharding_for({Axis(axis.name, 1)}, m, *mesh, "an array").mesh_axes(axis.name));
}
std::optional<std::int64_t> physical_axis_size(const AxisSelector& axis, SourceLocation at) {
  return physical_axis_size(axis, mapping_in_scope(), at);
}
Axis round_axis_for_partitioning(const Axis& axis, const Mapping& m, SourceLocation at) {
  auto pieces = physical_axis_size(axis, m, at);
  return pieces ? axis.resize((axis.size + *pieces - 1) / *pieces * *pieces, at) : axis;
}
Axis round_axis_for_partitioning(const Axis& axis, SourceLocation at) {
  return round_axis_for_partitioning(axis, mapping_in_scope(), at);
}

// ---- constraints ----
// Raises at the call of the constraint if two axes are mapped to one mesh axis, or if the mesh in
// scope lacks an axis of the mapping.
static void check(const Node& x, const Mapping& m) {
  refuse_shared(x, m);
  require_axes_here("shard", m);
}
NamedArray shard(Arr x, const Mapping& m) {
  CallSite here(x.at());
  auto n = ops::node_of("shard", x);
  check(*n, m);
  auto by = std::make_shared<const Mapping>(m);
  if (context().tracing > 0) return NamedArray(prim::sharding_constraint(n, by));
  auto mesh = current_mesh();
  if (mesh) {
    require_devices("shard", *mesh);
    NamedArray(n).eval(context().origin.at);
  }
  // The result shares the memory. Without a mesh, it is placed on the first mesh that it meets.
  auto out = mesh ? make_data(n->value.get(), n->axes, n->dtype) : prim::sharding_constraint(n, by);
  const_cast<Node&>(*out).placement =
      std::make_shared<const Placement>(Placement{mesh ? *mesh : Mesh(), m});
  return NamedArray(out);
}
NamedArray shard(Arr x, const Mapping& m, const Mesh& mesh) {
  CallSite here(x.at());
  auto outer = current_mesh();
  if (context().tracing > 0 && outer && *outer != mesh)
    fail("shard",
         "the mesh ({}) is not the mesh of the traced function ({}); a traced function runs on one "
         "mesh, so omit the argument",
         mesh, *outer);
  use_mesh on(mesh);
  return shard(Arr(x.array(), x.at()), m);
}
NamedArray shard(Arr x) {
  auto m = current_mapping();
  return m ? shard(x, *m) : NamedArray(x);
}
NamedArray auto_sharded(Arr x) {
  auto m = current_mapping();
  if (!m) return x;
  CallSite here(x.at());
  return ops::constrained("shard", NamedArray(ops::node_of("auto_sharded", x)));
}
NamedArray ops::constrained(const char* op, const NamedArray& x) {
  auto m = current_mapping();
  if (!m) return x;
  check(*x.node(), *m);
  return NamedArray(prim::sharding_constraint(x.node(), m, op));
}
std::shared_ptr<const Placement> placement(const NamedArray& a) {
  auto p = !a.empty() ? a.node()->placement : nullptr;
  if (!p || !is_unplaced(*p)) return p;
  auto mesh = current_mesh();
  if (!mesh) return nullptr;
  require_axes("shard", p->mapping, *mesh);
  return std::make_shared<const Placement>(Placement{*mesh, p->mapping});
}

}  // namespace haliax
