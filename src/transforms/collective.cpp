// Blocks of axes on a mesh, and the op that moves them.
#include <algorithm>

#include "base/name.h"
#include "graph/emit.h"
#include "ops/prim.h"
#include "transforms/partition.h"

namespace haliax {
namespace {

// attr.ints: wire, monoid, split dim, split size, concat dim, concat size, then the mesh axes; attr.number: bytes sent.
void collective_lower(const Node& n, Emit& e) {
  program::Step s;
  s.kind = program::Kind::collective;
  auto& i = n.attr.ints;
  auto& x = *n.in[0];
  auto& c = s.collective;
  c.wire = program::Wire(i[0]), c.monoid = Monoid(i[1]);
  c.split = int(i[2]), c.split_size = i[3], c.concat = int(i[4]), c.concat_size = i[5];
  for (std::size_t k = 6; k < i.size(); ++k) c.over.push_back(int(i[k]));
  c.dims = Emit::sizes(x.axes), c.out_dims = Emit::sizes(n.axes);
  c.x = Emit::view(e.operand(0), x.axes, x.axes), c.out = Emit::view(e.result(), n.axes, n.axes);
  c.sent_bytes = n.attr.number;
  e.push(std::move(s));
}

}  // namespace

const Op kCollective{.name = "collective", .kind = Kind::step, .lower = collective_lower};

const std::vector<int>* Sharding::cut(Name n) const {
  for (auto& [name, axes] : dims) if (name.text() == n.text()) return &axes;
  return nullptr;
}
int coordinate(const Mesh& mesh, int device, int axis) {
  for (int k = int(mesh.axes.size()) - 1; k > axis; --k) device /= mesh.axes[std::size_t(k)].second;
  return device % mesh.axes[std::size_t(axis)].second;
}
std::pair<std::int64_t, std::int64_t> block_of(const Axis& a, const std::vector<int>& cut, const Mesh& mesh, int device) {
  std::int64_t block = 0, blocks = 1;
  for (int x : cut) {
    auto size = mesh.axes[std::size_t(x)].second;
    block = block * size + coordinate(mesh, device, x), blocks *= size;
  }
  std::int64_t step = (a.size + blocks - 1) / blocks, from = std::min(a.size, block * step);
  return {from, std::min(a.size, from + step) - from};
}
Axes local_axes(const Axes& axes, const Sharding& s, const Mesh& mesh, int device) {
  Axes out = axes;
  for (auto& a : out) if (auto* cut = s.cut(a.name)) a.size = block_of(a, *cut, mesh, device).second;
  return out;
}
Sharding sharding_for(const Axes& axes, const Mapping& mapping, const Mesh& mesh, const std::string& what) {
  Sharding s;
  std::vector<std::pair<int, Name>> used;
  for (auto& a : axes) {
    auto* to = mapping.find(a.name);
    if (!to) continue;
    std::vector<int> cut;
    for (auto& name : *to) {
      int k = 0;
      std::vector<std::string> known;
      for (auto& m : mesh.axes) known.push_back(m.first);
      while (k < int(mesh.axes.size()) && mesh.axes[std::size_t(k)].first != name) ++k;
      if (k == int(mesh.axes.size()))
        fail("shard", "the mapping sends axis " + std::string(a.name.text()) + " to mesh axis " + name + ", which the mesh does not have" + did_you_mean(name, known));
      for (auto& [taken, by] : used)
        if (taken == k)
          fail("shard", "axes " + std::string(by.text()) + " and " + std::string(a.name.text()) + " of " + what + " " + to_string(axes) + " are both mapped to mesh axis " + name);
      used.push_back({k, a.name});
      cut.push_back(k);
    }
    bool real = std::any_of(cut.begin(), cut.end(), [&](int k) { return mesh.axes[std::size_t(k)].second > 1; });
    if (real) s.dims.push_back({Name(a.name.text()), cut});
  }
  std::sort(s.dims.begin(), s.dims.end(), [](auto& a, auto& b) { return a.first.text() < b.first.text(); });
  return s;
}

}  // namespace haliax
