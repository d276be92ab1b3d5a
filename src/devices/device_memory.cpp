// Copies of values between the host and a device, on demand.
#include "devices/device_memory.h"

#include <new>
#include <string>

#include "graph/fail.h"

namespace haliax {
namespace {

using program::Box;

Box bytes_between(std::int64_t bytes, void* to, const void* from) {
  return {{bytes}, 1, to, {1}, from, {1}};
}

// Allocates host memory by `make`. Raises if there is too little.
template <class Make> auto created(std::int64_t bytes, Make make) {
  try {
    return make(bytes);
  } catch (const std::bad_alloc&) {
    fail("memory", std::to_string(bytes) + " bytes are requested, but not available");
  }
}

}  // namespace

void DeviceValue::write(std::byte* to) const {
  device->get(bytes_between(bytes, to, memory.get()), number);
}

const DeviceValue* DeviceMemory::on_this_device(const Buffer& b) const {
  for (auto* p = b.device_storage(); p; p = p->next.get())
    if (auto* d = dynamic_cast<const DeviceValue*>(p);
        d && d->device == device_ && d->number == number_)
      return d;
  return nullptr;
}
std::unique_ptr<DeviceValue> DeviceMemory::wrap(program::Memory memory, std::int64_t bytes) const {
  auto out = std::make_unique<DeviceValue>();
  out->device = device_;
  out->number = number_;
  out->memory = std::move(memory);
  out->bytes = bytes;
  return out;
}
std::unique_ptr<DeviceValue> DeviceMemory::allocate_on_device(std::int64_t bytes) const {
  return wrap(device_->allocate(bytes, number_), bytes);
}
void* DeviceMemory::copy_to_device(const Buffer& b) const {
  if (auto* d = on_this_device(b)) return d->memory.get();
  auto mine = allocate_on_device(b.bytes());
  auto* at = mine->memory.get();
  device_->put(bytes_between(b.bytes(), at, b.data()), number_);
  b.attach(std::move(mine));
  return at;
}

BufferPtr DeviceMemory::allocate(std::int64_t bytes) const {
  if (!host_) return std::make_shared<Buffer>(bytes, allocate_on_device(bytes));
  return created(bytes, [](auto n) { return std::make_shared<Buffer>(n); });
}
std::unique_ptr<Buffer> DeviceMemory::arena(std::int64_t bytes) const {
  if (!host_) return std::make_unique<Buffer>(bytes, allocate_on_device(bytes));
  return created(bytes, [](auto n) { return std::make_unique<Buffer>(n); });
}
BufferPtr DeviceMemory::copy(const Buffer& b) const {
  auto* mine = host_ ? nullptr : on_this_device(b);
  if (!mine) return copy_part(bytes_between(b.bytes(), nullptr, b.data()));
  auto out = allocate_on_device(b.bytes());
  device_->copy(bytes_between(b.bytes(), out->memory.get(), mine->memory.get()), number_);
  return std::make_shared<Buffer>(b.bytes(), std::move(out));
}
BufferPtr DeviceMemory::donate(Buffer& b) const {
  auto* mine = host_ ? nullptr : on_this_device(b);
  if (mine) return std::make_shared<Buffer>(b.bytes(), wrap(mine->memory, b.bytes()));
  if (!host_ || b.is_borrowed()) return copy(b);
  b.data();  // assembles the value if it is sharded
  return std::make_shared<Buffer>(std::move(b));
}
BufferPtr DeviceMemory::copy_part(Box box) const {
  auto out = allocate(program::points(box.dims) * box.width);
  box.to = address(*out);
  box.to_strides = program::row_major(box.dims);
  host_ ? program::copy_on_host(box) : device_->put(box, number_);
  return out;
}

void read(const Buffer& b, Box box) {
  auto* there = b.on_host() ? nullptr : dynamic_cast<const DeviceValue*>(b.device_storage());
  box.from = there ? there->memory.get() : b.data();
  box.from_strides = program::row_major(box.dims);
  there ? there->device->get(box, there->number) : program::copy_on_host(box);
}

}  // namespace haliax
