// The value of a node. Any thread may read it while another thread sets or donates it.
#pragma once
#include <atomic>
#include <string>
#include <utility>

#include "base/buffer.h"
#include "base/name.h"

namespace haliax {

class NodeValue {
 public:
  NodeValue() = default;
  NodeValue(const NodeValue&) = delete;
  explicit operator bool() const { return there_.load(std::memory_order_acquire); }
  // Returns the value, or null if there is none. In a GraphReader, since the value may be donated.
  BufferPtr get() const { return *this ? buffer_ : nullptr; }
  BufferPtr operator->() const { return get(); }
  // Sets the value, once. In a GraphWriter if other threads can reach the node.
  void set(BufferPtr b) {
    buffer_ = std::move(b);
    if (buffer_) there_.store(true, std::memory_order_release);
  }
  // Drops the value. In a GraphWriter.
  void release() {
    there_.store(false, std::memory_order_relaxed);
    buffer_ = nullptr;
  }

 private:
  std::atomic<bool> there_{false};
  BufferPtr buffer_;
};

// A description of the recipient of a donated array; empty if the array was not donated.
class Donation {
 public:
  Donation() = default;
  Donation(const Donation&) = delete;
  ~Donation() { delete text_.load(std::memory_order_relaxed); }
  bool empty() const { return !text_.load(std::memory_order_acquire); }
  // Returns the description. In: it is not empty.
  operator const std::string&() const { return *text_.load(std::memory_order_acquire); }
  void set(std::string to) {
    const std::string* none = nullptr;
    auto* mine = new std::string(std::move(to));
    if (!text_.compare_exchange_strong(none, mine, std::memory_order_acq_rel)) delete mine;
  }

 private:
  std::atomic<const std::string*> text_{nullptr};
};

// The field of a module in which an array was found, as in blocks.up.weight. If it was found in
// several fields, the common end of their paths, unless only the name of the last field is common.
class FieldPath {
 public:
  FieldPath() = default;
  FieldPath(const FieldPath&) = delete;
  Name path() const {
    auto* seen = path_.load(std::memory_order_acquire);
    return seen && !seen->text.empty() ? Name::of(seen) : Name();
  }
  void note(Name path);

 private:
  std::atomic<const NameData*> path_{nullptr};
};

// Returns true if the pointer has exactly `owners` owners. All accesses by earlier owners then
// happened before the return.
template <class T> bool has_use_count(const std::shared_ptr<T>& p, long owners) {
  if (p.use_count() != owners) return false;
  // an acquire operation: the counter orders memory, but use_count() does not
  std::shared_ptr<T> after = p;
  return true;
}

}  // namespace haliax
