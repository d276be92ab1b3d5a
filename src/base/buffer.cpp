// The host memory of a Buffer: pooled allocation, and assembly of a value that is stored on
// devices.
#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "base/fork.h"

namespace haliax {
namespace {

constexpr std::int64_t kAligned = 64, kPage = 4096, kHuge = 2 << 20;
constexpr std::int64_t kKeep = 64;  // largest number of idle blocks per size

// Idle blocks of at least kPage bytes, by size, for reuse. Blocks of at least kHuge bytes are
// mapped with the advice to use huge pages. Smaller blocks come from malloc, which has a cache per
// thread; aligned_alloc has none. A malloc block is aligned by hand: the pointer that malloc
// returned is stored just before the aligned data.
struct MemoryPool {
  std::mutex lock;
  std::map<std::int64_t, std::vector<std::byte*>> idle;
};
MemoryPool& memory_pool() {
  static MemoryPool* p = new MemoryPool;
  return *p;
}
std::int64_t rounded(std::int64_t bytes) {
  std::int64_t unit = bytes >= kHuge ? kHuge / 8 : bytes >= kPage ? kPage : 64;
  return (std::max<std::int64_t>(bytes, 1) + unit - 1) / unit * unit;
}

// Returns an idle block of the given size, or null if the pool has none.
std::byte* reused(std::int64_t size) {
  std::lock_guard hold(memory_pool().lock);
  auto found = memory_pool().idle.find(size);
  if (found == memory_pool().idle.end() || found->second.empty()) return nullptr;
  auto* block = found->second.back();
  found->second.pop_back();
  return block;
}
// aligned_alloc, so that the sanitizer detects reads past the end
#if defined(__SANITIZE_ADDRESS__)
std::byte* small(std::int64_t size) {
  if (auto* data = std::aligned_alloc(kAligned, std::size_t(size)))
    return static_cast<std::byte*>(data);
  throw std::bad_alloc();
}
void free_small(std::byte* data) { std::free(data); }
#else
std::byte* small(std::int64_t size) {
  auto* begin = static_cast<std::byte*>(std::malloc(std::size_t(size) + kAligned));
  if (!begin) throw std::bad_alloc();
  auto* data = begin + (kAligned - std::uintptr_t(begin) % kAligned);
  std::memcpy(data - sizeof begin, &begin, sizeof begin);
  return data;
}
void free_small(std::byte* data) {
  void* begin;
  std::memcpy(&begin, data - sizeof begin, sizeof begin);
  std::free(begin);
}
#endif
std::byte* take(std::int64_t bytes) {
  const std::int64_t size = rounded(bytes);
  if (size < kPage) return small(size);
  void* got = reused(size);
  if (!got) {
    got = mmap(nullptr, std::size_t(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
               0);
    if (got == MAP_FAILED)
      got = nullptr;
    else if (size >= kHuge)
      madvise(got, std::size_t(size), MADV_HUGEPAGE);
  }
  if (!got) throw std::bad_alloc();
  return static_cast<std::byte*>(got);
}
void give_back(std::byte* data, std::int64_t bytes) {
  const std::int64_t size = rounded(bytes);
  if (size < kPage) return free_small(data);
  if (size < (std::int64_t(1) << 28)) {
    std::lock_guard hold(memory_pool().lock);
    if (auto& idle = memory_pool().idle[size]; std::int64_t(idle.size()) < kKeep)
      return idle.push_back(data);
  }
  munmap(data, std::size_t(size));
}

}  // namespace

Buffer::Buffer(std::int64_t bytes) : data_(take(bytes)), bytes_(bytes) {}
Buffer::Buffer(std::int64_t bytes, std::unique_ptr<const DeviceStorage> device_storage)
    : bytes_(bytes), device_storage_(device_storage.release()) {}
Buffer::Buffer(std::byte* data, std::int64_t bytes, std::shared_ptr<void> owner)
    : data_(data), bytes_(bytes), owner_(std::move(owner)) {}
Buffer::Buffer(Buffer&& o) noexcept
    : data_(o.data_.exchange(nullptr)), bytes_(o.bytes_), owner_(std::move(o.owner_)) {}
Buffer::~Buffer() {
  if (auto* mine = data_.load(); mine && !owner_) give_back(mine, bytes_);
  delete device_storage_.load();
}
void Buffer::attach(std::unique_ptr<DeviceStorage> more) const {
  auto* mine = more.release();
  auto* before = device_storage_.load(std::memory_order_relaxed);
  do {
    mine->next.release();  // owned by the list, not by this node
    mine->next.reset(before);
  } while (!device_storage_.compare_exchange_weak(before, mine, std::memory_order_acq_rel,
                                                  std::memory_order_relaxed));
}
static constinit std::mutex joining;
static const bool device_storage_fork =
    at_fork({kForkPieces, [] { joining.lock(); }, [] { joining.unlock(); }});
static const bool memory_forks =
    at_fork({kForkMemory, [] { memory_pool().lock.lock(); }, [] { memory_pool().lock.unlock(); }});
std::byte* Buffer::assemble() const {
  std::lock_guard hold(joining);
  if (auto* known = data_.load()) return known;
  auto* assembled = take(bytes_);
  try {
    device_storage()->write(assembled);
  } catch (...) {
    give_back(assembled, bytes_);
    throw;
  }
  data_.store(assembled, std::memory_order_release);
  return assembled;
}

void release_pool() {
  auto& p = memory_pool();
  std::lock_guard hold(p.lock);
  for (auto& [size, blocks] : p.idle)
    for (auto* b : blocks) munmap(b, std::size_t(size));
  p.idle.clear();
}

}  // namespace haliax
