// Passes over loops. early_exit.h is not a pass: it finds flags by which iterations are skipped.
//
// In      a graph without region boundaries (except merge_carried), with traced and tiled loops.
// Out     the same values from fewer loops, results and arrays.
// Always  the operands of a loop are the outside values that its bodies read, and the start values
//         of its carries (make_loop finds them). Results of a loop are identified by their index,
//         so a pass that changes results replaces all of them. The order of iterations and of the
//         terms of a sum is preserved, so results are bitwise identical, except where a sum starts
//         from the array that it was added to.
#pragma once
#include "transforms/rewrite.h"

namespace haliax {

Nodes drop_dead_results(Nodes roots);  // drops results and carries that are not read
// Drops effects only, such as prints that have run already.
Nodes drop_dead_effects(Nodes roots);
// Merges loops over one index, if the later one reads no final result of the other.
Nodes merge_loops(Nodes roots);
// Merges only loops with the same carries: a loop, and the loop that saves the residuals of its
// gradient.
Nodes merge_carried(Nodes roots);
Nodes accumulate_sums(Nodes roots);     // loop sum + array: the sum starts from the array
Nodes accumulate_updates(Nodes roots);  // array + scatter into zeros: scatters into the array
// Carries the parts of a concatenation in place of the concatenation.
Nodes split_carries(Nodes roots);

}  // namespace haliax
