// Where everything of a Program lies.
//
// In: a Program whose steps speak of slots, the size and the home of each slot, and the scratch
// that the device wants for each step. Out: the same steps, less the copies that nobody needs and
// the products that reuse_matmuls keeps (whose loops it divides in two), with slots that share
// memory and an offset for each slot of the arena; arena_bytes, peak_bytes and at_peak are exact.
// Always: two slots overlap only if their lives do not, or if one is written over the other place
// by place; what a donated argument becomes is said in Program::donated; what a gather or a ring
// brought shares memory with nothing that is kept.
#pragma once
#include <optional>
#include <string>

#include "program/program.h"

namespace haliax {

// Where everything lies: in-place updates, donated arguments, and offsets in one arena.
// optional: off, each slot has memory of its own throughout.
void plan_memory(program::Program&, const std::vector<bool>& donated, bool optional, bool verify);
// Bytes of the arena that are in use while each step runs, behind plan_memory: in order, loops turn
// by turn, or, where that were more than 4096 steps, one turn of each.
std::vector<std::int64_t> arena_in_use(const program::Program&);
std::int64_t argument_bytes(const program::Program&);
// Of an argument that was donated, and that no result took the place of, behind plan_memory: the
// line that stands in the way, and what would mend it.
std::string why_not_donated(const program::Program&, int argument);
// The program with products kept from loop to loop in memory that lies idle, where there are any;
// before plan_memory.
std::optional<program::Program> reuse_matmuls(const program::Program&);
// Starts collectives where their operands are there, and finishes each before what touches its
// arrays: in the next turn of a loop, if nothing does in this one; and gathers a turn ahead. Before
// plan_memory, as calls that go on hold their memory.
void overlap(program::Program&);
// Of each call that goes on beside the work a line for people: what it is, and what waits for it.
std::vector<std::string> overlap_report(const program::Program&);
// Says which loops run in lanes (program::Loop::lanes), as the device wants it; before it is asked
// for scratch. workers: as there.
void assign_parallel_slots(program::Program&, const program::Device&, int workers);
// Raises if turns of a loop with lanes touch each other's memory.
void check_parallel_slots(const program::Program&, const char* after);
// HALIAX_POISON=1: fills float arrays that a gather brought with NaN behind their last reader: what
// reads them later is found.
void poison(program::Program&);
// Raises if a gathered value (Slot::gathered) is kept: as a result, as the carry of a loop, or by a
// loop for later.
void check_gathered(const program::Program&);

// HALIAX_NANS=1: behind each step that computes, one that raises if it has made NaN or inf, and
// names op, line and module.
void check_finite(program::Program&);

// The legality check of a Program; raises. Slots are written before they are read, and results in
// the end, as far as what each step reaches at least and at most tells; views lie inside of their
// slots and count turns of loops around them, ids lie in their tables, and no argument is written
// over that was not `donated`; where memory is `placed`, offsets are aligned and lie inside of the
// arena, and nothing is read that something else was written over.
void verify(const program::Program&, const char* after, bool placed,
            const std::vector<bool>& donated = {});
// Slots that share memory (Slot::alias) hold what each would hold alone: no slot is read when
// another of its memory was written later, and none is written over what earlier turns made of
// another, but in a stripe of its own turn. The copies that sharing makes needless stand in the
// program; raises a VerifyError.
void verify_shared(const program::Program&);
// All devices of a mesh make the same calls in the same order, of arrays that fit each other: what
// a group sums, or puts together of blocks, has one size and dtype, and what a device sends is what
// the other one takes; raises.
void verify_collectives(const std::vector<const program::Program*>&);
// Those calls, a line each.
std::string collectives_text(const program::Program&);

}  // namespace haliax
