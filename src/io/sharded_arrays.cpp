// The parts of sharded arrays that a process saves or loads.
#include "io/sharded_arrays.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "graph/axes.h"
#include "graph/fail.h"
#include "devices/ranks.h"

namespace haliax {

const ProcessGroup& all_processes() {
  static const ProcessGroup* all = [] {
    auto* g = new ProcessGroup;  // never destroyed, since a save may use it at exit
    if (auto* ranks = peers()) {
      g->rank = ranks->rank();
      g->count = ranks->count();
      g->rank_of = [ranks](const Mesh& mesh, int device) {
        // an unsharded array: each process has its own copy
        return mesh.devices() > 1 ? device / (mesh.devices() / ranks->count()) : ranks->rank();
      };
      g->all_gather = [ranks](const std::string& mine) {
        return ranks->all_gather_text_alone(mine);
      };
      g->separate_group = [g, ranks, last = std::make_shared<std::atomic<int>>(0)] {
        auto own = *g;
        own.all_gather = [ranks, control_channel = ++*last](const std::string& mine) {
          return ranks->all_gather_text_alone(mine, control_channel);
        };
        return own;
      };
    }
    return g;
  }();
  return *all;
}

std::vector<PartValue> first_copies(const Node& n, const ProcessGroup& group) {
  BufferPtr value;
  {
    GraphReader reader;
    value = n.value.get();
  }
  if (!value) fail("eval", n.donated.empty() ? "the array has no value" : std::string(n.donated));
  std::vector<PartValue> out;
  if (auto* s = shards_in(*value)) {
    for (int d = s->first; d < s->first + int(s->blocks.size()); ++d)
      if (auto part = part_on(n.axes, s->at, s->mesh, d); group.rank_of(s->mesh, d) == group.rank &&
                                                          owner_of(s->at, s->mesh, d) == d &&
                                                          part.size() > 0)
        out.push_back({std::move(part), s->blocks[std::size_t(d - s->first)], value});
  } else if (group.rank == 0 && n.size() > 0) {
    out.push_back({full_part(n.axes), std::move(value)});
  }
  return out;
}

ArrayByParts::ArrayByParts(Axes axes, DType dtype, std::shared_ptr<const Placement> placed,
                           const ProcessGroup& group)
    : axes_(std::move(axes)), dtype_(dtype), placed_(std::move(placed)) {
  auto fresh = [&](Part part) {
    auto buffer = std::make_shared<Buffer>(part.size() * bytes_of(dtype_));
    if (part.size() > 0) parts_to_fill_.push_back({std::move(part), buffer->data()});
    return buffer;
  };
  if (placed_) at_ = sharding_for(axes_, placed_->mapping, placed_->mesh, "the array");
  // with one process, a replicated array is copied to the devices on first use
  if (!placed_ || (at_.is_replicated() && group.count == 1)) {
    full_ = fresh(full_part(axes_));
    return;
  }
  std::vector<std::pair<Part, BufferPtr>> created;
  for (int d = 0; d < placed_->mesh.devices(); ++d) {
    if (group.rank_of(placed_->mesh, d) != group.rank) continue;
    if (blocks_.empty()) first_ = d;
    auto part = part_on(axes_, at_, placed_->mesh, d);
    auto known =
        std::find_if(created.begin(), created.end(), [&](auto& m) { return m.first == part; });
    if (known == created.end()) {
      blocks_.push_back(fresh(part));
      created.push_back({std::move(part), blocks_.back()});
    } else {  // separate memory, since a device may overwrite it
      blocks_.push_back(std::make_shared<Buffer>(known->second->bytes()));
      same_.push_back({known->second, blocks_.back()});
    }
  }
}
NamedArray ArrayByParts::finish() {
  for (auto& s : same_) std::memcpy(s.to->data(), s.from->data(), std::size_t(s.from->bytes()));
  auto value = std::move(full_);
  if (!value) {
    auto blocks = shards(placed_->mesh, at_, axes_, dtype_, first_, std::move(blocks_));
    value = std::make_shared<Buffer>(axis_size(axes_) * bytes_of(dtype_), std::move(blocks));
  }
  auto n = make_data(std::move(value), axes_, dtype_);
  const_cast<Node&>(*n).placement = std::move(placed_);
  return NamedArray(n);
}

std::shared_ptr<const Placement> placement_like(const NamedArray& like) {
  if (auto placed = placement(like)) return placed;
  auto mesh = current_mesh();
  auto mapping = current_mapping();
  return mesh && mapping ? std::make_shared<const Placement>(Placement{*mesh, *mapping}) : nullptr;
}

}  // namespace haliax
