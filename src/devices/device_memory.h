// The memory of values as a device accesses it.
//
// A host device uses the memory of the Buffer and copies nothing. On any other device, a value
// receives memory on its first use there, and the memory stays attached to the Buffer in addition
// to its other storage. All allocations from a Device happen here.
#pragma once
#include "base/buffer.h"
#include "program/program.h"

namespace haliax {

// A value in the memory of a device that is not the host.
struct DeviceValue final : DeviceStorage {
  program::Device* device = nullptr;
  int number = 0;
  program::Memory memory;
  std::int64_t bytes = 0;
  // Copies the value to the host, after the work that computes it.
  void write(std::byte* to) const override;
};

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(program::Device& device, int number)
      : device_(&device), number_(number), host_(device.is_host()) {}
  program::Device& device() const { return *device_; }
  bool is_host() const { return host_; }

  // Returns the address of the value for reading. Valid as long as the Buffer lives.
  void* address(const Buffer& b) const { return host_ ? b.data() : copy_to_device(b); }
  // Allocate uninitialized memory. All functions below raise if there is too little.
  BufferPtr allocate(std::int64_t bytes) const;
  std::unique_ptr<Buffer> arena(std::int64_t bytes) const;
  // Returns a copy that will be overwritten. The result is a new Buffer without other storage, as
  // is that of donate.
  BufferPtr copy(const Buffer&) const;
  // Returns a Buffer with the memory of a value that has no other reader. Copies if the value has
  // no memory on this device.
  BufferPtr donate(Buffer&) const;
  // Returns a copy of a part of a value. `box.from` is in host memory; `box.to` is set here,
  // row-major.
  BufferPtr copy_part(program::Box) const;

 private:
  void* copy_to_device(const Buffer&) const;
  const DeviceValue* on_this_device(const Buffer&) const;  // null: no copy on this device
  std::unique_ptr<DeviceValue> wrap(program::Memory, std::int64_t bytes) const;
  std::unique_ptr<DeviceValue> allocate_on_device(std::int64_t bytes) const;
  program::Device* device_ = nullptr;
  int number_ = 0;
  bool host_ = true;
};

// Copies a value, or a part of it, to host memory. `box.from` is set here and row-major.
void read(const Buffer&, program::Box);

}  // namespace haliax
