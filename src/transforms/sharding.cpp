#include "transforms/sharding.h"

#include <algorithm>

#include "base/name.h"
#include "graph/node.h"

namespace haliax {

bool Cut::has(int x) const { return std::find(begin(), end(), x) != end(); }
bool Cut::meets(const Cut& o) const {
  return std::any_of(begin(), end(), [&](int x) { return o.has(x); });
}
Cut Cut::prefix(int n) const {
  Cut c;
  for (int k = 0; k < n; ++k) c.push_back(at_[std::size_t(k)]);
  return c;
}
Cut Cut::from(int n) const {
  Cut c;
  for (int k = n; k < size_; ++k) c.push_back(at_[std::size_t(k)]);
  return c;
}
int Cut::common(const Cut& o) const {
  int n = 0;
  while (n < size_ && n < o.size_ && at_[std::size_t(n)] == o.at_[std::size_t(n)]) ++n;
  return n;
}

Cut Sharding::cut(Name n) const {
  for (auto& [name, c] : dims)
    if (name == n) return c;
  return {};
}
void Sharding::set(Name n, const Cut& c) {
  std::erase_if(dims, [&](auto& d) { return d.first == n; });
  if (c.empty()) return;
  auto before = [](Name a, Name b) { return a.text() != b.text() ? a.text() < b.text() : a.data() < b.data(); };
  auto place = std::find_if(dims.begin(), dims.end(), [&](auto& d) { return before(n, d.first); });
  dims.insert(place, {n, c});
}
bool Sharding::cuts(int x) const {
  return std::any_of(dims.begin(), dims.end(), [&](auto& d) { return d.second.has(x); });
}
bool Sharding::pending(int x) const {
  return std::any_of(partial.begin(), partial.end(), [&](auto& p) { return p.first == x; });
}
void Sharding::pend(int x, Monoid m) {
  settle(x);
  auto place = std::find_if(partial.begin(), partial.end(), [&](auto& p) { return p.first > x; });
  partial.insert(place, {x, m});
}
void Sharding::settle(int x) {
  std::erase_if(partial, [&](auto& p) { return p.first == x; });
}
Sharding Sharding::on(const Axes& axes) const {
  Sharding out;
  for (auto& d : dims)
    if (has(axes, d.first)) out.dims.push_back(d);
  out.partial = partial;
  return out;
}

int ranks(const Mesh& mesh, const Cut& cut) {
  int n = 1;
  for (int x : cut) n *= mesh.axes[std::size_t(x)].second;
  return n;
}
int coordinate(const Mesh& mesh, int device, int axis) {
  for (int k = int(mesh.axes.size()) - 1; k > axis; --k) device /= mesh.axes[std::size_t(k)].second;
  return device % mesh.axes[std::size_t(axis)].second;
}
std::string to_string(const Mesh& mesh, const Cut& cut) {
  std::string s;
  for (int x : cut) s += (s.empty() ? "" : "+") + mesh.axes[std::size_t(x)].first;
  return s;
}
std::string to_string(const Sharding& s) {
  std::string out;
  for (auto& [name, cut] : s.dims) {
    out += (out.empty() ? "" : ", ") + std::string(name.text()) + ":";
    for (int x : cut) out += " " + std::to_string(x);
  }
  for (auto& p : s.partial) out += (out.empty() ? "" : ", ") + std::string("pending: ") + std::to_string(p.first);
  return "{" + out + "}";
}
std::pair<std::int64_t, std::int64_t> block_of(const Axis& a, const Cut& cut, const Mesh& mesh, int device) {
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
  for (auto& a : out)
    if (auto cut = s.cut(a.name); !cut.empty()) a.size = block_of(a, cut, mesh, device).second;
  return out;
}
double local_size(const Axes& axes, const Sharding& s, const Mesh& mesh) {
  double n = 1;
  for (auto& a : axes) n *= double(a.size);
  for (auto& [name, cut] : s.dims)
    if (has(axes, name)) n /= ranks(mesh, cut);
  return n;
}
bool nested(const Axis& a, const Cut& cut, int n, const Mesh& mesh) {
  return n == 0 || n == cut.size() || a.size % ranks(mesh, cut) == 0;
}

Sharding sharding_for(const Axes& axes, const Mapping& mapping, const Mesh& mesh, const std::string& what) {
  Sharding s;
  std::vector<std::pair<int, Name>> used;
  auto text = [](Name n) { return std::string(n.text()); };
  for (auto& a : axes) {
    auto* to = mapping.find(a.name);
    if (!to) continue;
    Cut cut;
    for (auto& name : *to) {
      int k = 0;
      std::vector<std::string> known;
      for (auto& m : mesh.axes) known.push_back(m.first);
      while (k < int(mesh.axes.size()) && mesh.axes[std::size_t(k)].first != name) ++k;
      if (k == int(mesh.axes.size()))
        fail("shard", "the mapping " + to_string(mapping) + " sends axis " + text(a.name) + " to mesh axis " + name +
                          ", which the mesh (" + to_string(mesh) + ") does not have" + did_you_mean(name, known));
      for (auto& [taken, by] : used)
        if (taken == k)
          fail("shard", (by == a.name ? "axis " + text(by) : "axes " + text(by) + " and " + text(a.name)) + " of " + what + " " +
                            to_string(axes) + (by == a.name ? " is sent to mesh axis " + name + " twice" : " are both sent to mesh axis " + name) +
                            " by the mapping " + to_string(mapping) + "; a mesh axis cuts an array once, so give parameters and " +
                            "computation a mapping each, or let one of the axes be whole");
      used.push_back({k, a.name});
      if (mesh.axes[std::size_t(k)].second > 1) cut.push_back(k);
    }
    if (!cut.empty()) s.set(a.name, cut);
  }
  return s;
}

}  // namespace haliax
