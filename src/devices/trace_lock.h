// A lock that is held for a long time, while a user's function is traced. It is recursive. In a
// forked child it counts as free if its owner is a thread that the child lacks.
#pragma once
#include <atomic>
#include <cstdint>

namespace haliax {

class TraceLock {
 public:
  // Acquires the lock. Returns true if the previous owner was lost in a fork, in the middle of its
  // work.
  bool lock();
  void unlock();

 private:
  std::atomic<std::uint32_t> owner_{0};  // number of a thread; 0: free
  int depth_ = 0;
};

}  // namespace haliax
