// All-to-all communication: intersects the blocks of source and result on each pair of devices.
#include "compile/sharding/exchange.h"

#include <algorithm>

#include "graph/node.h"

namespace haliax {
namespace {

// A box that one device receives from another, in the coordinates of both blocks.
struct ReceivedBox {
  int from = 0, box = 0;
  // start, step: in the sender's block; at: in the receiver's block
  program::Dims start, at, dims, step;
};
// Positions of one axis that one block of the sender holds.
struct BlockRun {
  std::int64_t block, from, to, size, step;
};

AxisLayout layout_of(const AxisLayout& layout, const CopyBox& box, const Axis& a,
                     const MeshAxes& mesh_axes) {
  return box.axis && box.axis == a.name && !layout.parts.empty() ? layout
                                                                 : AxisLayout{{a}, {mesh_axes}};
}
// Returns true if the axis is split into parts in the source or in the result.
bool in_parts(const CopyBox& box, const Axis& a) {
  return box.axis && box.axis == a.name &&
         !(box.source_layout.parts.empty() && box.result_layout.parts.empty());
}
struct BlockPosition {
  // Index of the device that holds the position, offset in its block, and number of contiguous
  // positions from there.
  std::int64_t block, at, left;
};
// Returns where a position is stored. For example, given parts (2, 6) with the second one sharded
// over 2 devices, device 0 holds positions 0-2 and 6-8: position 7 is at offset 4 of block 0, and 2
// contiguous positions are left.
BlockPosition position_of(const AxisLayout& l, std::int64_t i, const Mesh& mesh) {
  BlockPosition p{0, 0, 0};
  std::int64_t blocks = 1, inner_positions = 1;
  for (auto k = l.parts.size(); k-- > 0;) {
    std::int64_t size = l.parts[k].size, count = ranks(mesh, l.mesh_axes[k]),
                 step = std::max<std::int64_t>(1, (size + count - 1) / count);
    auto at = i % size, block = at / step, block_size = std::min(step, size - block * step);
    p.block += block * blocks;
    p.at += (at - block * step) * inner_positions;
    if (k + 1 == l.parts.size()) p.left = block_size - (at - block * step);
    blocks *= count;
    inner_positions *= block_size;
    i /= size;
  }
  return p;
}
// Returns (first position, size) of each contiguous range of an axis that a device holds, in the
// order of its block.
std::vector<std::pair<std::int64_t, std::int64_t>> contiguous_ranges(const AxisLayout& l,
                                                                     const Mesh& mesh, int device) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out{{0, 1}};
  for (std::size_t k = 0; k < l.parts.size(); ++k) {
    auto [low, length] = block_of(l.parts[k], l.mesh_axes[k], mesh, device);
    bool last = k + 1 == l.parts.size();
    std::vector<std::pair<std::int64_t, std::int64_t>> next;
    for (auto& row : out)
      for (std::int64_t i = low; i < low + length; i += last ? length : 1)
        next.push_back({row.first * l.parts[k].size + i, last ? length : 1});
    out = std::move(next);
  }
  return out;
}
// Returns the runs of the positions of the target that a device holds, each in one block of the
// source.
std::vector<BlockRun> runs_between(const AxisLayout& source, const AxisLayout& target,
                                   const Mesh& mesh, int device) {
  std::vector<BlockRun> out;
  std::int64_t to = 0;
  for (auto [i, size] : contiguous_ranges(target, mesh, device))
    for (auto end = i + size; i < end;) {
      auto p = position_of(source, i, mesh);
      auto n = std::min(end - i, p.left);
      if (!out.empty() && out.back().block == p.block && out.back().from + out.back().size == p.at)
        out.back().size += n;  // contiguous with the run before
      else
        out.push_back({p.block, p.at, to, n, 1});
      i += n;
      to += n;
    }
  return out;
}
std::vector<BlockRun> runs_of(const Axis& source, const Axis& target, const CopyBox& box,
                              const MeshAxes& from, const MeshAxes& to, const Mesh& mesh,
                              int device) {
  if (in_parts(box, target))
    return runs_between(layout_of(box.source_layout, box, source, from),
                        layout_of(box.result_layout, box, target, to), mesh, device);
  auto [low, length] = block_of(target, to, mesh, device);
  bool moves = box.axis && box.axis == target.name;
  std::int64_t first = moves ? box.to : 0, step = moves ? box.step : 1,
               start = moves ? box.from : 0;
  std::int64_t begin = std::max(low, first),
               end = std::min(low + length, moves ? box.to + box.size : target.size);
  std::int64_t count = ranks(mesh, from),
               block = std::max<std::int64_t>(1, (source.size + count - 1) / count);
  std::vector<BlockRun> out;
  for (auto j = begin; j < end;) {
    auto i = start + step * (j - first), b = i / block;
    // Positions of the source after i in its block.
    auto left = step > 0 ? (b + 1) * block - 1 - i : i - b * block;
    auto n = std::min(end - j, left / std::abs(step) + 1);
    out.push_back({b, i - b * block, j - low, n, step});
    j += n;
  }
  return out;
}
// Returns the device that holds this block and has the other coordinates of `device`.
int device_with_block(int device, std::int64_t block, const MeshAxes& over, const Mesh& mesh) {
  for (int k = over.size(); k-- > 0;) {
    int x = over[k], size = mesh.axes()[std::size_t(x)].second, stride = 1;
    for (std::size_t m = std::size_t(x) + 1; m < mesh.axes().size(); ++m)
      stride *= mesh.axes()[m].second;
    device += (int(block % size) - coordinate(mesh, device, x)) * stride;
    block /= size;
  }
  return device;
}
// Number of positions of one axis that a device needs, and the number of these that it holds
// itself.
struct PositionCount {
  std::int64_t all, own;
};
PositionCount count_positions(const Axis& source, const Axis& target, const CopyBox& box,
                              const MeshAxes& from, const MeshAxes& to, const Mesh& mesh,
                              int device) {
  if (in_parts(box, target)) {
    auto over = layout_of(box.source_layout, box, source, from).over();
    PositionCount count{0, 0};
    for (auto& r : runs_of(source, target, box, from, to, mesh, device)) {
      count.all += r.size;
      count.own += device_with_block(device, r.block, over, mesh) == device ? r.size : 0;
    }

    return count;
  }
  auto [low, length] = block_of(target, to, mesh, device);
  auto [have, size] = block_of(source, from, mesh, device);
  if (!box.axis || box.axis != target.name) {
    auto begin = std::max(low, have), end = std::min(low + length, have + size);
    return {length, std::max<std::int64_t>(0, end - begin)};
  }
  auto begin = std::max(low, box.to), end = std::min(low + length, box.to + box.size);
  if (begin >= end) return {0, 0};
  // Returns floor(a / b) for b > 0.
  auto down = [](std::int64_t a, std::int64_t b) { return a / b - (a % b != 0 && a < 0); };
  // Position `to` + k is position `from` + step * k of the source. [first, last) is the range of k
  // whose sources are in the local block.
  auto step = std::abs(box.step);
  auto first =
      box.step > 0 ? -down(box.from - have, step) : down(box.from - (have + size), step) + 1;
  auto last =
      box.step > 0 ? -down(box.from - (have + size), step) : down(box.from - have, step) + 1;
  return {end - begin, std::max<std::int64_t>(
                           0, std::min(end, box.to + last) - std::max(begin, box.to + first))};
}
// Returns the boxes that a device receives. `sender`: if set, only boxes from this device.
std::vector<ReceivedBox> received_boxes(const std::vector<CopyBox>& boxes, const Axes& axes,
                                        const Sharding& sharding, const Mesh& mesh, int device,
                                        int sender = -1) {
  std::vector<ReceivedBox> out;
  for (std::size_t k = 0; k < boxes.size(); ++k) {
    auto& box = boxes[k];
    std::vector<ReceivedBox> some{{device, int(k), {}, {}, {}, {}}};
    for (std::size_t d = 0; d < axes.size(); ++d) {
      auto runs = runs_of(box.axes[d], axes[d], box, box.sharding.mesh_axes(axes[d].name),
                          sharding.mesh_axes(axes[d].name), mesh, device);
      auto over =
          layout_of(box.source_layout, box, axes[d], box.sharding.mesh_axes(axes[d].name)).over();
      std::vector<ReceivedBox> next;
      for (auto& s : some)
        for (auto& r : runs) {
          if (sender >= 0 && device_with_block(sender, r.block, over, mesh) != sender) continue;
          auto n = s;
          n.from = device_with_block(n.from, r.block, over, mesh);
          n.start.push_back(r.from);
          n.at.push_back(r.to);
          n.dims.push_back(r.size);
          n.step.push_back(r.step);
          next.push_back(std::move(n));
        }
      some = std::move(next);
    }
    for (auto& s : some)
      if (sender < 0 || s.from == sender) out.push_back(std::move(s));
  }
  return out;
}
std::vector<int> group_of(int device, const MeshAxes& over, const Mesh& mesh) {
  std::vector<int> out;
  for (int r = 0; r < ranks(mesh, over); ++r)
    out.push_back(device_with_block(device, r, over, mesh));
  return out;
}

}  // namespace

void set_ring(CollectiveSpec& spec, const Axes& block, const MeshAxes& over, const Mesh& mesh,
              int device) {
  auto group = group_of(device, over, mesh);
  spec.ranks = int(group.size());
  spec.rank = int(std::find(group.begin(), group.end(), device) - group.begin());
  program::Dims dims;
  for (auto& a : block) dims.push_back(a.size);
  auto neighbour = [&](int step) {
    return group[std::size_t((spec.rank + spec.ranks + step) % spec.ranks)];
  };
  const program::Dims start(dims.size(), 0), step(dims.size(), 1);
  spec.collective.kind = program::CollectiveKind::exchange;
  for (int m : over) spec.collective.over.push_back(m);
  spec.collective.sends = {{neighbour(-1), 0, start, dims, step}};
  spec.collective.receives = {{neighbour(1), 0, start, dims, step}};
}

MeshAxes AxisLayout::over() const {
  MeshAxes all;
  for (auto& c : mesh_axes) all = all + c;
  return all;
}
std::int64_t AxisLayout::size(const Mesh& mesh, int device) const {
  std::int64_t n = 1;
  for (std::size_t k = 0; k < parts.size(); ++k)
    n *= block_of(parts[k], mesh_axes[k], mesh, device).second;
  return n;
}

MeshAxes exchange_over(const std::vector<CopyBox>& boxes, const Axes& axes,
                       const Sharding& sharding) {
  std::vector<int> all;
  for (auto& box : boxes)
    for (auto& a : axes) {
      auto from = layout_of(box.source_layout, box, a, box.sharding.mesh_axes(a.name)).over(),
           to = layout_of(box.result_layout, box, a, sharding.mesh_axes(a.name)).over();
      if (from == to && !(box.axis && box.axis == a.name)) continue;
      all.insert(all.end(), from.begin(), from.end());
      all.insert(all.end(), to.begin(), to.end());
    }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  MeshAxes over;
  for (int x : all) over.push_back(x);
  return over;
}
void pack(program::Collective& c, const std::vector<CopyBox>& boxes, int first_array, int out,
          const Axes& axes, const Sharding& sharding, const Mesh& mesh, int device) {
  auto over = exchange_over(boxes, axes, sharding);
  for (auto& d : received_boxes(boxes, axes, sharding, mesh, device))
    c.receives.push_back({d.from, out, d.at, d.dims, program::Dims(d.dims.size(), 1)});
  for (int other : group_of(device, over, mesh))
    for (auto& d : received_boxes(boxes, axes, sharding, mesh, other, device))
      c.sends.push_back(
          {other, first_array + boxes[std::size_t(d.box)].array, d.start, d.dims, d.step});
}
std::vector<std::pair<std::int64_t, std::int64_t>> own_runs(const CopyBox& box,
                                                            const Sharding& sharding,
                                                            const Mesh& mesh, int device) {
  auto& a = *find_axis(box.axes, box.axis);
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (auto& r :
       runs_of(a, a, box, box.sharding.mesh_axes(a.name), sharding.mesh_axes(a.name), mesh, device))
    out.push_back({r.from, r.size});
  return out;
}
double exchange_bytes(const std::vector<CopyBox>& boxes, const Axes& axes, const Sharding& sharding,
                      int width, const Mesh& mesh) {
  double moved = 0;
  auto group = group_of(0, exchange_over(boxes, axes, sharding), mesh);
  for (int device : group)
    for (auto& box : boxes) {
      double all = width, own = width;
      for (std::size_t d = 0; d < axes.size() && all > 0; ++d) {
        auto count =
            count_positions(box.axes[d], axes[d], box, box.sharding.mesh_axes(axes[d].name),
                            sharding.mesh_axes(axes[d].name), mesh, device);
        all *= double(count.all);
        own *= double(count.own);
      }
      moved += all - own;
    }
  return moved / double(group.size());
}

}  // namespace haliax
