// A loop with lanes (program::Loop) as one kernel: a block of threads makes a turn of all the loops
// that it nests, step after step. What lives within a turn lies in the block's shared memory; what
// does not fit there lies in a lane of the plan, one for each block.
#pragma once
#include "kernel_source.h"

namespace haliax::cuda {

// What Device::lanes says: 1 where all of a turn surely fits into shared memory, 0 where steps one
// by one are faster, or not all are of a kind that a kernel can hold.
int nest_parallel_slots(const program::Loop&, std::int64_t turns, std::int64_t parallel_slot_bytes);
// near_bytes: shared memory that a block may have. marks: each block says which of Launch::parts it
// makes.
Launch nest_launch(const program::Loop&, const program::Program&, std::int64_t shared_limit,
                   bool marks = false);
// As an error names a nest that has failed: op and line of each of its steps that a block was at,
// or of its first product.
std::string failed_part(const Launch&, const int* marks);
inline constexpr double kMaxParallelSlotBytes =
    5 << 18;                           // bytes: what a turn may hold (Machine::lane)
std::int64_t shared_limit_of(int sm);  // that, of a card of this architecture

}  // namespace haliax::cuda
