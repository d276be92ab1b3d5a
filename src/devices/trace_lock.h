// A lock that is held for long, while a function of the user's is traced: again by the same thread,
// and in a child that forks meanwhile it is free, as who had it is not there.
#pragma once
#include <atomic>
#include <cstdint>

namespace haliax {

class TraceLock {
 public:
  // True: who had it was lost in a fork, and has left its work as it was.
  bool lock();
  void unlock();

 private:
  std::atomic<std::uint32_t> owner_{0};  // a thread's number; 0: nobody
  int depth_ = 0;
};

}  // namespace haliax
