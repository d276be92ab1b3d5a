// What masks say of blocks of an axis, for passes that leave out what a mask makes nothing of.
#pragma once
#include "ops/prim.h"

namespace haliax::prim {

// An axis in blocks of so many positions; the last may be short.
struct AxisBlocks {
  Axis axis;
  std::int64_t block = 1;
  Axis blocks() const;  // (blocks of 32 k), say
};
// Of a mask (bool), per block of each of these axes, without its other axes: may it hold somewhere
// in the block? (It does not where this is false.) Found without making the mask, from comparisons
// of positions and of ids along one axis. Null: that cannot be said at a small price.
NodePtr may_be_true(const NodePtr& mask, const std::vector<AxisBlocks>&);
// x where this mask is false, if that is the same all along the axis: without the axis; if all of
// `if_zero` are 0, which is added to. Null: it is not.
NodePtr value_where_false(const NodePtr& x, const Node* mask, Name axis, Nodes& if_zero);
// Does it read of each position one of two operands, as a condition says? NaN of the other does not
// come through.
bool selects_operand(const Node&);
bool reads_mask(const Node&);  // is it such a choice, or a mask as numbers?
// The masks that x, point by point, depends on, with the axis: conditions of a choice, what is read
// as a number, and of each what it is not.
Nodes masks_of(const NodePtr& x, Name axis);
// In what the value of x (point by point made of s) is independent of s where the mask is false: it
// does not read it there, or it reads it times something that is 0 there, if all of `if_zero` are.
enum class MaskedReads : std::uint8_t { nothing, zero, all };
MaskedReads reads_where_false(const NodePtr& x, const Node* s, const Node* mask, Name axis,
                              Nodes& if_zero);
// x, made in turns of this index, if the mask is false throughout: without what then is not read,
// and if all of `if_zero` are 0. Null: not known.
NodePtr value_if_never_true(const NodePtr& x, const Node* mask, Name axis, const Node* index,
                            Nodes& if_zero);
// A flag, or else one of the conditions does not hold throughout.
NodePtr flag_or_not_all(const NodePtr& flag, const Nodes& conditions);
// Both of two flags; the first may be null.
NodePtr both_flags(const NodePtr& flag, const NodePtr& more);
// Bool, with axes of both: is `next`, which is made of `before`, the same? Perhaps not, where this
// is false.
NodePtr unchanged_flag(const NodePtr& next, const NodePtr& before);

}  // namespace haliax::prim
