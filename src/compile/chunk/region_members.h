// The nodes of a region, and the tiled axis in each of them. For example, with `n` tiled, in
// x' = enter(x), y = exp(x'), s = sum(y, "n"), t = leave(s), u = t + 1:
//
//        contains   is_tiled   on_tile   axis_in   name_in
//   x'   yes        yes        yes       n         n
//   y    yes        yes        yes       n         n
//   s    yes        no         no        -         n         a result of the loop over tiles
//   u    no         no         no        -                   outside: reads the final value of s
#pragma once
#include <optional>

#include "ops/block_scan.h"
#include "transforms/chunked.h"
#include "transforms/rewrite.h"

namespace haliax {

class RegionMembers {
 public:
  // See Region.
  RegionMembers(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around);

  const Axis& axis() const { return axis_; }
  const ChunkKey& call() const { return call_; }
  const Nodes& roots() const { return roots_; }
  const Nodes& level() const { return level_; }
  const Node* around() const { return around_; }
  bool empty() const;
  const std::string& refusal() const { return refusal_; }
  // true: the reader of a barrier is in a later pass than the node for which the barrier waits.
  // Gradients then have passes of their own.
  bool barriers_split_passes() const { return ChunkForm(call_.form) == ChunkForm::recompute; }

  bool enters(const Node&) const;
  bool leaves(const Node&) const;
  // Returns true for an `enter` of this region. Also returns true if the region was entered outside
  // of the body `around`, for boundaries and for slices along other axes of the entered value.
  bool is_input(const Node&) const;
  bool contains(const NodePtr& n) const { return n && role_of(*n).inside; }
  bool is_tiled(const NodePtr& n) const { return axis_in(*n) || is_input(*n); }
  // Returns true if x is computed once per tile. A reduction over the axis, outside of the loops
  // of the level, is not: it is a result of the loop over the tiles.
  bool on_tile(const NodePtr& x) const {
    return is_tiled(x) || role_of(*x).partial || (x->op == &kLoop && contains(x));
  }
  // Returns true if n is inside, but only an op with a block scan that does not read it has it as
  // operand.
  bool is_never_computed(const Node& n) const { return role_of(n).never_computed; }
  // Returns true if x has left the region where `reader` reads it: it reads the full array, not a
  // tile.
  bool is_read_in_full(const NodePtr& x, const Node& reader) const;
  // Returns true if n has an axis with this name and the size of the tiled axis. The result of
  // top_k has an axis with the same name but another size.
  bool has_axis(const Node& n, Name a) const;
  // Returns the name of the tiled axis in a node of the region. Empty: the node lacks the axis.
  Name axis_in(const Node& n) const { return role_of(n).axis; }
  // Returns the name of the tiled axis in the result of this node or, if the result lacks the axis,
  // in its operands.
  Name name_in(const Node&) const;
  Nodes inputs_on_tile(const NodePtr&) const;  // the nodes from which it is computed on a tile

  // Returns the monoid that merges the results of the tiles. Returns none if they cannot be merged.
  std::optional<Monoid> reduction_monoid(const Node&) const;
  // Returns true if n gathers from, or scatters to, in[0] by index along the axis. On a tile, n
  // processes only the indices that are inside of the tile.
  bool indexes_along(const Node&, Name) const;
  // Returns the block scan of an op that needs the full axis and is computed by a scan over its
  // tiles. Returns null for other nodes.
  const BlockScan* scan_of(const Node&) const;
  // Returns true if n has the axis and carries a state from tile to tile: an op with a running
  // block scan, such as a cumulative sum, or a loop along the axis.
  bool carries_state(const Node&) const;
  // Returns true for a loop along the tiled axis.
  bool is_along_axis(const Node& loop) const {
    return along_axis_.count(loop_of(loop).index[0].get()) > 0;
  }
  bool in_body(const Node&) const;  // in the body of a loop of the level
  bool is_carry_of_level(const Node& n) const { return owner_.count(&n) > 0; }
  bool is_expanded(const NodePtr& x, Name a) const;  // see Region

 private:
  // Whether a node is in the region, and the part that it has there.
  struct Role {
    bool inside = false;
    Name axis = {};               // the name of the tiled axis in this node; vmap renames it
    bool partial = false;         // a sum over the axis in the body of a loop, hence of one tile
    bool never_computed = false;  // `unread`, needs the full axis, and is never computed
    std::optional<BlockScan> scan = {};
  };
  // The fields are computed in the order of their definition.
  struct Member {
    bool bridge = false;  // between a `leave` and an `enter`; see find_bridges
    // An operand of an op with a block scan that the scan does not read, and that no other node
    // reads. For example, top_k is a slice of an argsort, but its scan reads the unsorted array.
    bool unread = false;
    Role role = {};
  };
  const Member& facts_of(const Node& n) const {
    static const Member nothing;
    auto i = members_.find(&n);
    return i == members_.end() ? nothing : i->second;
  }
  const Role& role_of(const Node& n) const { return facts_of(n).role; }
  Member& member(const Node& n) { return members_[&n]; }

  void find_unread();
  void find_bridges();
  void find_roles();
  Names names_read_by(const NodePtr&, bool& partial) const;
  bool infer_role(const NodePtr&);
  bool infer_scan(const NodePtr&);
  void exclude_cheap_reductions();
  bool in_body_along_axis(const Node&) const;  // in the body of such a loop, at one position
  bool is_lookup_by_position(const Node&, Name) const;

  // ---- region_check.cpp ----
  void check(const NodePtr&);
  void check_sums_in_body(const NodePtr&);
  void check_loop_along_axis(const Node& loop, Name a);
  void refuse(const Node&, const std::string& why);  // the first refusal counts

  Attr key_;
  ChunkKey call_;
  const Node* around_;
  std::string refusal_;
  Axis axis_;
  Nodes roots_, level_;
  std::unordered_map<const Node*, Member> members_;
  std::unordered_set<const Node*> loop_indices_;  // indices of the loops of the level
  std::unordered_set<const Node*> along_axis_;    // those of loops along the tiled axis
  // From a carry to its loop and the index of its result.
  std::unordered_map<const Node*, std::pair<NodePtr, std::size_t>> owner_;
};

}  // namespace haliax
