// The region of a chunked_reduce along one axis: what lies between the borders `enter` and `leave`,
// and how it is cut into the turns of loops. What keeps the axis is made chunk by chunk; what folds
// it away becomes a result of a loop; what follows a fold stays outside, on the final value. Loops
// come in sweeps: what needs a final value of one is in the next.
#pragma once
#include <algorithm>
#include <map>
#include <optional>

#include "compile/chunk/refusal.h"
#include "ops/block_scan.h"
#include "transforms/chunked.h"
#include "transforms/rewrite.h"

namespace haliax {

struct RegionCut {         // how a region is cut
  std::int64_t chunk = 1;  // positions a turn
  bool keep = true;        // small values that a later sweep reads are kept, not rematerialised
  bool reverse = false;    // the last chunk first
  bool of_scores = false;  // see Loop
  std::string form = {}, why = {};  // for reports
};

inline bool holds(const Nodes& list, const NodePtr& n) {
  return std::find(list.begin(), list.end(), n) != list.end();
}

class Region {
 public:
  // `level`: the nodes among which the region lies, inputs first, the bodies of their loops
  // included: all below the roots, or what varies with the index of the body that the roots are in.
  Region(const Attr& key, const Nodes& roots, const Nodes& level, const Node* around = nullptr);
  bool empty() const { return empty_; }
  const Axis& axis() const { return axis_; }
  bool contains(const NodePtr& n) const { return n && known_of(*n).role.inside; }
  bool walks(const NodePtr& n) const { return known_of(*n).role.axis || comes_in(*n); }
  // How many loops it takes, one after another. Raises for what cannot be cut, by name.
  int sweeps();
  Nodes folds() const;  // what those loops sum, or take the greatest of: after `sweeps`
  // Is x, which lies outside, point by point made of less than itself (a one-hot of ids; a mask, a
  // draw or a bias by position)? Then it is made on each chunk, and never whole.
  bool grows(const NodePtr& x) const { return grows(x, axis_.name); }
  bool grows(const NodePtr& x, Name a) const;
  // Bytes of the sums that are wider while they are carried from turn to turn than they are in the
  // end.
  std::int64_t wide_sums();
  // What a later sweep reads of the folds of earlier ones.
  Nodes between();
  Nodes without_waits() const;  // the roots: what lies outside need not wait for what lies inside
  // the roots, none of which waits so, with loops in place of the region
  Nodes cut(const RegionCut&);
  const Nodes& index() const { return index_; }  // of those loops: one for each body

 private:
  // Of a node that is linear in exp(x - max x): it is made with the max so far.
  struct Streamed {
    const Node* top = nullptr;
    int before = 0;
    bool guarded = true;  // else it is NaN where the max is not finite
    bool hides = false;   // but a choice may drop that NaN, as one by the mask of the scores does
  };
  // What is known of a node.
  struct Member {
    bool bridge = false;  // lies between a leave and an enter
    // operand of an op by turns that does not read it (see unmade), nor does another
    bool passed = false;
    struct Role {  // what lies inside is found out first,
      bool inside = false;
      // the walked axis, as it is called there (vmap renames it); none: it lacks it
      Name axis = {};
      bool partial = false;  // a sum over the axis in the body of a loop: of a chunk only
      bool unmade = false;   // such a one that has the axis (top_k's argsort): it is made nowhere
      std::optional<BlockScan> turns = {};  // of an op that needs the axis whole, but goes by turns
    } role = {};
    struct Order {     // then the sweep in which each is made,
      int stage = -1;  // of what is made on a chunk: its loop
      int ready = 0;   // of all: the loops that must be done before
      Streamed streamed = {};
      Nodes streams = {};  // of a max: the folds that are made with it
      Nodes picked = {};   // of positions (argmax, top_k): what is picked there
    } order = {};
    Nodes parts = {};                    // then the part of it that each body makes,
    Nodes carried = {};                  // and what it carries from turn to turn, as a loop
    std::vector<LoopResult> known = {};  // or as an op
  };
  const Member& known_of(const Node& n) const {
    static const Member nothing;
    auto i = members_.find(&n);
    return i == members_.end() ? nothing : i->second;
  }
  Member& member(const Node& n) { return members_[&n]; }

  bool enters(const Node&) const;
  bool comes_in(const Node&) const;  // or was entered outside of this body, and sliced there
  bool leaves(const Node&) const;
  // left already, where it is read: not what a chunk makes
  bool is_out(const NodePtr& x, const Node& reader) const;
  // of the walked size: what top_k leaves has the name alone
  bool has_axis(const Node& n, Name a) const;
  [[noreturn]] void refuse(const Node&, const std::string& why) const;
  // ---- region.cpp: what lies inside, and in which sweep ----
  void find_bridges();
  bool learn(const NodePtr&);
  void leave_to_the_outside();
  bool in_body(const Node&) const;
  bool on_chunk(const NodePtr& x) const {
    return walks(x) || known_of(*x).role.partial || (x->op == &kLoop && contains(x));
  }
  Name name_in(const Node&) const;  // what the axis is called where this node reads it
  void check(const NodePtr&) const;
  std::optional<Monoid> folds_by(const Node&) const;
  int stage_of(const NodePtr&, bool chunk) const;
  int before(const NodePtr&) const;
  Streamed streamed(const NodePtr&) const;
  // a loop over the walked axis
  bool goes_along(const Node& loop) const {
    return stepping_.count(loop_of(loop).index[0].get()) > 0;
  }
  bool in_step(const Node&) const;  // made at one position, in the body of such a loop
  void check_steps(const Node& loop, Name a) const;
  int sweep_towards(bool reverse, int at);  // the first from `at` on that goes this way
  bool goes_back(int sweep) const;
  void keep_for_later(bool small);
  std::int64_t largest_bytes() const;  // of the values inside
  bool picks(const Node&, Name) const;
  bool is_looked_up(const Node&, Name) const;
  // of an op that needs the axis whole, but goes by turns; null: others
  const BlockScan* turns(const Node&) const;
  bool makes_by_turns(const NodePtr&);
  // from chunk to chunk, making what has the axis: such an op, a loop along it
  bool goes_on(const Node&) const;
  Nodes needed_by(const NodePtr&) const;  // to make it on a chunk

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
  // What is known behind the loops so far: of what they fold and stack, and so of what lies
  // outside.
  struct Finals {
    const Node* around;
    // parts: of what is stacked, which later loops read, and do not make again
    Rewrite of = {}, parts = {};
    std::unordered_set<const Node*> same = {};  // what reads none of it, and stays
    Nodes operator()(const Nodes& xs) { return substitute(xs, of, around, &same); }
  };
  NodePtr finished(const NodePtr& fold, const NodePtr& result, Finals&);
  void finish(Loop&, Finals&) const;  // the values of a loop, which read what is known

  // ---- streaming.cpp: results that are carried from turn to turn ----
  using Parts = std::unordered_map<const Node*, NodePtr>;
  NodePtr steps_on_chunk(const NodePtr& loop, std::size_t body);
  void stream_steps(Loop&, Nodes& of, const NodePtr& loop);
  void stream(Loop&, Nodes& of, const NodePtr& top);
  struct Turn;  // of the running max
  NodePtr streamed_part(const NodePtr&, const Node* top, const Turn&, bool hides, Parts& memo);
  void stream_turns(Loop&, Nodes& of, const NodePtr&);  // in the order of the loop
  NodePtr running_on_chunk(const NodePtr&, std::size_t body);
  std::vector<LoopResult> known_by(const BlockScan&) const;
  NodePtr turn_of(const BlockScan&, std::vector<LoopResult>& known, std::size_t body, bool reverse);

  Attr key_;
  const Node* around_;
  // do barriers? Then gradients have sweeps of their own: ChunkForm::recompute
  const bool waits_;
  bool reverse_ = false, empty_ = true;
  Axis axis_;
  Nodes roots_, level_, index_;
  std::unordered_map<const Node*, Member> members_;
  std::unordered_set<const Node*> inner_;     // indices of the level's loops
  std::unordered_set<const Node*> stepping_;  // those of them that go along the walked axis
  // of a carry: its loop, which result
  std::unordered_map<const Node*, std::pair<NodePtr, std::size_t>> owner_;
  // by sweep; steps_: what goes on from chunk to chunk
  std::map<int, Nodes> folds_, stacks_, steps_;
  std::map<int, bool> towards_;  // sweeps whose direction those decide: reversed?
  // of a node outside, by what it calls the axis: its parts
  std::map<std::pair<const Node*, const NameData*>, Nodes> outer_;
};

// The regions of a call, along each walked axis that there is, in the order given.
struct Regions {
  std::vector<ChunkKey> keys;
  std::vector<Region> of;
  Regions(const ChunkKey& call, const Nodes& roots, const Nodes& level);
  bool contain(const NodePtr&) const;
};

}  // namespace haliax
