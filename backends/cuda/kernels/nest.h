// A loop with parallel slots (program::Loop) as one kernel. A block of threads runs an iteration of
// the loop and all loops nested in it, step by step. Values that live within an iteration are
// stored in the shared memory of the block. Values that do not fit are stored in a parallel slot of
// the arena, one per block.
#pragma once
#include "kernel_source.h"

namespace haliax::cuda {

// Returns the result of Device::parallel_slots: 1 if all values of an iteration certainly fit into
// shared memory; 0 if separate steps are faster, or a step cannot run inside a kernel.
int nest_parallel_slots(const program::Step& loop, std::int64_t iterations,
                        std::int64_t parallel_slot_bytes);
// shared_limit: bytes of shared memory that a block may use. marks: each block records the element
// of Launch::parts that it runs.
Launch nest_launch(const program::Step& loop, const program::Program&, std::int64_t shared_limit,
                   bool marks = false);
// Describes a failed nest in an error: the op and line of each step that some block was running, or
// of the first matmul if there are no marks.
std::string failed_part(const Launch&, const int* marks);
inline constexpr double kMaxParallelSlotBytes = 5 << 18;  // Machine::max_parallel_slot_bytes
std::int64_t shared_limit_of(int sm);  // bytes of shared memory per block on this architecture

}  // namespace haliax::cuda
