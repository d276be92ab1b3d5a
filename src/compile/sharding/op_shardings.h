// How an op may be sharded: its iteration space (`work`), the partial sums of its operands, and the
// blocks of an axis that it requires in full.
#pragma once
#include <optional>
#include <unordered_set>

#include "compile/sharding/plan_view.h"

namespace haliax::partitioning {

// Whether a sum may stay partial through an op. larger: yes, but the partial value would grow.
enum class PartialThrough : std::uint8_t { no, yes, larger };

class OpShardings : PlanView {
 public:
  explicit OpShardings(const PlanState& s) : PlanView(s) {}
  // Returns the sharding of the iteration space of an op. The definition lists its sources.
  Sharding work_of(int n, OpChoice) const;
  // Returns the alternative sharding of the iteration space that applies `choice` first. Returns
  // nothing if it equals the usual sharding, or if it would save bytes at too high a price: if
  // fewer devices share the work, or if a weight is gathered along an axis that the mapping shards.
  // For example, given dot(u, v, "a") of [a: x, b] and [a, c: x], whose usual work is [a: x],
  // returns [c: x] for operand 1: u is gathered, and the result is not partial.
  std::optional<Sharding> alternative_work(int n, const Sharding& usual, OpChoice) const;
  // Shards the axes of the iteration space that `like` shards, as far as possible.
  void shard_axes(const Node&, Sharding& work, const Sharding& like) const;
  // Returns whether operand k, which is partial along mesh axis x, may stay partial through this op
  // and be reduced later. The op must commute with the reduction. For example, given partial y and
  // replicated z, y * z may stay partial, but y * y and exp(y) may not. Given partial y and z,
  // y + z may stay partial. A sum over an axis of partial y may, and a broadcast of y may not,
  // because more bytes would be reduced later.
  PartialThrough partial_through(int n, std::size_t k, int x, Monoid, const Sharding& work) const;
  // Returns the axis along which a sum that is partial along mesh axis x should be
  // reduce-scattered, and the mesh axes that shard it. It is an axis that the preferred sharding,
  // or else a reader, shards along x. A reader that moves values, computes them elementwise or
  // reduces them may itself have such readers, at most kScatterDepth ops further. Empty: the sum is
  // all-reduced.
  //
  // - Given the gradient dw[embed, hidden], partial over data, and an optimizer state
  //   [embed: data, hidden], returns embed and [data].
  // - Given the gradient dk[pos, head] of rotated keys, partial over context, and a matmul
  //   that the mapping shards along [pos: context], returns pos and [context].
  std::pair<Name, MeshAxes> scatter_target(int n, int x) const;
  // Returns the sharding after partial sums are reduced, scattered along preferred axes if
  // possible. For example, given [a, b] partial over x, returns [a: x, b] if a reader shards a
  // along x, and [a, b] if no reader uses x.
  Sharding reduced_sharding(int n) const;

  // Returns the number of blocks of an axis that the op requires in full, as its operand is
  // sharded. 0: there is one block, or no block has more than `larger_than` positions.
  int blocks_along(const Node& op, Name axis, std::int64_t larger_than = 0) const;
  // Returns true if the op runs block by block along the axis.
  bool runs_by_blocks(const Node& op, Name axis, std::int64_t larger_than = 0) const;
  // Returns the node whose sharding determines whether n is deferred to its readers. -1: n is not.
  int deferral_source(int n) const;
  // Returns true if the readers of n read its operand instead. `deferral_source(n)` must be
  // planned.
  bool is_deferred(int n) const;
  bool is_deferred_slice(int x) const;

 private:
  static constexpr int kScatterDepth = 8;  // ops
  // depth: the number of ops that the search may still pass. seen: the ops that it passed.
  std::pair<Name, MeshAxes> scatter_target(int n, int x, int depth,
                                           std::unordered_set<int>& seen) const;
  void shard_axis(const Node&, Sharding& work, Name, const MeshAxes&) const;
  void move_mesh_axes(int n, Sharding& work, OpChoice) const;
  void shard_rows(int n, Sharding& work) const;
  bool selects_by_blocks(const Node&) const;
};

}  // namespace haliax::partitioning
