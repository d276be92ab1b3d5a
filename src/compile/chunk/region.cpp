// A region along one axis, and the regions of a call.
#include "compile/chunk/region.h"

#include <algorithm>

#include "compile/chunk/region_loops.h"
#include "ops/attr.h"
#include "ops/prim.h"

namespace haliax {

Region::Region(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around)
    : members_(std::make_shared<const RegionMembers>(key, roots, level, around)) {
  if (refusal().empty()) passes_.emplace(members_);
}
Nodes Region::reductions() const { return passes_ ? passes_->all_reductions() : Nodes(); }
std::int64_t Region::wide_accumulator_bytes() const {
  std::int64_t bytes = 0;
  for (auto& n : reductions())
    if (auto wide = widened(n);
        wide->dtype != n->dtype && members_->reduction_monoid(*n) == Monoid::sum)
      bytes += wide->bytes();
  return bytes;
}
Nodes Region::values_between_passes() const {
  return passes_ ? passes_->values_between_passes() : Nodes();
}
Nodes Region::without_barriers() const {
  auto& roots = members_->roots();
  if (members_->barriers_split_passes()) return roots;
  Rewrite to;
  for (auto& n : members_->level())
    if (n->op == &prim::kBarrier && !contains(n) && contains(n->in[1]))
      to[n.get()] = substitute({n->in[0]}, to, members_->around())[0];
  return to.empty() ? roots : substitute(roots, to, members_->around());
}
Nodes Region::tile(std::int64_t size, const std::string& form, const std::string& why) {
  RegionLoops loops(*members_, *passes_, size);
  index_ = loops.index();
  return loops.build(form, why);
}

Regions::Regions(const ChunkKey& call, const Nodes& roots, const Nodes& level) {
  for (auto& n : level) {
    if (n->op != &prim::kEnter) continue;
    auto k = ChunkKey::of(n->attr);
    bool known =
        std::any_of(axes.begin(), axes.end(), [&](auto& other) { return other.axis == k.axis; });
    if (k.same_call(call) && !known) axes.push_back(k);
  }
  auto place = [&](auto& k) {
    return std::find(call.tiled_axes.begin(), call.tiled_axes.end(), k.axis);
  };
  std::stable_sort(axes.begin(), axes.end(), [&](auto& a, auto& b) { return place(a) < place(b); });
  for (auto& k : axes) list.emplace_back(k.attr(), roots, level);
}
bool Regions::contain(const NodePtr& n) const {
  return std::any_of(list.begin(), list.end(), [&](auto& r) { return r.contains(n); });
}

}  // namespace haliax
