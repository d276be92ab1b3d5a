// The value of one array, which is written before others know it, and never again. In host memory,
// 64-byte aligned, from a pool that keeps pages warm (a fresh large result costs several times its
// computation in page faults); or elsewhere; or both.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace haliax {

// Where a value lies that is not, or not only, in host memory in one piece: on a device, or in
// blocks on the devices of a mesh.
struct DeviceStorage {
  virtual ~DeviceStorage() = default;
  virtual void write(std::byte* whole) const = 0;
  std::unique_ptr<const DeviceStorage> next = {};  // others of the same value
};
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes);
  // takes memory, and is put together, when it is first read
  Buffer(std::int64_t bytes, std::unique_ptr<const DeviceStorage>);
  // memory of somebody else's, to read
  Buffer(std::byte* data, std::int64_t bytes, std::shared_ptr<void> owner);
  // its host memory, to write over: what lies beside it is not of the new one
  Buffer(Buffer&&) noexcept;
  ~Buffer();
  std::byte* data() const {
    auto* known = data_.load(std::memory_order_acquire);
    return known ? known : assemble();
  }
  // or else data() brings it there
  bool on_host() const { return data_.load(std::memory_order_acquire) != nullptr; }
  std::int64_t bytes() const { return bytes_; }
  const DeviceStorage* device_storage() const {
    return device_storage_.load(std::memory_order_acquire);
  }
  // beside what is there, as long as this lives; any thread may
  void attach(std::unique_ptr<DeviceStorage>) const;
  bool is_borrowed() const { return owner_ != nullptr; }

 private:
  std::byte* assemble() const;
  mutable std::atomic<std::byte*> data_{nullptr};
  std::int64_t bytes_;
  mutable std::atomic<const DeviceStorage*> device_storage_{nullptr};
  std::shared_ptr<void> owner_;
};
using BufferPtr = std::shared_ptr<Buffer>;

void release_pool();  // gives what the pool keeps back to the system

}  // namespace haliax
