// Where values lie for the steps of a device.
//
// Of a host device that is the Buffer's own memory, and nothing is copied. On any other a value
// gets memory when it is first wanted there, which stays beside whatever else the Buffer has.
// Nobody else asks a Device for memory.
#pragma once
#include "base/buffer.h"
#include "program/program.h"

namespace haliax {

// A value on a device that is not the host.
struct DeviceValue final : DeviceStorage {
  program::Device* device = nullptr;
  int number = 0;
  program::Memory memory;
  std::int64_t bytes = 0;
  void write(std::byte* whole) const override;  // waits for the work that makes it
};

class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(program::Device& device, int number)
      : device_(&device), number_(number), host_(device.is_host()) {}
  program::Device& device() const { return *device_; }
  bool is_host() const { return host_; }

  // To read, as long as the Buffer lives.
  void* address(const Buffer& b) const { return host_ ? b.data() : copy_to_device(b); }
  // Not written yet. All of these raise where there is not enough.
  BufferPtr allocate(std::int64_t bytes) const;
  std::unique_ptr<Buffer> arena(std::int64_t bytes) const;
  // A value that will be written over. Both are new Buffers: what else the old one has, here or
  // elsewhere, is not of them.
  BufferPtr copy(const Buffer&) const;
  // of one that nobody else reads: in its memory, if it has any here
  BufferPtr donate(Buffer&) const;
  // A copy of a part. box.from lies in the value's host memory; box.to is given here, and is
  // row-major.
  BufferPtr copy_part(program::Box) const;

 private:
  void* copy_to_device(const Buffer&) const;
  const DeviceValue* on_this_device(const Buffer&) const;  // null: it does not lie here
  std::unique_ptr<DeviceValue> wrap(program::Memory, std::int64_t bytes) const;
  std::unique_ptr<DeviceValue> allocate_on_device(std::int64_t bytes) const;
  program::Device* device_ = nullptr;
  int number_ = 0;
  bool host_ = true;
};

// A value into host memory, from where it lies. box.from is given here; it is row-major.
void read(const Buffer&, program::Box);

}  // namespace haliax
