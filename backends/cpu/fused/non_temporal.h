// Stores that bypass the caches, for results that do not fit there. Other threads read these
// results after a locked instruction of the thread pool, which orders such stores before it.
#pragma once
#include <cstddef>
#include <cstdint>

namespace haliax::cpu {

// Measured with AVX-512: from this size on, non-temporal stores are faster (by 1.2 times at 32 MiB
// and 2 times at 64 MiB), also with a step that reads the result afterwards.
constexpr std::int64_t fewest_non_temporal_bytes = std::int64_t(32) << 20;
constexpr std::int64_t fewest_bytes_of_run = 512;  // shorter runs share many cache lines

// Copies bytes with non-temporal stores, except for cache lines that are not copied in full.
void copy_non_temporal(std::byte* to, const std::byte* from, std::int64_t bytes);

}  // namespace haliax::cpu
