// The memory of one array. The value is written once, before other threads can reach it, and never
// changes. It is stored in host memory (64-byte aligned, from a pool that keeps pages mapped), on
// devices, or both. The pool matters because page faults of a fresh large result cost several times
// its computation.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace haliax {

// Storage of a value outside of contiguous host memory: on a device, or in shards on the devices of
// a mesh. `write` assembles the value in host memory. `next` is the storage of the same value on
// other devices; a Buffer owns the list.
struct DeviceStorage {
  virtual ~DeviceStorage() = default;
  virtual void write(std::byte* to) const = 0;
  std::unique_ptr<const DeviceStorage> next = {};  // another storage of the same value, or null
};
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes);
  // Allocates host memory and assembles the value in it on the first call of data().
  Buffer(std::int64_t bytes, std::unique_ptr<const DeviceStorage>);
  // Borrows memory that `owner` keeps alive. The memory is read, never freed by the Buffer.
  Buffer(std::byte* data, std::int64_t bytes, std::shared_ptr<void> owner);
  // Moves the host memory, to be overwritten. The moved-from Buffer keeps the device storage,
  // since it holds the old value.
  Buffer(Buffer&&) noexcept;
  ~Buffer();
  std::byte* data() const {
    auto* known = data_.load(std::memory_order_acquire);
    return known ? known : assemble();
  }
  // Returns true if data() needs no assembly.
  bool on_host() const { return data_.load(std::memory_order_acquire) != nullptr; }
  std::int64_t bytes() const { return bytes_; }
  const DeviceStorage* device_storage() const {
    return device_storage_.load(std::memory_order_acquire);
  }
  // Adds another storage of the value. The storage lives as long as the Buffer. Thread safe.
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

// Returns the idle blocks of the pool to the system.
void release_pool();

}  // namespace haliax
