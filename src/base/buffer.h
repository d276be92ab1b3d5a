// Host memory of one array: 64-byte aligned, from a pool that keeps pages warm (a fresh large result costs several times its
// computation in page faults).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace haliax {

class Buffer {
 public:
  explicit Buffer(std::int64_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  std::int64_t bytes_;
};
using BufferPtr = std::shared_ptr<Buffer>;

std::int64_t live_buffer_bytes();   // of all arrays that are alive: for tests and reports
void release_pool();                // gives what the pool keeps back to the system

}  // namespace haliax
