// A recursive lock that survives fork.
#include "devices/trace_lock.h"

#include "base/fork.h"

namespace haliax {
namespace {

// Threads are numbered. Numbers in a child process are larger than all numbers in its parent at the
// time of the fork.
constinit std::atomic<std::uint32_t> last{0}, of_parent{0};
thread_local std::uint32_t mine = 0, before_fork = 0;

const bool trace_lock_forks = at_fork({kForkRest, nullptr, nullptr, [] {
                                         of_parent = last.load();
                                         before_fork = mine;
                                         mine = ++last;
                                       }});

}  // namespace

bool TraceLock::lock() {
  if (mine == 0) mine = ++last;
  auto now = owner_.load(std::memory_order_acquire);
  if (now != 0 && (now == mine || now == before_fork)) {
    ++depth_;
    return false;
  }
  for (;;) {
    bool lost = now != 0 && now <= of_parent.load(std::memory_order_relaxed);
    if (now != 0 && !lost) {
      owner_.wait(now);
      now = owner_.load(std::memory_order_acquire);
    } else if (owner_.compare_exchange_weak(now, mine, std::memory_order_acq_rel)) {
      depth_ = 1;
      return lost;
    }
  }
}
void TraceLock::unlock() {
  if (--depth_ > 0) return;
  owner_.store(0, std::memory_order_release);
  owner_.notify_all();
}

}  // namespace haliax
