// A pool of reusable objects, such as memory or the state of a run. Concurrent callers take one
// object each and put it back for later callers. The pool grows to the largest number of objects in
// use at once.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace haliax {

// One lock for all pools: it is rarely acquired, and it must be held across a fork.
extern std::mutex object_pool_lock;

template <class T> class ObjectPool {
 public:
  ObjectPool() = default;
  ObjectPool(ObjectPool&& o) noexcept : one_(o.one_.exchange(nullptr)), more_(std::move(o.more_)) {}
  ObjectPool& operator=(ObjectPool&& o) noexcept {
    delete one_.exchange(o.one_.exchange(nullptr));
    more_ = std::move(o.more_);
    return *this;
  }
  ~ObjectPool() { delete one_.load(); }
  // Returns a pooled object, or null if all are in use.
  std::unique_ptr<T> take() {
    if (auto* got = one_.exchange(nullptr, std::memory_order_acquire))
      return std::unique_ptr<T>(got);
    std::lock_guard hold(object_pool_lock);
    if (more_.empty()) return nullptr;
    auto got = std::move(more_.back());
    more_.pop_back();
    return got;
  }
  // Returns an object to the pool, or destroys it if the list cannot grow.
  void put(std::unique_ptr<T> used) noexcept {
    T* none = nullptr;
    if (one_.compare_exchange_strong(none, used.get(), std::memory_order_release,
                                     std::memory_order_relaxed)) {
      used.release();
      return;
    }
    std::lock_guard hold(object_pool_lock);
    try {
      more_.push_back(std::move(used));
    } catch (...) {}
  }

 private:
  std::atomic<T*> one_{nullptr};  // fast path without the lock, as most pools have one caller
  std::vector<std::unique_ptr<T>> more_;
};

}  // namespace haliax
