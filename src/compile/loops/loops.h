// Passes over loops.
//
// In: a graph, without borders of chunks but for merge_carried; loops as they were traced or cut.
// Out: the same values from fewer loops, results and arrays. Always: a loop's operands are what its
// bodies read from outside and what its carries start from (make_loop finds them); results of one
// loop are told apart by number, so whoever changes results puts others in place of all of them;
// the order of turns is kept, and of the terms of a sum, so the bits are, but where a sum starts
// from the array that it was added to.
#pragma once
#include "transforms/rewrite.h"

namespace haliax {

Nodes drop_dead_results(Nodes roots);  // results and carries that nobody reads
// of these the effects alone: what has been printed is not printed again
Nodes drop_dead_effects(Nodes roots);
// loops over one index, of which the later needs no final result of the other
Nodes merge_loops(Nodes roots);
// of these those that carry the same: a loop, and what its gradient keeps of it
Nodes merge_carried(Nodes roots);
Nodes accumulate_sums(Nodes roots);     // sum over turns + array: the sum starts from the array
Nodes accumulate_updates(Nodes roots);  // array + scatter into zeros: scattered into the array
bool depends_on(const NodePtr&, const NodePtr& goal);
// which result of the loop it is: a new one, if none is the same
std::size_t add_result(Loop&, const LoopResult&);

// What a turn makes of one result: what is carried on (`carry`: as it was before), or (carry null)
// what is added to it.
struct IterationResult {
  NodePtr value, carry;
};
// Of a turn of some index, which makes a chunk. Without axes.
struct IterationFlags {
  // False where it would leave all results as they are, since a mask is false throughout and what
  // stands in place of scores then changes nothing: the maximum so far is no less, and exp of what
  // is left is 0. Null: not known.
  NodePtr changes = {};
  // the masks: false where one is false throughout, whatever was made so far
  NodePtr may_be_true = {};
};
IterationFlags iteration_flags(const std::vector<IterationResult>&, const Node* index,
                               const Axis& chunk);
// The value of a turn of this index, made without walking tiles of other axes. Null: it is not made
// so.
NodePtr untiled(const NodePtr& value, const Node* index);
// What a turn makes, in parts that have no product in common and end by different masks: two heads
// in one walk, each with its own tokens.
struct IterationPart {
  // Without axes: where it is false, all of this is 0, since it stands under masks that are false
  // throughout. Null where that cannot be known, or not at a small price.
  NodePtr flag = {};
  // of which result; of a sum what is added to it, one after another
  std::vector<std::pair<std::size_t, NodePtr>> values = {};
  // The turns may come in any order, and those of the flag come first. Then, in a second walk,
  // those where this holds: they lie under masks that are false, and change something all the same,
  // as where a query sees nothing. Null: there is one walk.
  NodePtr deferred = {};
};
IterationPart unsplit_iteration(const Loop&,
                                std::size_t body);  // all that it makes, without a flag
// by loop: of each of its bodies
using IterationParts = std::unordered_map<const Node*, std::vector<std::vector<IterationPart>>>;
// may_end off: one part each, no flag
IterationParts split_iterations(const Nodes& roots, bool may_end);
// for people: of loops below these roots
std::string to_string(const IterationParts&, const Nodes& roots);

}  // namespace haliax
