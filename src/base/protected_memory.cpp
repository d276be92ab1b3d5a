// First-fit allocation in a protected address range.
#include "base/protected_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace haliax {

ProtectedMemory::ProtectedMemory() {
  auto* got = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<std::byte*>(got);
}
std::byte* ProtectedMemory::take(std::int64_t bytes) {
  std::lock_guard hold(lock_);
  auto found = std::find_if(free_.begin(), free_.end(), [&](auto& f) { return f.second >= bytes; });
  if (found == free_.end()) return nullptr;
  const auto at = found->first;
  used_.emplace(at, bytes);
  auto rest = free_.extract(found);
  rest.key() += bytes;
  rest.mapped() -= bytes;
  if (rest.mapped() > 0) free_.insert(std::move(rest));
  in_use_ += bytes;
  return base_ + at;
}
void ProtectedMemory::give_back(std::byte* data, bool idle) {
  std::lock_guard hold(lock_);
  auto freed = used_.extract(data - base_);
  const auto at = freed.key(), bytes = freed.mapped();
  if (auto first = (at + kPage - 1) / kPage * kPage, end = (at + bytes) / kPage * kPage;
      idle && end - first >= kMinReturned)
    madvise(base_ + first, std::size_t(end - first), MADV_DONTNEED);
  in_use_ -= bytes;
  auto next = free_.lower_bound(at);
  if (next != free_.end() && at + bytes == next->first) {
    freed.mapped() += next->second;
    next = free_.erase(next);
  }

  auto before = next == free_.begin() ? free_.end() : std::prev(next);
  if (before != free_.end() && before->first + before->second == at)
    before->second += freed.mapped();
  else
    free_.insert(std::move(freed));
}
void ProtectedMemory::open(int by) {
  std::lock_guard hold(lock_);
  bool was = opened_ > 0, is = (opened_ += by) > 0;
  if (is != was) mprotect(base_, kBytes, is ? PROT_READ | PROT_WRITE : PROT_NONE);
}

}  // namespace haliax
