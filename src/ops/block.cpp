// Ops and values on blocks of their axes.
#include "ops/block.h"

#include <algorithm>

#include "ops/attr.h"

namespace haliax::prim {
namespace {

Axes resized(Axes axes, const std::vector<Block>& blocks) {
  for (auto& b : blocks) {
    if (b.drop) std::erase_if(axes, [&](auto& a) { return a.name == b.axis; });
    for (auto& a : axes)
      if (a.name == b.axis) a.size = b.size;
  }
  return axes;
}
// Returns the blocks under the names that their axes have in the operand.
std::vector<Block> operand_blocks(const Node& n, std::size_t k, std::vector<Block> blocks) {
  for (auto& b : blocks) b.axis = name_in_operand(n, k, b.axis);
  return blocks;
}
void drop_others(std::vector<Block>& blocks, const Axes& axes) {
  std::erase_if(blocks, [&](auto& b) { return !has(axes, b.axis); });
}

}  // namespace

NodePtr on_block(const Node& n, Nodes in, const Axes& axes, const std::vector<Block>& blocks) {
  if (blocks.empty()) return rebuilt(n, std::move(in), axes);
  return n.op->on_block(n, std::move(in), axes, blocks);
}
NodePtr where_in_range(const Node& gather, const Nodes& in, NodeRef picked, NodeRef outside) {
  auto in_range = gather.op->in_range ? gather.op->in_range(gather, in) : nullptr;
  return in_range ? select(in_range, picked, outside, picked->axes) : picked;
}

NodePtr block_of(NodeRef x, std::vector<Block> blocks) {
  drop_others(blocks, x->axes);
  if (blocks.empty()) return x;
  if (is_position(*x)) return on_block(*x, {}, resized(x->axes, blocks), blocks);
  auto out = x;
  for (auto& b : blocks) {
    const bool fixed = b.start->op == &kNumber;
    out = slice(out, b.axis, fixed ? integer_of(*b.start) : 0, b.size, 1, b.drop,
                fixed ? nullptr : b.start);
  }
  return out;
}

NodePtr slice_of_segment(const Node& n, NodeRef joined) {
  if (n.op != &kSlice || n.in.size() > 1) return nullptr;
  if (joined->op->kind != Kind::step || !joined->op->segments) return nullptr;
  const auto c = SliceAttr::of(n);
  const auto segments = joined->op->segments(*joined);
  if (AlongAttr::of(*joined).axis != c.axis || segments.size() != joined->in.size()) return nullptr;
  const auto [first, last] = std::minmax({c.start, c.start + (c.size - 1) * c.step});
  for (auto& s : segments) {
    if (first < s.to || last >= s.to + s.size) continue;
    NodeRef part = joined->in[s.operand];
    if (!find(*part, c.axis)) return fit(part, n.axes);
    return slice(part,
                 {c.axis, s.from + (c.start - s.to) * s.step, c.size, c.step * s.step, c.drop},
                 nullptr);
  }
  return nullptr;
}

NodePtr Blocks::operator()(NodeRef x, std::vector<Block> blocks) {
  drop_others(blocks, x->axes);
  if (blocks.empty()) return x;
  for (auto& [of, created] : known_[x.get()])
    if (of == blocks) return created;
  auto created = !is_position(*x) && recomputed_(x) ? recompute(x, blocks) : block_of(x, blocks);
  known_[x.get()].emplace_back(std::move(blocks), created);
  return created;
}
NodePtr Blocks::recompute(NodeRef x, const std::vector<Block>& blocks) {
  Nodes in;
  for (std::size_t k = 0; k < x->in.size(); ++k)
    in.push_back((*this)(x->in[k], operand_blocks(*x, k, blocks)));
  return rebuilt(*x, std::move(in), resized(x->axes, blocks));
}

}  // namespace haliax::prim
