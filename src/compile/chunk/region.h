// The region of a chunked_reduce along one axis: the nodes between the boundaries `enter` and
// `leave`, and the loops over chunks that replace them.
//
// - A node that has the tiled axis is computed chunk by chunk.
// - A reduction over the axis becomes a result of a loop.
// - A node that reads only final results of reductions is outside of the region.
//
// The loops run one after another, each a pass over the data. A node on a chunk that reads a final
// value of one pass is computed in the next pass. For example, given the tiled axis `pos` and
// y = x / sum(x, pos), pass 0 computes the sum, and pass 1 reads x again and computes y.
#pragma once
#include <algorithm>
#include <map>
#include <optional>

#include "compile/chunk/refusal.h"
#include "ops/block_scan.h"
#include "transforms/chunked.h"
#include "transforms/rewrite.h"

namespace haliax {

struct RegionCut {         // how a region is tiled
  std::int64_t chunk = 1;  // positions per iteration
  // true: saves small values that a later pass reads; false: rematerializes them
  bool keep = true;
  bool reverse = false;             // last chunk first
  bool of_scores = false;           // see Loop
  std::string form = {}, why = {};  // for reports
};

class Region {
 public:
  // `level`: the nodes that are searched for the region, inputs first, including the bodies of
  // their loops. Without `around`: all nodes below the roots. `around`: the index of the loop body
  // that contains the roots; `level` then has the nodes that vary with it.
  Region(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around = nullptr);
  bool empty() const { return empty_; }
  const Axis& axis() const { return axis_; }
  // Returns true if the node is computed on chunks or is a reduction over the tiled axis.
  bool contains(const NodePtr& n) const { return n && known_of(*n).role.inside; }
  // Returns true if the node is in the region and has the tiled axis, or is an entered array
  // (comes_in).
  bool walks(const NodePtr& n) const { return known_of(*n).role.axis || comes_in(*n); }
  // Returns the number of passes that the region needs, one loop each. Raises a Refusal that names
  // the op if a node cannot be tiled.
  int sweeps();
  // Returns the reductions of these passes, such as sums and maxima. Requires a call of `sweeps`.
  Nodes folds() const;
  // Returns true if x, which is outside of the region, is an elementwise function of fewer bytes
  // than its own. Examples are a one-hot of ids, and a mask, a random draw or a bias by position.
  // Such a value is computed on each chunk and never materialized in full.
  bool grows(const NodePtr& x) const { return grows(x, axis_.name); }
  bool grows(const NodePtr& x, Name a) const;
  // Returns the bytes of the sums whose accumulation dtype is wider than their own dtype, in the
  // accumulation dtype: a sum of bf16 is carried between iterations in f32.
  std::int64_t wide_sums();
  // Returns the final values of earlier passes that nodes on chunks of later passes read.
  Nodes between();
  // Returns the roots without the barriers by which a node outside of the region waits for a node
  // inside. Returns the roots unchanged for ChunkForm::recompute.
  Nodes without_waits() const;
  // Returns the roots with loops in place of the region. Requires roots without such barriers.
  Nodes cut(const RegionCut&);
  // Returns the loop indices, one per body: [full chunks, remainder].
  const Nodes& index() const { return index_; }

 private:
  // Describes a node that is linear in exp(x - max x). Its reduction is computed in the pass that
  // computes the max: with the running max, and scaled whenever the running max grows.
  struct Streamed {
    const Node* top = nullptr;  // the max
    int before = 0;             // number of passes before everything but the max is ready
    // true: the exponential replaces an infinite max by 0; false: the result is NaN there
    bool guarded = true;
    // A select may drop this NaN, for example a select by the mask of the scores.
    bool hides = false;
  };
  // The properties of a node. The fields are computed in the order of their definition.
  struct Member {
    bool bridge = false;  // between a `leave` and an `enter`; see find_bridges
    // An operand of an op with a block scan that the scan does not read, and that no other node
    // reads. For example, top_k is a slice of an argsort, but its scan reads the unsorted array.
    bool passed = false;
    // Whether the node is in the region, and the part that it has there.
    struct Role {
      bool inside = false;
      // The name of the tiled axis in this node (vmap renames it). Empty: the node lacks the axis.
      Name axis = {};
      bool partial = false;  // a sum over the axis in the body of a loop, hence of one chunk
      bool unmade = false;   // `passed`, needs the full axis, and is never computed
      // The scan that computes an op which needs the full axis, chunk by chunk.
      std::optional<BlockScan> turns = {};
    } role = {};
    // The pass in which the node is computed.
    struct Order {
      int stage = -1;  // index of the pass; -1: the node is not computed on a chunk
      int ready = 0;   // number of passes that must finish before the full value is available
      Streamed streamed = {};
      Nodes streams = {};  // for a max: the reductions that are computed with the running max
      Nodes picked = {};   // for positions (argmax, top_k): the gathers at these positions
    } order = {};
    Nodes parts = {};                    // the value on a chunk, one per body
    Nodes carried = {};                  // for a loop along the axis: the carried state
    std::vector<LoopResult> known = {};  // for an op with a running block scan: the state
  };
  const Member& known_of(const Node& n) const {
    static const Member nothing;
    auto i = members_.find(&n);
    return i == members_.end() ? nothing : i->second;
  }
  Member& member(const Node& n) { return members_[&n]; }

  bool enters(const Node&) const;
  // Returns true for an `enter` of this region. Also returns true if the region was entered outside
  // of the body `around`, for boundaries and for slices along other axes of the entered value.
  bool comes_in(const Node&) const;
  bool leaves(const Node&) const;
  // Returns true if x has left the region where `reader` reads it: it reads the full array, not a
  // chunk.
  bool is_out(const NodePtr& x, const Node& reader) const;
  // Returns true if n has an axis with this name and the size of the tiled axis. The result of
  // top_k has an axis with the same name but another size.
  bool has_axis(const Node& n, Name a) const;
  [[noreturn]] void refuse(const Node&, const std::string& why) const;
  // ---- region.cpp: membership, and the pass of each node ----
  void find_bridges();
  bool learn(const NodePtr&);
  void leave_to_the_outside();
  bool in_body(const Node&) const;  // in the body of a loop of the level
  // Returns true if x is computed once per chunk. A reduction over the axis, outside of the loops
  // of the level, is not: it is a result of the loop over the chunks.
  bool on_chunk(const NodePtr& x) const {
    return walks(x) || known_of(*x).role.partial || (x->op == &kLoop && contains(x));
  }
  // Returns the name of the tiled axis in the result of this node or, if the result lacks the axis,
  // in its operands.
  Name name_in(const Node&) const;
  void check(const NodePtr&) const;
  std::optional<Monoid> folds_by(const Node&) const;
  int stage_of(const NodePtr&, bool chunk) const;
  int before(const NodePtr&) const;
  Streamed streamed(const NodePtr&) const;
  // Returns true for a loop along the tiled axis.
  bool goes_along(const Node& loop) const {
    return stepping_.count(loop_of(loop).index[0].get()) > 0;
  }
  bool in_step(const Node&) const;  // in the body of such a loop, at one position
  void check_steps(const Node& loop, Name a) const;
  // Returns the first pass, at or after pass `at`, that may iterate in this direction. Fixes its
  // direction.
  int sweep_towards(bool reverse, int at);
  bool goes_back(int sweep) const;
  void keep_for_later(bool small);
  std::int64_t largest_bytes() const;  // bytes of the largest intermediate of the region
  bool picks(const Node&, Name) const;
  bool is_looked_up(const Node&, Name) const;
  // Returns the block scan of an op that needs the full axis and is computed by a scan over its
  // chunks. Returns null for other nodes.
  const BlockScan* turns(const Node&) const;
  bool makes_by_turns(const NodePtr&);
  // Returns true if n has the axis and carries a state from chunk to chunk: an op with a running
  // block scan, such as a cumulative sum, or a loop along the axis.
  bool goes_on(const Node&) const;
  Nodes needed_by(const NodePtr&) const;  // the nodes from which it is computed on a chunk

  // ---- on_chunk.cpp ----
  Block block(Name a, std::size_t body) const {
    return {a, index_[body], prim::index_chunk(*index_[body])};
  }
  Axes axes_on_chunk(Axes, Name, std::size_t body) const;
  NodePtr part(const NodePtr&, Name, std::size_t body);
  NodePtr made_on_chunk(const NodePtr&, Name, std::size_t body);
  NodePtr loop_on_chunk(const NodePtr&, std::size_t body);
  NodePtr swapped(const NodePtr&, Name) const;
  LoopResult folded(const NodePtr&);
  // The final values after the loops so far: their reductions and stacked results, and the nodes
  // outside of the region that depend on these.
  struct Finals {
    const Node* around;
    // `of` maps a node to its final value. `parts` maps the chunk of a stacked node to a slice of
    // the stacked value, which later loops read rather than rematerialize.
    Rewrite of = {}, parts = {};
    std::unordered_set<const Node*> same = {};  // nodes that read none of these, and are unchanged
    Nodes operator()(const Nodes& xs) { return substitute(xs, of, around, &same); }
  };
  NodePtr finished(const NodePtr& fold, const NodePtr& result, Finals&);
  void finish(Loop&, Finals&) const;  // the values of a loop, which read final values

  // ---- streaming.cpp: results that are carried between iterations ----
  using Parts = std::unordered_map<const Node*, NodePtr>;
  NodePtr steps_on_chunk(const NodePtr& loop, std::size_t body);
  void stream_steps(Loop&, Nodes& of, const NodePtr& loop);
  void stream(Loop&, Nodes& of, const NodePtr& top);
  struct RunningMax;  // one iteration of the running max
  NodePtr streamed_part(const NodePtr&, const Node* top, const RunningMax&, bool hides,
                        Parts& memo);
  // Adds the results of a block scan, which runs in the direction of the loop.
  void stream_turns(Loop&, Nodes& of, const NodePtr&);
  NodePtr running_on_chunk(const NodePtr&, std::size_t body);
  std::vector<LoopResult> known_by(const BlockScan&) const;
  NodePtr turn_of(const BlockScan&, std::vector<LoopResult>& known, std::size_t body, bool reverse);

  Attr key_;
  const Node* around_;
  // true: the reader of a barrier is in a later pass than the node for which the barrier waits.
  // Gradients then have passes of their own (ChunkForm::recompute).
  const bool waits_;
  bool reverse_ = false, empty_ = true;
  Axis axis_;
  Nodes roots_, level_, index_;
  std::unordered_map<const Node*, Member> members_;
  std::unordered_set<const Node*> inner_;     // indices of the loops of the level
  std::unordered_set<const Node*> stepping_;  // those of loops along the tiled axis
  // From a carry to its loop and the index of its result.
  std::unordered_map<const Node*, std::pair<NodePtr, std::size_t>> owner_;
  // Nodes by the pass that computes them. folds_: reductions. stacks_: nodes whose chunks are
  // stacked along the axis. steps_: nodes that carry a state from chunk to chunk (goes_on).
  std::map<int, Nodes> folds_, stacks_, steps_;
  // Passes whose direction a node of steps_ determines. true: last chunk first.
  std::map<int, bool> towards_;
  // From a node outside of the region and its name of the axis to its chunks, one per body.
  std::map<std::pair<const Node*, const NameData*>, Nodes> outer_;
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
