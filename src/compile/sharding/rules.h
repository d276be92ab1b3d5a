// How an op's points and the axes of its operands and of its result go together. Points have axes: those of the result and of the
// operands, by the names that the op sees. To partition an op is to cut its points.
#pragma once
#include <optional>

#include "graph/loop.h"
#include "transforms/sharding.h"

namespace haliax::rules {

Axes points(const Node&);
// May this axis of the points be cut so, when they are cut as `work` already? Not if the op needs all of the axis at once, or if
// the blocks would not be blocks of an operand.
bool may_cut(const Node&, Name point, const Cut&, const Sharding& work, const Mesh&);
Sharding needed(const Node&, std::size_t k, const Sharding& work, const Mesh&);  // of operand k; without what is pending
Sharding made(const Node&, const Sharding& work);  // of the result; a cut axis that is folded is pending
// What a cut of operand k wants of the points; axes that they lack, or that are whole there, come back as they are in `left`.
Sharding wanted(const Node&, std::size_t k, const Sharding& operand, const Mesh&, Sharding* left = nullptr);
// Moves positions along one axis, by numbers known now: a slice, a concatenation, a placing among zeros.
bool shifts(const Node&);
bool only_waits(const Node&, std::size_t k);  // for operand k to be there, however it lies
bool is_view(const Node&);                    // costs nothing to make again from another version of its operand
bool is_pointwise(const Node&);               // can be made in any sharding from operands that are whole
std::optional<std::vector<Cut>> spread(const Cut&, const Axes& parts, const Mesh&);  // of a flattened axis over its parts

}  // namespace haliax::rules
