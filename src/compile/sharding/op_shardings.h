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
  Sharding work_of(int n, OpChoice) const;
  std::optional<Sharding> alternative_work(int n, const Sharding& usual, OpChoice) const;
  // Shards the axes of the iteration space that `like` shards, as far as possible.
  void shard_axes(const Node&, Sharding& work, const Sharding& like) const;
  PartialThrough partial_through(int n, std::size_t k, int x, Monoid, const Sharding& work) const;
  std::pair<Name, MeshAxes> scatter_target(int n, int x) const;
  // Returns the sharding after partial sums are reduced, scattered along preferred axes if
  // possible. For example, given [a, b] partial over x, returns [a: x, b] if a reader shards a
  // along x, and [a, b] if no reader uses x.
  Sharding reduced_sharding(int n) const;

  int blocks_along(const Node& op, Name axis, std::int64_t larger_than = 0) const;
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
