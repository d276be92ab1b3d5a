// A range of addresses that faults on access unless it is open. It emulates the memory of devices
// that share none with the host, on a machine without such devices.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace haliax {

class ProtectedMemory {
 public:
  ProtectedMemory();
  // Allocates by first fit. Returns null if no free range is large enough.
  std::byte* take(std::int64_t bytes);
  // Frees a block, without allocating. `idle` means that no device works on the block any more; the
  // pages of large idle blocks return to the system.
  void give_back(std::byte* data, bool idle = true);
  std::int64_t in_use() const { return in_use_; }
  // Calls f while the range is open. Several threads may hold it open at once.
  template <class F> void opened(const F& f) {
    open(1);
    struct Closed {
      ProtectedMemory& p;
      ~Closed() { p.open(-1); }
    } closed{*this};
    f();
  }
  // Adds `by` to the open count. The range is accessible while the count is above 0.
  void open(int by);
  std::mutex& lock() { return lock_; }  // held across a fork

 private:
#if defined(__SANITIZE_THREAD__)  // the thread sanitizer reserves most addresses
  static constexpr std::size_t kBytes = std::size_t(1) << 32;
#else
  static constexpr std::size_t kBytes = std::size_t(1) << 36;
#endif
  static constexpr std::int64_t kPage = 4096;            // bytes
  static constexpr std::int64_t kMinReturned = 1 << 20;  // bytes; smaller idle blocks stay resident
  std::byte* base_ = nullptr;
  std::atomic<std::int64_t> in_use_{0};
  int opened_ = 0;
  std::map<std::int64_t, std::int64_t> free_{{0, kBytes}}, used_;  // offset to size, both in bytes
  std::mutex lock_;
};

}  // namespace haliax
