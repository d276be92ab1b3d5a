// Facts about fused steps, with which the backends plan their code.
#pragma once
#include <span>

#include "program/program.h"

namespace haliax::program {

// Returns the indices of the instructions that are operands.
std::span<const int> operands(const Instr&);
// Returns the monoid of a reduction, or of a store that combines with memory. For argmax and
// argmin: the monoid of the value whose position they return.
Monoid monoid_of(Code);

// Returns true if no inner dim has size 0.
bool has_inner_points(const Fused&);
// Returns true per instruction if a store depends on it. Without inner elements, inner stores write
// nothing, and reductions read nothing.
std::vector<bool> needed_instructions(const Fused&);
// Returns the marked instructions and all instructions that they depend on.
std::vector<bool> with_operands(const Fused&, std::vector<bool> marked);

// Returns a level per instruction: the maximum number of reductions that run one after another up
// to and including the instruction. For example, the levels of m = max(x), exp(x - m) and
// sum(exp(x - m)) are 1, 1 and 2. An instruction of level p runs in the pass over the inner
// elements after the one that computes the reductions of level p.
std::vector<int> reduction_levels(const Fused&);

// Returns the strides of a load, a store or an iota along all dims of the step. An outer
// instruction has stride 0 along inner dims. Returns an empty list for other instructions.
Dims access_strides(const Fused&, const Instr&);
// Returns true if a store writes to an element more than once, so that the order of positions
// matters.
bool writes_repeatedly(const Fused&);
// Returns true if the step has no inner dims and no reduction, and if no store overlaps the memory
// of another instruction's load or store: its elements may be computed in any order. `memory` holds
// the address of each slot; an unknown address (null) yields false.
bool points_are_independent(const Fused&, const Program&, const std::vector<std::byte*>& memory);

// Drops dims of size 1, and merges adjacent dims where all strides allow it. `outer` is the number
// of outer dims, which do not merge with inner dims. Each list of strides is along the dims, or
// empty. For example, dims (2, 3, 4) with the strides (12, 4, 1) and (0, 0, 1) become (6, 4) with
// the strides (4, 1) and (0, 1).
void merge_dims(Dims& dims, std::size_t& outer, std::vector<Dims>& strides);

}  // namespace haliax::program
