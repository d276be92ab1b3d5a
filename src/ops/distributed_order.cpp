// Sorts, permutations and rolls of an axis that is split into blocks.
#include "ops/distributed_order.h"

#include <algorithm>
#include <limits>

#include "ops/attr.h"
#include "ops/blockwise.h"

namespace haliax::prim {

NodePtr last_of(DType d) {
  return is_float(d) ? number(std::numeric_limits<double>::quiet_NaN(), d) : extreme(d, true);
}

namespace {

// i32 positions.
NodePtr position(std::int64_t i) { return integer(i, DType::i32); }
NodePtr quotient(NodeRef x, std::int64_t by) {
  return map(kFloorDiv, {x, position(by)}, DType::i32);
}
NodePtr remainder(NodeRef x, std::int64_t by) { return map(kMod, {x, position(by)}, DType::i32); }

// Returns true if another axis has at least as many positions as there are blocks. Sharding this
// other axis is cheaper.
bool has_another_axis(const Node& x, Name axis, int blocks) {
  return std::any_of(x.axes.begin(), x.axes.end(),
                     [&](auto& a) { return a.name != axis && a.size >= blocks; });
}
NodePtr with_order(NodeRef x, Name axis, NodeRef order) {
  return gather(x, {{axis, order}}, x->axes, program::Outside::clamp);
}

// Columnsort (Leighton, 1985). The blocks are the columns of a matrix. Each column is sorted; its
// positions are distributed round-robin over all blocks, sorted again, and distributed back. Then
// each element is at most half a block away from its final position, and neighboring blocks sort
// their common elements.
class Columnsort {
 public:
  // `values`: the keys, and their original positions if these are sorted as well: among equal keys,
  // the smaller position is first. `last`: for each of them, a value that follows all others.
  Columnsort(Nodes values, Nodes last, const Axis& a, int blocks)
      : values_(std::move(values)), last_(std::move(last)), split_(a, blocks), axis_(split_.axis),
        blocks_(split_.blocks, split_.count) {
    auto unit = split_.count % 2 ? 2 * split_.count : split_.count;
    length_ = (split_.step + unit - 1) / unit * unit;
    for (auto& x : values_) position_bytes_ += x->bytes() / split_.size;
  }
  // Returns true if the columns are long enough for the algorithm and less is communicated than the
  // `gathered` bytes of the alternative. Twice, each device sends all of a column but its own part,
  // and twice half of a column. The padding of the columns before the block of a device is sorted
  // to the end.
  bool pays(std::int64_t gathered) const {
    auto others = split_.count - 1, late = split_.count * (length_ - split_.step) / 2;
    bool small = std::any_of(values_.begin(), values_.end(),
                             [](auto& x) { return x->bytes() <= kNegligibleBytes; });
    return !small && length_ >= 2 * others * others &&
           3 * length_ * position_bytes_ + late * position_bytes_ < gathered;
  }
  // Returns the sorted values.
  Nodes run() {
    for (std::size_t k = 0; k < values_.size(); ++k)
      values_[k] =
          pad(split_.blocked(values_[k], last_[k]), axis_, 0, length_ - split_.step, last_[k]);
    sort_along(axis_);
    distribute();
    sort_along(axis_);
    sort_along(blocks_.name);  // collects the elements that return to one column
    collect();
    sort_along(axis_);
    const Nodes columns = values_;
    join_neighbors();
    sort_along(axis_);
    separate_neighbors(columns);
    return values_;
  }

 private:
  void sort_along(Name along) {
    if (values_.size() == 1) {
      values_ = {sort(values_[0], along)};
      return;
    }
    // by position first: the sort by key is stable
    auto order = argsort(values_[1], along);
    order = with_order(order, along, argsort(with_order(values_[0], along, order), along));
    for (auto& x : values_) x = with_order(x, along, order);
  }
  // Distributes each column round-robin: position i moves to column i % blocks.
  void distribute() {
    const Name high("(high)"), low("(low)"), old("(old)");
    for (auto& x : values_) {
      auto parts =
          unflatten(x, axis_, {Axis(high, length_ / split_.count), Axis(low, split_.count)});
      x = flatten(rename(parts, {blocks_.name, low}, {old, blocks_.name}), {old, high}, column());
    }
  }
  // The inverse of `distribute`.
  void collect() {
    const Name high("(high)"), low("(low)"), old("(old)");
    for (auto& x : values_) {
      auto parts =
          unflatten(x, axis_, {Axis(old, split_.count), Axis(high, length_ / split_.count)});
      x = flatten(rename(parts, {blocks_.name, old}, {low, blocks_.name}), {high, low}, column());
    }
  }
  // Joins the upper half of each column and the lower half of the next one.
  void join_neighbors() {
    for (std::size_t k = 0; k < values_.size(); ++k) {
      auto lower = lower_half(values_[k]), none = slice(lower, blocks_.name, 0, 1);
      auto next = concat(
          {slice(lower, blocks_.name, 1, split_.count - 1), fit(last_[k], none->axes)}, blocks_);
      values_[k] = concat({upper_half(values_[k]), next}, column());
    }
  }
  // The inverse of `join_neighbors`. The first half of all columns has no neighbor.
  void separate_neighbors(const Nodes& columns) {
    for (std::size_t k = 0; k < values_.size(); ++k) {
      auto first = slice(lower_half(columns[k]), blocks_.name, 0, 1);
      auto lower = concat({first, slice(upper_half(values_[k]), blocks_.name, 0, split_.count - 1)},
                          blocks_);
      auto all = split_.joined(concat({lower, lower_half(values_[k])}, column()));
      values_[k] = slice(all, axis_, 0, split_.size);
    }
  }
  NodePtr lower_half(NodeRef x) const { return slice(x, axis_, 0, length_ / 2); }
  NodePtr upper_half(NodeRef x) const { return slice(x, axis_, length_ / 2, length_ / 2); }
  Axis column() const { return {axis_, length_}; }

  Nodes values_, last_;
  SplitAxis split_;
  Name axis_;
  Axis blocks_;
  // positions per column: a multiple of the number of blocks and of 2
  std::int64_t length_ = 0;
  std::int64_t position_bytes_ = 0;  // bytes of one position of all values
};

}  // namespace

NodePtr sort_in_blocks(NodeRef n, Name axis, int blocks) {
  auto& x = n->in[0];
  if (has_another_axis(*n, axis, blocks)) return nullptr;
  Nodes values{x}, last{last_of(x->dtype)};
  if (n->op == &kArgsort) {
    values.push_back(fit(iota(*find(*x, axis)), x->axes));
    last.push_back(extreme(DType::i32, true));
  }
  Columnsort columns(std::move(values), std::move(last), *find(*x, axis), blocks);
  return columns.pays(x->bytes()) ? columns.run().back() : nullptr;
}

bool is_order(const Node& ids, Name axis) {
  if (ids.op == &kArgsort) return AlongAttr::of(ids).axis == axis;
  return ids.op == &kGather && indexed_axes(ids) == Names{axis} && is_order(*ids.in[0], axis) &&
         is_order(*ids.in[1], axis);
}
bool is_drawn_order(const Node& ids, Name axis) {
  if (!is_order(ids, axis)) return false;
  return ids.op == &kGather ? is_drawn_order(*ids.in[1], axis)
                            : ids.in[0]->op->code == Code::threefry_xor;
}
namespace {

// The route of each element of a permutation, by its position in the result: its block, an
// intermediate block and its block in the result; and its slot among the elements with the same two
// blocks, in the first and in the second communication step.
struct Routes {
  NodePtr from, by, to, first_slot, second_slot;
};
// Returns the pair (x, y) as one position, where y < size.
NodePtr paired(NodeRef x, NodeRef y, std::int64_t size) { return add(mul(x, position(size)), y); }
// The elements that move from one block to another are distributed round-robin over the
// intermediate blocks.
Routes routes_of(NodeRef order, Name axis, const SplitAxis& split) {
  const Axis pairs("(groups)", split.count * split.count);
  // Returns the number of earlier elements with the same x and y.
  auto rank = [&](NodeRef x, NodeRef y) {
    auto pair = paired(x, y, split.count);
    auto before = reduce(Monoid::sum, cast(less(pair, iota(pairs)), DType::i32), {pairs});
    return sub(argsort(argsort(pair, axis), axis),
               gather(before, {{pairs.name, pair}}, pair->axes, program::Outside::clamp));
  };
  auto from = quotient(order, split.step), to = quotient(iota(order->axes[0]), split.step);
  auto by = remainder(add(rank(from, to), add(from, to)), split.count);
  return {from, by, to, rank(from, by), rank(by, to)};
}

}  // namespace

// Gathers along a permutation in two communication steps, by way of an intermediate block. Each
// block sends the same number of elements to each other block in both steps: a part of a block, and
// at most one position more per block.
NodePtr permute_in_blocks(NodeRef n, Name axis, int count) {
  const SplitAxis split(*find(*n->in[0], axis), count);
  auto& order = n->in[1];
  const auto slots = split.step / count + count;
  if (order->axes.size() > 1 || n->in[0]->bytes() <= kNegligibleBytes || 2 * slots >= split.step)
    return nullptr;
  const Axis blocks(split.blocks, count), part("(part)", count), slot("(slot)", slots);
  const auto route = routes_of(order, axis, split);
  auto table = [&](NodeRef values, const Axes& axes, const std::vector<AxisIds>& picks) {
    return scatter(filled(0, DType::i32, axes), values, picks, program::Update::set);
  };
  // The position, in block `blocks`, of the element that it sends to block `part` in a slot.
  auto sends =
      table(remainder(order, split.step), {blocks, part, slot},
            {{blocks.name, route.from}, {part.name, route.by}, {slot.name, route.first_slot}});
  // The block and slot from which block `part` has received the element that it sends to block
  // `blocks` in a slot.
  auto forwards =
      table(paired(route.from, route.first_slot, slots), {part, blocks, slot},
            {{part.name, route.by}, {blocks.name, route.to}, {slot.name, route.second_slot}});
  // The block and slot from which a position of the result is received: (blocks, axis).
  auto receives = pad(split.blocked(paired(route.by, route.second_slot, slots), position(0)), axis,
                      0, count * slots - split.step, position(0));

  // Axes (blocks, part of the given size, slot), then the other axes of the result. The last pick
  // removes `slot`.
  auto parted = [&](std::int64_t size) {
    Axes axes{blocks, part.resize(size), slot};
    for (auto& a : n->axes)
      if (a.name != axis) axes.push_back(a);
    return axes;
  };
  auto pick = [&](NodeRef x, Name of, NodeRef ids, const Axes& axes) {
    return gather(x, {{of, quotient(ids, slots)}, {slot.name, remainder(ids, slots)}}, axes,
                  program::Outside::clamp);
  };
  auto x = gather(split.blocked(n->in[0], number(0, n->dtype)), {{axis, sends}}, parted(count),
                  program::Outside::clamp);
  x = pick(x, blocks.name, forwards, parted(count));
  auto axes = parted(count * slots);
  axes.erase(axes.begin() + 2);
  x = pick(x, part.name, rename(receives, {axis}, {part.name}), axes);
  x = split.joined(slice(rename(x, {part.name}, {axis}), axis, 0, split.step));
  return slice(x, axis, 0, split.size);
}

NodePtr rolled_ids(const Axis& a, NodeRef by) {
  const auto d = by->dtype;
  return map(kMod, {sub(iota(a, d), by), integer(a.size, d)}, d);
}
NodePtr rolled_by(const Node& n, Name axis) {
  auto& ids = n.in[1];
  auto* a = find(*ids, axis);
  if (n.in.size() != 2 || ids->op != &kMod || !a || a->size != find(*n.in[0], axis)->size)
    return nullptr;
  if (!is_number(ids->in[1], double(a->size))) return nullptr;
  auto& from = ids->in[0];
  bool counts = from->op == &kSub && from->in[0]->op == &kIota && from->in[0]->axes[0] == *a &&
                !find(*from->in[1], axis);
  return counts ? from->in[1] : nullptr;
}
// Rolls in two communication steps. Each device first sends a part of its block to each other
// device, so that each has the same part of all blocks. Full blocks then move locally, and the
// parts are sent back, so that each device has all elements of its block. If the last block is
// shorter, the elements before and after the wrap-around are computed separately.
NodePtr roll_in_blocks(NodeRef n, Name axis, int count) {
  const SplitAxis split(*find(*n->in[0], axis), count);
  const bool even = split.size == split.step * count;
  if (n->in[0]->bytes() <= kNegligibleBytes || split.step < count ||
      (even ? 2 : 3) * split.step >= split.size)
    return nullptr;
  auto x = split.blocked(n->in[0], number(0, n->dtype));
  auto axes = split.blocked(n, number(0, n->dtype))->axes;  // axes of the result in blocks
  auto offset = iota(Axis(axis, split.step));
  auto moved = [&](NodeRef by) {  // rolls by less than the size of all blocks
    auto blocks = quotient(by, split.step), rest = remainder(by, split.step);
    auto carried = cast(less_equal(position(split.step), add(offset, rest)), DType::i32);
    auto from = remainder(sub(sub(iota(Axis(split.blocks, count)), blocks), carried), count);
    auto there = gather(x, {{split.blocks, from}}, axes, program::Outside::clamp);
    auto start = sub(offset, rest);
    auto here = select(less(start, position(0)), add(start, position(split.step)), start);
    return slice(split.joined(gather(there, {{axis, here}}, axes, program::Outside::clamp)), axis,
                 0, split.size);
  };
  auto by = remainder(rolled_by(*n, axis), split.size);
  if (even) return moved(by);
  auto before = moved(add(by, position(split.step * count - split.size)));
  return map(kSelect, {less(iota(Axis(axis, split.size)), by), before, moved(by)}, n->dtype,
             &before->axes);
}

}  // namespace haliax::prim
