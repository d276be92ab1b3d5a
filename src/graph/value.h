// The value of a node, which any thread may read while another makes it, or gives its memory away.
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
  // In a GraphReader, as it may be given away. Null: there is none.
  BufferPtr get() const { return *this ? buffer_ : nullptr; }
  BufferPtr operator->() const { return get(); }
  void set(BufferPtr b) {  // once; in a GraphWriter, if others know the node
    buffer_ = std::move(b);
    if (buffer_) there_.store(true, std::memory_order_release);
  }
  void release() {  // in a GraphWriter
    there_.store(false, std::memory_order_relaxed);
    buffer_ = nullptr;
  }

 private:
  std::atomic<bool> there_{false};
  BufferPtr buffer_;
};

// Says to where an array was donated; empty: it was not.
class Donation {
 public:
  Donation() = default;
  Donation(const Donation&) = delete;
  ~Donation() { delete text_.load(std::memory_order_relaxed); }
  bool empty() const { return !text_.load(std::memory_order_acquire); }
  // of one that is not empty
  operator const std::string&() const { return *text_.load(std::memory_order_acquire); }
  void set(std::string to) {
    const std::string* none = nullptr;
    auto* mine = new std::string(std::move(to));
    if (!text_.compare_exchange_strong(none, mine, std::memory_order_acq_rel)) delete mine;
  }

 private:
  std::atomic<const std::string*> text_{nullptr};
};

// The field of a module in which an array has been seen: blocks.up.weight. If in several, what
// their paths end with; none, if that is the name of the last field alone.
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

// Does nobody else hold it? What others did with it before they let it go has then happened.
template <class T> bool has_use_count(const std::shared_ptr<T>& p, long owners) {
  if (p.use_count() != owners) return false;
  // what counts the owners orders memory; what reads the count does not
  std::shared_ptr<T> after = p;
  return true;
}

}  // namespace haliax
