// Host memory of one array: 64-byte aligned, from a pool that keeps pages warm (a fresh large result costs several times its
// computation in page faults).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace haliax {

// An array that does not lie in one piece, such as the blocks of the devices of a mesh.
struct Pieces {
  virtual ~Pieces() = default;
  virtual void write(std::byte* whole) const = 0;
};
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes);
  Buffer(std::int64_t bytes, std::shared_ptr<const Pieces>);   // takes memory, and is put together, when it is first read
  Buffer(std::byte* data, std::int64_t bytes, std::shared_ptr<void> owner);   // memory of somebody else's, to read
  ~Buffer();
  Buffer(const Buffer&) = delete;
  std::byte* data() const {
    auto* known = data_.load(std::memory_order_acquire);
    return known ? known : put_together();
  }
  std::int64_t bytes() const { return bytes_; }
  const Pieces* pieces() const { return pieces_.get(); }
  bool is_borrowed() const { return owner_ != nullptr; }

 private:
  std::byte* put_together() const;
  mutable std::atomic<std::byte*> data_{nullptr};
  std::int64_t bytes_;
  std::shared_ptr<const Pieces> pieces_;
  std::shared_ptr<void> owner_;
};
using BufferPtr = std::shared_ptr<Buffer>;

void release_pool();   // gives what the pool keeps back to the system

}  // namespace haliax
