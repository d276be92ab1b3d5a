// One pool of threads for the whole process. Work comes as numbered blocks whose cut depends on the
// problem only, so that results have the same bits for any number of threads.
#pragma once
#include <cstdint>

#include "haliax/where.h"

namespace haliax {

// 0: as many as usual. Waits for work that is running; raises inside of it, and for a count that
// cannot be.
void set_threads(int count, SourceLocation);
int threads();
// what is usual: as HALIAX_THREADS says, or it raises, or else all cores
int default_threads(SourceLocation = {});

// What a block gets: its number, and which worker runs it (0 is the caller), for scratch of its
// own.
using BlockTask = void (*)(void* context, std::int64_t block, int worker);

// Runs task for every block in [0, blocks), fewer than 2^32, and returns when all are done. At most
// `workers` threads take part. Each has a share of its own, the same part of [0, blocks) each time,
// so that what one step left in a core's cache the next one finds there; who is done helps the
// others from the end of theirs. A pool that is busy with the work of another caller (or a nested
// call) leaves it all to the caller, in order. Tasks must not throw.
void parallel_for(std::int64_t blocks, int workers, BlockTask task, void* context);

// The same for a callable as f(block, worker). Makes no allocation.
template <class F> void parallel_for(std::int64_t blocks, int workers, const F& f) {
  parallel_for(
      blocks, workers,
      [](void* context, std::int64_t block, int worker) {
        (*static_cast<const F*>(context))(block, worker);
      },
      const_cast<F*>(&f));
}

}  // namespace haliax
