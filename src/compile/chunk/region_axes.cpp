// Finds axes along which the regions of a call can be tiled.
#include "compile/chunk/region_axes.h"

#include <algorithm>

#include "compile/chunk/tile_plan.h"
#include "ops/prim.h"

namespace haliax {

RegionAxes::RegionAxes(const ChunkKey& call, const Nodes& roots)
    : call_(call), roots_(roots), level_(level_of(roots, nullptr)), regions_(call, roots, level_) {}

ChunkKey RegionAxes::key(const Axis& axis, int blocks) const {
  auto k = call_;
  k.axis = axis.name;
  k.size = axis.size;
  k.blocks = blocks;
  return k;
}

std::optional<Region> RegionAxes::along(const ChunkKey& axis) const {
  auto roots = with_axis_boundaries(roots_, level_, nullptr, regions_, axis);
  Region region(axis.attr(), roots, level_of(roots, nullptr));
  return region.refusal().empty() ? std::optional(std::move(region)) : std::nullopt;
}

std::optional<ChunkKey> RegionAxes::longest_untiled_axis() const {
  for (auto& n : level_)
    if (n->op == &kLoop && regions_.contain(n)) return {};
  const Node* largest = widest();
  if (!largest) return {};
  const Axis* longest = nullptr;
  for (auto& a : largest->axes) {
    bool is_tiled = std::any_of(regions_.axes.begin(), regions_.axes.end(),
                                [&](auto& k) { return k.axis == a.name; });
    if (!is_tiled && (!longest || a.size > longest->size)) longest = &a;
  }
  if (!longest) return {};
  return key(*longest, blocks_of(longest->name, largest->origin.mapping.get()));
}

Axes RegionAxes::key_axes() const {
  Axes out;
  for (auto& n : level_) {
    if (n->op->kind != Kind::reduce || !regions_.contain(n) || !has(n->axes, call_.axis)) continue;
    for (auto& a : n->in[0]->axes)
      if (haliax::along(*n, 0, a.name).monoid == Monoid::max && !has(n->axes, a.name) &&
          !has(out, a.name))
        out.push_back(a);
  }
  return out;
}

std::optional<ChunkKey> RegionAxes::longest_keys(int blocks) const {
  auto all = key_axes();
  std::erase_if(all, [&](auto& a) { return a.size % blocks != 0; });
  auto longest =
      std::max_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.size < b.size; });
  if (longest == all.end()) return {};
  auto k = key(*longest, 1);
  return along(k) ? std::optional(k) : std::nullopt;
}

std::vector<ChunkKey> RegionAxes::independent() const {
  auto* scores = widest();
  if (!scores) return {};
  int passes = 0;
  for (auto& region : regions_.list) passes = std::max(passes, region.passes());
  std::vector<ChunkKey> out;
  const auto keys = key_axes();
  auto large = [&](const NodePtr& n) {  // such as the gradient of a bias shared by examples
    return has(n->axes, call_.axis) && without(keys, n->axes).empty();
  };
  for (auto& a : scores->axes) {
    if (a.size == 1 || has(call_.tiled_axes, a.name) || has(keys, a.name)) continue;
    auto k = key(a, blocks_of(a.name, scores->origin.mapping.get()));
    auto region = along(k);
    if (!region || region->passes() > passes) continue;
    auto reductions = region->reductions();
    if (std::none_of(reductions.begin(), reductions.end(), large)) out.push_back(k);
  }
  return out;
}

const Node* RegionAxes::widest() const {
  const Node* widest = nullptr;
  for (auto& n : level_)
    if (regions_.contain(n) && n->op != &kLoop && (!widest || n->bytes() > widest->bytes()))
      widest = n.get();
  return widest;
}

}  // namespace haliax
