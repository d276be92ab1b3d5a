// What calls at the same time take one each of, and leave for the next: memory, or state of a run.
// As many are kept as ever were used at once.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace haliax {

extern std::mutex
    object_pool_lock;  // one for all, as it is seldom taken, and must be held over a fork

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
  std::unique_ptr<T> take() {  // null: all are in use
    if (auto* got = one_.exchange(nullptr, std::memory_order_acquire))
      return std::unique_ptr<T>(got);
    std::lock_guard hold(object_pool_lock);
    if (more_.empty()) return nullptr;
    auto got = std::move(more_.back());
    more_.pop_back();
    return got;
  }
  // where there is no memory to note it in, it goes
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
  std::atomic<T*> one_{nullptr};  // without the lock, as there mostly is one caller
  std::vector<std::unique_ptr<T>> more_;
};

}  // namespace haliax
