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
// Returns the blocks of the axes that the operand has, under their names there.
std::vector<Block> operand_blocks(const Node& n, std::size_t k, std::vector<Block> blocks) {
  for (auto& b : blocks) b.axis = name_in_operand(n, k, b.axis);
  return blocks;
}
NodePtr sliced(NodePtr x, const std::vector<Block>& blocks) {
  for (auto& b : blocks) {
    const bool fixed = b.start->op == &kNumber;
    x = slice(x, b.axis, fixed ? integer_of(*b.start) : 0, b.size, 1, b.drop,
              fixed ? nullptr : b.start);
  }
  return x;
}

}  // namespace

NodePtr on_block(const Node& n, Nodes in, const Axes& axes, const std::vector<Block>& blocks) {
  if (blocks.empty()) return rebuilt(n, std::move(in), axes);
  return n.op->on_block(n, std::move(in), axes, blocks);
}
NodePtr where_in_range(const Node& gather, const Nodes& in, const NodePtr& picked,
                       const NodePtr& outside) {
  auto in_range = gather.op->in_range ? gather.op->in_range(gather, in) : nullptr;
  return in_range ? select(in_range, picked, outside, picked->axes) : picked;
}

NodePtr Blocks::operator()(const NodePtr& x, std::vector<Block> blocks) {
  std::erase_if(blocks, [&](auto& b) { return !has(x->axes, b.axis); });
  if (blocks.empty()) return x;
  for (auto& [of, created] : known_[x.get()])
    if (of == blocks) return created;
  NodePtr created;
  if (is_position(*x))
    created = on_block(*x, {}, resized(x->axes, blocks), blocks);
  else if (recomputed_(x))
    created = recompute(x, blocks);
  else
    created = sliced(x, blocks);
  known_[x.get()].emplace_back(std::move(blocks), created);
  return created;
}
NodePtr Blocks::recompute(const NodePtr& x, const std::vector<Block>& blocks) {
  Nodes in;
  for (std::size_t k = 0; k < x->in.size(); ++k)
    in.push_back((*this)(x->in[k], operand_blocks(*x, k, blocks)));
  return rebuilt(*x, std::move(in), resized(x->axes, blocks));
}

}  // namespace haliax::prim
