// The region of a chunked_reduce along one axis: the nodes between the boundaries `enter` and
// `leave`, and the loops over tiles that replace them.
//
// - A node that has the tiled axis is computed tile by tile.
// - A reduction over the axis becomes a result of a loop.
// - A node that reads only final results of reductions is outside of the region.
//
// The loops run one after another, each a pass over the data. A node on a tile that reads a final
// value of one pass is computed in the next pass. For example, given the tiled axis `pos` and
// y = x / sum(x, pos), pass 0 computes the sum, and pass 1 reads x again and computes y.
#pragma once
#include <map>
#include <optional>

#include "ops/block_scan.h"
#include "transforms/chunked.h"
#include "transforms/rewrite.h"

namespace haliax {

class Region {
 public:
  // `level`: the nodes that are searched for the region, inputs first, including the bodies of
  // their loops. Without `around`: all nodes below the roots. `around`: the index of the loop body
  // that contains the roots; `level` then has the nodes that vary with it. Finds the nodes of the
  // region, and the pass that computes each.
  Region(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around = nullptr);
  bool empty() const { return empty_; }
  const Axis& axis() const { return axis_; }
  // Returns true if the node is computed on tiles or is a reduction over the tiled axis.
  bool contains(const NodePtr& n) const { return n && facts_of(*n).role.inside; }
  // Returns true if the node is in the region and has the tiled axis, or is an entered array
  // (is_input).
  bool is_tiled(const NodePtr& n) const { return facts_of(*n).role.axis || is_input(*n); }
  // Returns why the region cannot be tiled, as a message that names the op. Empty: it can be tiled.
  const std::string& refusal() const { return refusal_; }
  int passes() const { return passes_; }  // number of passes that the region needs, one loop each
  // Returns the reductions of these passes, such as sums and maxima.
  Nodes reductions() const;
  // Returns true if x, which is outside of the region, is an elementwise function of fewer bytes
  // than its own. Examples are a one-hot of ids, and a mask, a random draw or a bias by position.
  // Such a value is computed on each tile and never materialized in full.
  bool is_expanded(const NodePtr& x) const { return is_expanded(x, axis_.name); }
  bool is_expanded(const NodePtr& x, Name a) const;
  // Returns the bytes of the sums whose accumulation dtype is wider than their own dtype, in the
  // accumulation dtype: a sum of bf16 is carried between iterations in f32.
  std::int64_t wide_accumulator_bytes() const;
  // Returns the final values of earlier passes that nodes on tiles of later passes read.
  Nodes values_between_passes() const;
  // Returns the roots without the barriers by which a node outside of the region waits for a node
  // inside. Returns the roots unchanged for ChunkForm::recompute.
  Nodes without_barriers() const;
  // Returns the roots with loops over tiles of `size` positions in place of the region. The loops
  // report `form` and `why`. Requires a region without a refusal, and roots without such barriers.
  Nodes tile(std::int64_t size, const std::string& form, const std::string& why);
  // Returns the loop indices, one per body: [full tiles, remainder].
  const Nodes& index() const { return index_; }

 private:
  // Describes a node that is linear in exp(x - max x). Its reduction is computed in the pass that
  // computes the max: with the running max, and scaled whenever the running max grows.
  struct Streamed {
    const Node* top = nullptr;  // the max
    int ready = 0;              // number of passes before everything but the max is ready
    // true: the exponential replaces an infinite max by 0; false: the result is NaN there
    bool guarded = true;
    // A select may drop this NaN, for example a select by the mask of the scores.
    bool drops_nan = false;
  };
  // The properties of a node. The fields are computed in the order of their definition.
  struct Member {
    bool bridge = false;  // between a `leave` and an `enter`; see find_bridges
    // An operand of an op with a block scan that the scan does not read, and that no other node
    // reads. For example, top_k is a slice of an argsort, but its scan reads the unsorted array.
    bool unread = false;
    // Whether the node is in the region, and the part that it has there.
    struct Role {
      bool inside = false;
      // The name of the tiled axis in this node (vmap renames it). Empty: the node lacks the axis.
      Name axis = {};
      bool partial = false;         // a sum over the axis in the body of a loop, hence of one tile
      bool never_computed = false;  // `unread`, needs the full axis, and is never computed
      // The scan that computes an op which needs the full axis, tile by tile.
      std::optional<BlockScan> scan = {};
    } role = {};
    // The pass in which the node is computed.
    struct Order {
      int pass = -1;  // index of the pass; -1: the node is not computed on a tile
      int ready = 0;  // number of passes that must finish before the full value is available
      Streamed streamed = {};
      Nodes rescaled = {};  // for a max: the reductions that are computed with the running max
      Nodes gathers = {};   // for positions (argmax, top_k): the gathers at these positions
    } order = {};
    Nodes tiles = {};                    // the value on a tile, one per body
    Nodes carried = {};                  // for a loop along the axis: the carried state
    std::vector<LoopResult> state = {};  // for an op with a running block scan: the state
  };
  const Member& facts_of(const Node& n) const {
    static const Member nothing;
    auto i = members_.find(&n);
    return i == members_.end() ? nothing : i->second;
  }
  Member& member(const Node& n) { return members_[&n]; }

  bool enters(const Node&) const;
  // Returns true for an `enter` of this region. Also returns true if the region was entered outside
  // of the body `around`, for boundaries and for slices along other axes of the entered value.
  bool is_input(const Node&) const;
  bool leaves(const Node&) const;
  // Returns true if x has left the region where `reader` reads it: it reads the full array, not a
  // tile.
  bool is_read_in_full(const NodePtr& x, const Node& reader) const;
  // Returns true if n has an axis with this name and the size of the tiled axis. The result of
  // top_k has an axis with the same name but another size.
  bool has_axis(const Node& n, Name a) const;
  void refuse(const Node&, const std::string& why);  // the first refusal counts
  // ---- region.cpp: membership, and the pass of each node ----
  void find_unread();
  void find_bridges();
  Names names_read_by(const NodePtr&, bool& partial) const;
  bool infer_role(const NodePtr&);
  void exclude_cheap_reductions();
  bool in_body(const Node&) const;  // in the body of a loop of the level
  // Returns true if x is computed once per tile. A reduction over the axis, outside of the loops
  // of the level, is not: it is a result of the loop over the tiles.
  bool on_tile(const NodePtr& x) const {
    return is_tiled(x) || facts_of(*x).role.partial || (x->op == &kLoop && contains(x));
  }
  // Returns the name of the tiled axis in the result of this node or, if the result lacks the axis,
  // in its operands.
  Name name_in(const Node&) const;
  void assign_passes();
  void check(const NodePtr&);
  std::optional<Monoid> reduction_monoid(const Node&) const;
  int pass_of(const NodePtr&, bool tile) const;
  int first_pass(const NodePtr&) const;
  Streamed streamed(const NodePtr&) const;
  // Returns true for a loop along the tiled axis.
  bool is_along_axis(const Node& loop) const {
    return along_axis_.count(loop_of(loop).index[0].get()) > 0;
  }
  bool in_body_along_axis(const Node&) const;  // in the body of such a loop, at one position
  void check_loop_along_axis(const Node& loop, Name a);
  // Returns the first pass, at or after pass `at`, that may iterate in this direction. Fixes its
  // direction.
  int pass_in_direction(bool reverse, int at);
  bool is_reversed(int pass) const;
  void save_for_later_passes();
  // Returns the bytes of the largest value that tiling avoids materializing, at least 1.
  std::int64_t largest_bytes() const;
  bool indexes_along(const Node&, Name) const;
  bool is_lookup_by_position(const Node&, Name) const;
  // Returns the block scan of an op that needs the full axis and is computed by a scan over its
  // tiles. Returns null for other nodes.
  const BlockScan* scan_of(const Node&) const;
  bool infer_scan(const NodePtr&);
  // Returns true if n has the axis and carries a state from tile to tile: an op with a running
  // block scan, such as a cumulative sum, or a loop along the axis.
  bool carries_state(const Node&) const;
  Nodes inputs_on_tile(const NodePtr&) const;  // the nodes from which it is computed on a tile

  // ---- tile_region.cpp ----
  Block block(Name a, std::size_t body) const {
    return {a, index_[body], prim::index_chunk(*index_[body])};
  }
  Axes axes_on_tile(Axes, Name, std::size_t body) const;
  NodePtr tile_of(const NodePtr&, Name, std::size_t body);
  NodePtr node_on_tile(const NodePtr&, Name, std::size_t body);
  NodePtr loop_on_tile(const NodePtr&, std::size_t body);
  NodePtr with_swapped_names(const NodePtr&, Name) const;
  LoopResult reduction_result(const NodePtr&);
  // The final values after the loops so far: their reductions and stacked results, and the nodes
  // outside of the region that depend on these.
  struct Finals {
    const Node* around;
    // `of` maps a node to its final value. `tiles` maps the tile of a stacked node to a slice of
    // the stacked value, which later loops read rather than rematerialize.
    Rewrite of = {}, tiles = {};
    std::unordered_set<const Node*> unchanged =
        {};  // nodes that read none of these, and are unchanged
    Nodes operator()(const Nodes& xs) { return substitute(xs, of, around, &unchanged); }
  };
  NodePtr final_value(const NodePtr& reduction, const NodePtr& result, Finals&);
  // Returns the loop of a pass. Appends the node of each result to `of`: null for a state that no
  // node reads after the loop.
  Loop loop_of_pass(int pass, Nodes& of);
  void add_final_values(const NodePtr& loop, const Nodes& of, Finals&);
  // Replaces values from outside of the loop, which its bodies read, by their final values.
  void read_final_values(Loop&, Finals&) const;

  // ---- carried_results.cpp: results that are carried between iterations ----
  using Memo = std::unordered_map<const Node*, NodePtr>;
  NodePtr loop_along_axis_on_tile(const NodePtr& loop, std::size_t body);
  void add_loop_state(Loop&, Nodes& of, const NodePtr& loop);
  void add_running_max(Loop&, Nodes& of, const NodePtr& top);
  struct RunningMax;  // one iteration of the running max
  NodePtr with_running_shift(const NodePtr&, const Node* top, const RunningMax&, bool drops_nan,
                             Memo& memo);
  // Adds the results of a block scan, which runs in the direction of the loop.
  void add_scan_results(Loop&, Nodes& of, const NodePtr&);
  NodePtr running_scan_on_tile(const NodePtr&, std::size_t body);
  std::vector<LoopResult> initial_state(const BlockScan&) const;
  NodePtr scan_iteration(const BlockScan&, std::vector<LoopResult>& state, std::size_t body,
                         bool reverse);

  Attr key_;
  ChunkKey call_;
  const Node* around_;
  // true: the reader of a barrier is in a later pass than the node for which the barrier waits.
  // Gradients then have passes of their own (ChunkForm::recompute).
  const bool barriers_split_passes_;
  bool empty_ = true;
  int passes_ = 0;
  std::string refusal_;
  Axis axis_;
  Nodes roots_, level_, index_;
  std::unordered_map<const Node*, Member> members_;
  std::unordered_set<const Node*> loop_indices_;  // indices of the loops of the level
  std::unordered_set<const Node*> along_axis_;    // those of loops along the tiled axis
  // From a carry to its loop and the index of its result.
  std::unordered_map<const Node*, std::pair<NodePtr, std::size_t>> owner_;
  // Nodes by the pass that computes them. reductions_: reductions. stacked_: nodes whose tiles are
  // stacked along the axis. stateful_: nodes that carry a state from tile to tile
  // (carries_state).
  std::map<int, Nodes> reductions_, stacked_, stateful_;
  // Passes whose direction a node of stateful_ determines. true: last tile first.
  std::map<int, bool> directions_;
  // From a node outside of the region and its name of the axis to its tiles, one per body.
  std::map<std::pair<const Node*, const NameData*>, Nodes> outside_tiles_;
};

// The regions of a call, one per tiled axis that has a boundary, in the order of the call's
// tiled_axes.
struct Regions {
  std::vector<ChunkKey> keys;
  std::vector<Region> of;
  Regions(const ChunkKey& call, const Nodes& roots, const Nodes& level);
  bool contain(const NodePtr&) const;
};

}  // namespace haliax
