#include "base/buffer.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace haliax {
namespace {

constexpr std::int64_t kPage = 4096, kHuge = 2 << 20;
constexpr std::int64_t kKeep = 64;   // at most this many blocks of one size wait for reuse

// Large blocks are mapped, advised to be huge pages, and kept by size; small ones are left to malloc.
struct Pool {
  std::mutex lock;
  std::map<std::int64_t, std::vector<std::byte*>> idle;
  std::atomic<std::int64_t> live{0};
};
Pool& pool() {
  static Pool* p = new Pool;
  return *p;
}
std::int64_t rounded(std::int64_t bytes) {
  std::int64_t unit = bytes >= kHuge ? kHuge / 8 : bytes >= kPage ? kPage : 64;
  return (std::max<std::int64_t>(bytes, 1) + unit - 1) / unit * unit;
}

}  // namespace

Buffer::Buffer(std::int64_t bytes) : bytes_(bytes) {
  auto& p = pool();
  std::int64_t size = rounded(bytes);
  p.live += size;
  if (size < kPage) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(64, std::size_t(size)));
    if (!data_) {
      p.live -= size;
      throw std::bad_alloc();
    }
    return;
  }
  {
    std::lock_guard hold(p.lock);
    if (auto found = p.idle.find(size); found != p.idle.end() && !found->second.empty()) {
      data_ = found->second.back();
      found->second.pop_back();
      return;
    }
  }
  void* got = mmap(nullptr, std::size_t(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) {
    p.live -= size;
    throw std::bad_alloc();
  }
  if (size >= kHuge) madvise(got, std::size_t(size), MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(got);
}

Buffer::~Buffer() {
  auto& p = pool();
  std::int64_t size = rounded(bytes_);
  p.live -= size;
  if (size < kPage) {
    std::free(data_);
    return;
  }
  {
    std::lock_guard hold(p.lock);
    auto& idle = p.idle[size];
    if (std::int64_t(idle.size()) < kKeep && size < (std::int64_t(1) << 28)) {
      idle.push_back(data_);
      return;
    }
  }
  munmap(data_, std::size_t(size));
}

std::int64_t live_buffer_bytes() { return pool().live; }
void release_pool() {
  auto& p = pool();
  std::lock_guard hold(p.lock);
  for (auto& [size, blocks] : p.idle)
    for (auto* b : blocks) munmap(b, std::size_t(size));
  p.idle.clear();
}

}  // namespace haliax
