// Passes over loops.
//
// In: a graph without borders of chunks; loops as they were traced or cut. Out: the same values from fewer loops, results and arrays.
// Always: a loop's operands are what its bodies read from outside and what its carries start from (make_loop finds them); results of one
// loop are told apart by number, so whoever changes results puts others in place of all of them; the order of turns, and of the terms of a
// sum, is kept, so the bits are.
#pragma once
#include "transforms/rewrite.h"

namespace haliax {

Nodes drop_dead_results(Nodes roots);    // results and carries that nobody reads
Nodes merge_loops(Nodes roots);          // loops over one index, of which the later needs no final result of the other
Nodes accumulate_folds(Nodes roots);     // sum over turns + array: the sum starts from the array
Nodes accumulate_updates(Nodes roots);   // array + scatter into zeros: scattered into the array
NodePtr replace_loop(const NodePtr& old, Loop by, Rewrite&);   // result by result; `by` may have more
bool depends_on(const NodePtr&, const NodePtr& goal);

}  // namespace haliax
