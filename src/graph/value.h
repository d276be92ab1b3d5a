// The value of a node, which any thread may read while another makes it, or gives its memory away.
#pragma once
#include <atomic>
#include <string>
#include <utility>

#include "base/buffer.h"

namespace haliax {

class Value {
 public:
  Value() = default;
  Value(const Value&) = delete;
  explicit operator bool() const { return state_.load(std::memory_order_acquire) & kThere; }
  BufferPtr get() const {                        // null: there is none
    if (!*this) return nullptr;
    hold();
    BufferPtr out = buffer_;
    release();
    return out;
  }
  BufferPtr operator->() const { return get(); }
  void set(BufferPtr b) {                        // once; by one thread
    buffer_ = std::move(b);
    if (buffer_) state_.fetch_or(kThere, std::memory_order_release);
  }
  BufferPtr take() {                             // null: it is gone already
    hold();
    BufferPtr out = std::move(buffer_);
    state_.fetch_and(std::uint8_t(~kThere), std::memory_order_relaxed);
    release();
    return out;
  }

 private:
  static constexpr std::uint8_t kThere = 1, kHeld = 2;
  void hold() const {                            // for as long as a pointer is copied
    while (state_.fetch_or(kHeld, std::memory_order_acquire) & kHeld) {}
  }
  void release() const { state_.fetch_and(std::uint8_t(~kHeld), std::memory_order_release); }
  mutable std::atomic<std::uint8_t> state_{0};
  BufferPtr buffer_;
};

// Says to where an array was donated; empty: it was not.
class Donation {
 public:
  Donation() = default;
  Donation(const Donation&) = delete;
  ~Donation() { delete text_.load(std::memory_order_relaxed); }
  bool empty() const { return !text_.load(std::memory_order_acquire); }
  operator const std::string&() const { return *text_.load(std::memory_order_acquire); }   // of one that is not empty
  void set(std::string to) {
    const std::string* none = nullptr;
    auto* mine = new std::string(std::move(to));
    if (!text_.compare_exchange_strong(none, mine, std::memory_order_acq_rel)) delete mine;
  }

 private:
  std::atomic<const std::string*> text_{nullptr};
};

// Does nobody else hold it? What others did with it before they let it go has then happened.
template <class T> bool held_by(const std::shared_ptr<T>& p, long owners) {
  if (p.use_count() != owners) return false;
  std::shared_ptr<T> after = p;                  // what counts the owners orders memory; what reads the count does not
  return true;
}

}  // namespace haliax
