// What follows from an op's rule along axes for the cuts of its points, operands and result. No op
// is known here by name.
//
// In: a node, and how its points are cut (`work`), or how an operand is. Out: how the rest is then.
// Always: if each operand is cut as `needed` says, each device has what its block of the points
// reads, and the result lies as `made` says.
#pragma once
#include <optional>

#include "graph/loop.h"
#include "transforms/sharding.h"

namespace haliax::rules {

Axes iteration_axes(const Node&);
// May this axis of the points be cut so, when they are cut as `work` already? Not if the op needs
// all of the axis at once, or if the blocks would not be blocks of an operand.
bool may_shard(const Node&, Name point, const MeshAxes&, const Sharding& work, const Mesh&);
// of operand k; without what is pending
Sharding operand_sharding(const Node&, std::size_t k, const Sharding& work, const Mesh&);
// of the result; a cut axis that is folded is pending
Sharding result_sharding(const Node&, const Sharding& work);
// What a cut of operand k wants of the points; axes that they lack, or that are whole there, come
// back as they are in `left`.
Sharding work_sharding(const Node&, std::size_t k, const Sharding& operand, const Mesh&,
                       Sharding* left = nullptr);
// Does it, along some axis,
// the axis along which it moves positions by known numbers; empty: none
Name shifted(const Node&);
bool picks(const Node&);        // pick positions, or write them, by ids?
bool writes_into(const Node&);  // write them into an array that is its first operand (scatter)?
// put parts in one axis, or an axis in parts? Is it the former?
bool regroups(const Node&), flattens(const Node&);
bool partial_together(const Node&);      // Must all operands be pending, if one is?
bool is_free_to_recompute(const Node&);  // to rematerialise from another version of its operand
bool computable_anywhere(const Node&);   // can be made in any sharding from operands that are whole
// of a flattened axis over its parts
std::optional<std::vector<MeshAxes>> split_over_parts(const MeshAxes&, const Axes& parts,
                                                      const Mesh&);

}  // namespace haliax::rules
