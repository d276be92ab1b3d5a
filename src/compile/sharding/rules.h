// Sharding rules: derives the shardings of the iteration space, the operands and the result of a
// node from the rule of its op along each axis. No code here depends on the name of an op.
//
// In      a node, and the sharding of its iteration space (`work`) or of an operand.
// Out     the shardings of the others.
// Always  if each operand is sharded as `operand_sharding` returns, each device has the elements
//         that its block of the iteration space reads, and the result has the sharding that
//         `result_sharding` returns.
#pragma once
#include <optional>

#include "graph/loop.h"
#include "transforms/sharding.h"

namespace haliax::rules {

Axes iteration_axes(const Node&);
// Returns true if an axis of the iteration space may be sharded along these mesh axes, in addition
// to `work`. Returns false if the op requires the full axis, or if the blocks do not correspond to
// blocks of an operand.
bool may_shard(const Node&, Name point, const MeshAxes&, const Sharding& work, const Mesh&);
// Returns the sharding of operand k, without partial sums. For example, given dot(u[a, b], v[b, c])
// and work [a: x, b: y], returns [a: x, b: y] for u and [b: y] for v.
Sharding operand_sharding(const Node&, std::size_t k, const Sharding& work, const Mesh&);
// Returns the sharding of the result. A sharded axis that is reduced makes the result a partial
// sum. In the same example, returns [a: x] and partial over y.
Sharding result_sharding(const Node&, const Sharding& work);
// Returns the sharding of the iteration space that matches a sharding of operand k. `left` receives
// the axes that the iteration space lacks or that the op requires in full. For example, given
// sort(u, "b") of [a: x, b: y], returns [a: x], and `left` receives [b: y].
Sharding work_sharding(const Node&, std::size_t k, const Sharding& operand, const Mesh&,
                       Sharding* left = nullptr);
// Returns the axis along which the node moves positions by known offsets. Empty: none.
Name shifted(const Node&);
bool picks(const Node&);  // reads or writes positions that ids select
// writes positions into an array that is its first operand (scatter)
bool writes_into(const Node&);
// `regroups`: the node merges several axes into one, or splits one axis into several. `flattens`:
// it merges them.
bool regroups(const Node&), flattens(const Node&);
bool jointly_partial(const Node&);       // if one operand is partial, all must be
bool is_free_to_recompute(const Node&);  // cheap to recompute from another version of its operand
bool computable_anywhere(const Node&);   // computable in any sharding from replicated operands
// Splits the mesh axes of a flattened axis over its parts. Returns nothing if the blocks do not
// match. For example, given [x, y] of 2 devices each, returns [x], [y] for parts of sizes 2 and 6,
// [x, y], [] for 4 and 3, and nothing for 3 and 4.
std::optional<std::vector<MeshAxes>> split_over_parts(const MeshAxes&, const Axes& parts,
                                                      const Mesh&);

}  // namespace haliax::rules
