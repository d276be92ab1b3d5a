// The threads of one block as fibers on one host thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace haliax::cuda {

// Must match device/host.h.
struct SimulatedThread {
  unsigned x, block, threads, blocks;
  unsigned char* shared;
  void (*wait_for_block)();
  unsigned long long (*from_lane)(unsigned long long value, int lane);
};

// Runs `thread` for each thread of the block until all have finished; they may synchronize. `at`:
// the state in which a thread finds its index. `seed` determines the order of execution. Raises an
// error if threads wait for a synchronization that cannot complete.
void run_block(SimulatedThread& at, const std::function<void()>& thread, std::uint64_t seed);

}  // namespace haliax::cuda
