// Distribution of blocks over threads: each block runs once, on the worker whose share it is unless
// that worker is late.
#include "base/thread_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/threads.h"

TEST_CASE("thread pool: every block is run once, for any number of blocks and workers") {
  Threads four(4);
  for (std::int64_t blocks = 0; blocks < 40; ++blocks)
    for (int workers = 1; workers < 6; ++workers) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(blocks));
      std::atomic<bool> known = true;
      haliax::parallel_for(blocks, workers, [&](std::int64_t block, int worker) {
        ++runs[static_cast<std::size_t>(block)];
        if (worker < 0 || worker >= workers) known = false;
      });
      CHECK(known.load());
      for (auto& n : runs) REQUIRE(n.load() == 1);
    }
}

TEST_CASE("thread pool: a worker starts with its own share, which is the same each time") {
  Threads two(2);
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::atomic<int> begun = 0;
    std::atomic<std::int64_t> first[2] = {-1, -1};
    haliax::parallel_for(10, 2, [&](std::int64_t block, int worker) {
      if (first[worker] >= 0) return;
      first[worker] = block;
      // Each block waits until both have started.
      for (++begun; begun.load() < 2;) std::this_thread::yield();
    });
    REQUIRE(first[0].load() == 0);
    REQUIRE(first[1].load() == 5);
  }
}
