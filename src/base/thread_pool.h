// One thread pool for the process. A job is a sequence of numbered blocks. Blocks depend only on
// the problem, so results are bitwise identical for any number of threads.
#pragma once
#include <cstdint>

#include "haliax/where.h"

namespace haliax {

// Sets the number of threads; 0 selects the default. Waits for running work. Raises if a task calls
// it, or if the count is out of range.
void set_threads(int count, SourceLocation);
int threads();
// Returns the default number of threads: HALIAX_THREADS if it is set, or else all cores. Raises if
// the value of HALIAX_THREADS is invalid.
int default_threads(SourceLocation = {});

// A task receives the number of a block and of the worker that runs it, which selects scratch
// memory. Worker 0 is the calling thread.
using BlockTask = void (*)(void* context, std::int64_t block, int worker);

// Runs `task` for every block in [0, blocks), with blocks < 2^32, and returns when all are
// finished. At most `workers` threads take part. Each thread starts with a fixed share of [0,
// blocks), so that data of the previous step is still in the cache of the same core. A thread that
// finishes early steals blocks from the end of other shares. If the pool is busy with the work of
// another caller, or if the call is nested, the caller runs all blocks itself, in order. Tasks must
// not throw.
void parallel_for(std::int64_t blocks, int workers, BlockTask task, void* context);

// The same for a callable f(block, worker). Allocates nothing.
template <class F> void parallel_for(std::int64_t blocks, int workers, const F& f) {
  parallel_for(
      blocks, workers,
      [](void* context, std::int64_t block, int worker) {
        (*static_cast<const F*>(context))(block, worker);
      },
      const_cast<F*>(&f));
}

}  // namespace haliax
