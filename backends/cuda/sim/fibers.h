// The threads of one block, on one thread of the host.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace haliax::cuda {

// As device/host.h has it.
struct SimulatedThread {
  unsigned x, block, threads, blocks;
  unsigned char* shared;
  void (*wait_for_block)();
  unsigned long long (*from_lane)(unsigned long long value, int lane);
};

// Runs `thread` for each of the block's threads, until all are done; they may wait for each other.
// `at`: where they look up which one they are. The order in which they go on is drawn by `seed`.
// Raises where some wait for what never comes.
void run_block(SimulatedThread& at, const std::function<void()>& thread, std::uint64_t seed);

}  // namespace haliax::cuda
