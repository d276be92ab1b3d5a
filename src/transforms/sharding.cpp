// Shardings of values: the sets of mesh axes, blocks of devices, and checks of mappings.
#include "transforms/sharding.h"

#include <fmt/ranges.h>

#include <map>

#include "base/name.h"
#include "graph/fail.h"
#include "haliax/ranks.h"
#include "ops/blockwise.h"

namespace haliax {

bool MeshAxes::has(int x) const { return std::find(begin(), end(), x) != end(); }
bool MeshAxes::overlaps(const MeshAxes& o) const {
  return std::any_of(begin(), end(), [&](int x) { return o.has(x); });
}
MeshAxes MeshAxes::part(int first, int end) const {
  MeshAxes c;
  for (int k = first; k < end; ++k) c.push_back((*this)[k]);
  return c;
}
int MeshAxes::common(const MeshAxes& o) const {
  int n = 0;
  while (n < size_ && n < o.size_ && (*this)[n] == o[n]) ++n;
  return n;
}

MeshAxes Sharding::mesh_axes(Name n) const {
  for (auto& [name, c] : dims)
    if (name == n) return c;
  return {};
}
void Sharding::set(Name n, const MeshAxes& c) {
  std::erase_if(dims, [&](auto& d) { return d.first == n; });
  if (c.empty()) return;
  auto before = [](Name a, Name b) {
    return a.text() != b.text() ? a.text() < b.text() : a.data() < b.data();
  };
  auto place = std::find_if(dims.begin(), dims.end(), [&](auto& d) { return before(n, d.first); });
  dims.insert(place, {n, c});
}
bool Sharding::uses(int x) const {
  return std::any_of(dims.begin(), dims.end(), [&](auto& d) { return d.second.has(x); });
}
bool Sharding::is_partial(int x) const {
  return std::any_of(partial.begin(), partial.end(), [&](auto& p) { return p.first == x; });
}
void Sharding::add_partial(int x, Monoid m) {
  resolve(x);
  auto place = std::find_if(partial.begin(), partial.end(), [&](auto& p) { return p.first > x; });
  partial.insert(place, {x, m});
}
void Sharding::resolve(int x) {
  std::erase_if(partial, [&](auto& p) { return p.first == x; });
}
Sharding Sharding::on(const Axes& axes) const {
  Sharding out;
  for (auto& d : dims)
    if (has(axes, d.first)) out.dims.push_back(d);
  out.partial = partial;
  return out;
}

int ranks(const Mesh& mesh, const MeshAxes& mesh_axes) {
  int n = 1;
  for (int x : mesh_axes) n *= mesh.axes()[std::size_t(x)].second;
  return n;
}
int coordinate(const Mesh& mesh, int device, int axis) {
  for (int k = int(mesh.axes().size()) - 1; k > axis; --k)
    device /= mesh.axes()[std::size_t(k)].second;
  return device % mesh.axes()[std::size_t(axis)].second;
}
std::string to_string(const Mesh& mesh, const MeshAxes& mesh_axes) {
  std::string s;
  for (int x : mesh_axes) s += (s.empty() ? "" : "+") + mesh.axes()[std::size_t(x)].first;
  return s;
}
std::string to_string(const Sharding& s) {
  std::vector<std::string> out;
  for (auto& [name, mesh_axes] : s.dims)
    out.push_back(fmt::format("{}: {}", name, fmt::join(mesh_axes, " ")));
  for (auto& p : s.partial) out.push_back(fmt::format("partial: {}", p.first));
  return fmt::format("{{{}}}", fmt::join(out, ", "));
}
std::pair<std::int64_t, std::int64_t> block_of(const Axis& a, const MeshAxes& mesh_axes,
                                               const Mesh& mesh, int device) {
  std::int64_t block = 0, blocks = 1;
  for (int x : mesh_axes) {
    auto size = mesh.axes()[std::size_t(x)].second;
    block = block * size + coordinate(mesh, device, x);
    blocks *= size;
  }
  std::int64_t step = (a.size + blocks - 1) / blocks, from = std::min(a.size, block * step);
  return {from, std::min(a.size, from + step) - from};
}
int owner_of(const Sharding& s, const Mesh& mesh, int device) {
  int stride = 1, owner = device;
  for (int x = int(mesh.axes().size()); x-- > 0; stride *= mesh.axes()[std::size_t(x)].second)
    if (!s.uses(x)) owner -= coordinate(mesh, device, x) * stride;
  return owner;
}
Axes local_axes(const Axes& axes, const Sharding& s, const Mesh& mesh, int device) {
  Axes out = axes;
  for (auto& a : out)
    if (auto mesh_axes = s.mesh_axes(a.name); !mesh_axes.empty())
      a.size = block_of(a, mesh_axes, mesh, device).second;
  return out;
}
double local_size(const Axes& axes, const Sharding& s, const Mesh& mesh) {
  double n = 1;
  for (auto& a : axes) n *= double(a.size);
  for (auto& [name, mesh_axes] : s.dims)
    if (has(axes, name)) n /= ranks(mesh, mesh_axes);
  return n;
}
bool nested(const Axis& a, const MeshAxes& mesh_axes, int n, const Mesh& mesh) {
  return n == 0 || n == mesh_axes.size() || a.size % ranks(mesh, mesh_axes) == 0;
}

namespace {

// Returns a description such as "dot (batch=8, embed=12), created at model.cpp:41, in mlp,". The
// source location is omitted if the error names it anyway.
std::string described(const Node& node) {
  auto* n = &node;
  while (n->op->kind == Kind::wrap) n = n->in[0].get();  // a constraint: the constrained array
  bool created = n->op->kind != Kind::leaf;
  auto what = created            ? prim::user_name(*n)
              : n->origin.module ? std::string(n->origin.module.text())
                                 : "an array";
  auto where = where_of(n->origin);
  bool known = !created || where.empty() || where == where_of(context().origin);
  return fmt::format("{} {}{}", what, n->axes, known ? "" : ", created at " + where + ",");
}

// Raises if two axes of an array are mapped to one mesh axis. array(): description of the array for
// the message.
template <class Array>
void refuse_shared(const Axes& axes, const Mapping& mapping, const Array& array) {
  std::map<std::string_view, Name> taken;
  for (auto& a : axes)
    if (auto* to = mapping.find(a.name))
      for (auto& mesh_axis : *to)
        if (auto [first, is_new] = taken.emplace(mesh_axis, a.name); !is_new)
          fail("shard",
               "axes {} and {} of {} are both mapped to mesh axis {} by the mapping {}; "
               "a mesh axis shards an array once, so use separate mappings "
               "for parameters and computation, or replicate one of the axes",
               first->second, a.name, array(), mesh_axis, mapping);
}
// Returns the index of the mesh axis with this name; the number of mesh axes if there is none.
std::size_t number_of(const Mesh& mesh, const std::string& name) {
  std::size_t k = 0;
  while (k < mesh.axes().size() && mesh.axes()[k].first != name) ++k;
  return k;
}
Sharding sharding_by(const Axes& axes, const Mapping& mapping, const Mesh& mesh) {
  require_axes("shard", mapping, mesh);
  Sharding s;
  for (auto& a : axes) {
    MeshAxes mesh_axes;
    if (auto* to = mapping.find(a.name))
      for (auto& name : *to)
        if (auto k = number_of(mesh, name); mesh.axes()[k].second > 1) mesh_axes.push_back(int(k));
    s.set(a.name, mesh_axes);
  }
  return s;
}

}  // namespace

Sharding sharding_for(const Axes& axes, const Mapping& mapping, const Mesh& mesh,
                      const std::string& what) {
  refuse_shared(axes, mapping, [&] { return fmt::format("{} {}", what, axes); });
  return sharding_by(axes, mapping, mesh);
}
Sharding sharding_for(const Node& n, const Mapping& mapping, const Mesh& mesh) {
  refuse_shared(n, mapping);
  return sharding_by(n.axes, mapping, mesh);
}

void refuse_shared(const Node& n, const Mapping& mapping) {
  refuse_shared(n.axes, mapping, [&] { return described(n); });
}
void require_axes(const char* op, const Mapping& mapping, const Mesh& mesh) {
  for (auto& e : mapping.entries())
    for (auto& name : e.mesh_axes)
      if (number_of(mesh, name) == mesh.axes().size())
        fail(op, "the mapping {} maps axis {} to mesh axis {}, which is not in the mesh ({}){}",
             mapping, e.axis, name, mesh,
             did_you_mean(name, mesh.axes(), [](auto& a) { return a.first; }));
}
void require_devices(const char* op, const Mesh& mesh) {
  int requested = mesh.devices(), there = devices();
  if (requested == 1 || (rank_count() == 1 ? requested <= there : requested == there)) return;
  if (rank_count() > 1)
    fail(op,
         "the mesh ({}) has {} devices, but {} ranks of {} each, "
         "as on rank {}, have {}; a mesh uses all of them: start as many ranks, "
         "or set the same device count on each rank with set_devices or HALIAX_DEVICES",
         mesh, requested, rank_count(), there / rank_count(), this_rank(), there);
  fail(op,
       "the mesh ({0}) has {1} devices, but there are {2}; set_devices({1}) or HALIAX_DEVICES={1} "
       "adds more, as threads of this process; plan() accepts a mesh of any size",
       mesh, requested, there);
}
void require_each(const char* op, const char* field, const std::optional<Mappings>& m, int count,
                  const char* of_what) {
  if (!m || m->one() || int(m->each().size()) == count) return;
  fail(op,
       "`{}` has {} mappings, but the function has {} {}; use one mapping for all, or one for each",
       field, m->each().size(), count, of_what);
}

}  // namespace haliax
