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

// Memory of the host.
template <class Make> auto made(std::int64_t bytes, Make make) {
  try {
    return make(bytes);
  } catch (const std::bad_alloc&) {
    fail("memory", std::to_string(bytes) + " bytes are wanted, and there are not as many");
  }
}

}  // namespace

void OnDevice::write(std::byte* whole) const {
  device->get(bytes_between(bytes, whole, memory.get()), number);
}

const OnDevice* DeviceMemory::here(const Buffer& b) const {
  for (auto* p = b.pieces(); p; p = p->next.get())
    if (auto* d = dynamic_cast<const OnDevice*>(p);
        d && d->device == device_ && d->number == number_)
      return d;
  return nullptr;
}
std::unique_ptr<OnDevice> DeviceMemory::around(program::Memory memory, std::int64_t bytes) const {
  auto out = std::make_unique<OnDevice>();
  out->device = device_;
  out->number = number_;
  out->memory = std::move(memory);
  out->bytes = bytes;
  return out;
}
std::unique_ptr<OnDevice> DeviceMemory::taken(std::int64_t bytes) const {
  return around(device_->take(bytes, number_), bytes);
}
void* DeviceMemory::brought(const Buffer& b) const {
  if (auto* d = here(b)) return d->memory.get();
  auto mine = taken(b.bytes());
  auto* at = mine->memory.get();
  device_->put(bytes_between(b.bytes(), at, b.data()), number_);
  b.keep(std::move(mine));
  return at;
}

BufferPtr DeviceMemory::fresh(std::int64_t bytes) const {
  if (!host_) return std::make_shared<Buffer>(bytes, taken(bytes));
  return made(bytes, [](auto n) { return std::make_shared<Buffer>(n); });
}
std::unique_ptr<Buffer> DeviceMemory::arena(std::int64_t bytes) const {
  if (!host_) return std::make_unique<Buffer>(bytes, taken(bytes));
  return made(bytes, [](auto n) { return std::make_unique<Buffer>(n); });
}
BufferPtr DeviceMemory::copied(const Buffer& b) const {
  auto* mine = host_ ? nullptr : here(b);
  if (!mine) return part(bytes_between(b.bytes(), nullptr, b.data()));
  auto out = taken(b.bytes());
  device_->copy(bytes_between(b.bytes(), out->memory.get(), mine->memory.get()), number_);
  return std::make_shared<Buffer>(b.bytes(), std::move(out));
}
BufferPtr DeviceMemory::taken_over(Buffer& b) const {
  auto* mine = host_ ? nullptr : here(b);
  if (mine) return std::make_shared<Buffer>(b.bytes(), around(mine->memory, b.bytes()));
  if (!host_ || b.is_borrowed()) return copied(b);
  b.data();  // put together, if it is not
  return std::make_shared<Buffer>(std::move(b));
}
BufferPtr DeviceMemory::part(Box box) const {
  auto out = fresh(program::points(box.dims) * box.width);
  box.to = address(*out);
  box.to_strides = program::row_major(box.dims);
  host_ ? program::copy_on_host(box) : device_->put(box, number_);
  return out;
}

void read(const Buffer& b, Box box) {
  auto* there = b.on_host() ? nullptr : dynamic_cast<const OnDevice*>(b.pieces());
  box.from = there ? there->memory.get() : b.data();
  box.from_strides = program::row_major(box.dims);
  there ? there->device->get(box, there->number) : program::copy_on_host(box);
}

}  // namespace haliax
