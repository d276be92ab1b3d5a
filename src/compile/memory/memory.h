// Memory planning of a Program.
//
// In      a Program whose steps refer to slots, the size and the home of each slot, and the scratch
//         that the device requests for each step.
// Out     the same steps without redundant copies and without the matmuls that reuse_matmuls saves
//         (it splits their loops in two). Slots share memory, and each slot of the arena has an
//         offset. arena_bytes, peak_bytes and at_peak are exact.
// Always  two slots overlap only if their live ranges are disjoint, or if one is written over the
//         other element by element. Program::donated lists the results that replace donated
//         arguments. Values from a gather or a ring share memory only with other such values.
#pragma once
#include <optional>
#include <string>

#include "program/program.h"

namespace haliax {

// ---- planning ----
// Chooses in-place updates, donated arguments, and the offsets in one arena. share_memory = false:
// each slot has memory of its own throughout. checks: calls verify_shared.
void plan_memory(program::Program&, const std::vector<bool>& donated, bool share_memory,
                 bool checks);
// Returns the Program with matmuls saved from loop to loop in idle memory, if there are any. Runs
// before plan_memory.
std::optional<program::Program> reuse_matmuls(const program::Program&);
// Starts collectives once their operands are computed, and finishes each before the first access to
// its arrays. The finish may be in the next iteration of a loop. Prefetches gathers one iteration
// ahead. Runs before plan_memory, since in-flight collectives hold their memory.
void overlap(program::Program&);
// Sets program::Loop::parallel_slots as the device requests, before its scratch is queried.
// workers: see CompileOptions.
void assign_parallel_slots(program::Program&, const program::Device&, int workers);

// ---- reports ----
// Returns the bytes of the arena that are in use while each step runs, after plan_memory. Steps are
// in execution order: all iterations of loops, or one iteration of each if there were more than
// 4096 steps.
std::vector<std::int64_t> arena_in_use(const program::Program&);
std::int64_t argument_bytes(const program::Program&);
// Returns the reason why no result replaced a donated argument, after plan_memory: the step that
// prevents it, and how to change the program.
std::string why_not_donated(const program::Program&, int argument);
// Returns a report line per collective that runs concurrently with work: the collective, and the
// step that waits for it.
std::vector<std::string> overlap_report(const program::Program&);
// Returns the collectives of a Program, one line each.
std::string collectives_text(const program::Program&);

// ---- checks ----
// Checks the legality of a Program. Raises if a check fails.
//
// - Slots are written before they are read, and results are written, as far as the least and the
//   greatest extent of each step show.
// - Views are inside of their slots and only refer to enclosing loops; ids are inside of their
//   tables.
// - No argument is overwritten unless it is `donated`.
// - If memory is `placed`: offsets are aligned and inside of the arena, and no value is read after
//   another value was written over it.
void verify(const program::Program&, const char* after, bool placed,
            const std::vector<bool>& donated = {});
// Checks that each slot with shared memory (Slot::alias) has the value that it would have in memory
// of its own. No slot is read after another slot of its memory was written. No slot is written over
// values of earlier iterations, except in the stripe of its own iteration. Redundant copies must be
// in the Program. Raises a VerifyError.
void verify_shared(const program::Program&);
// Checks that all devices of a mesh run the same collectives in the same order, on matching arrays.
// Arrays that a group sums or concatenates have one size and dtype, and each box that a device
// sends matches the box that is received. Raises if a check fails.
void verify_collectives(const std::vector<const program::Program*>&);
// Raises if iterations of a loop with parallel slots access each other's memory.
void check_parallel_slots(const program::Program&, const char* after);
// Raises if a gathered value (Slot::gathered) is retained: as a result, as the carry of a loop, or
// by a loop for later steps.
void check_gathered(const program::Program&);
// HALIAX_NANS=1: adds a check after each step that computes. The check raises if the step produced
// NaN or infinity, and names the op, the source line and the module.
void check_finite(program::Program&);
// HALIAX_POISON=1: fills gathered float arrays with NaN after their last reader, which reveals
// later reads.
void poison(program::Program&);

}  // namespace haliax
