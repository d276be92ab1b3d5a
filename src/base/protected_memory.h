// A range of addresses that nobody may touch who has not opened it: memory of devices that share
// none with the host, where there are none.
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
  std::byte* take(std::int64_t bytes);  // first fit; null: there is no place
  // Allocates nothing. idle: nobody works on it any more, so that the system may have large pieces
  // back.
  void give_back(std::byte* data, bool idle = true);
  std::int64_t in_use() const { return in_use_; }
  template <class F> void opened(const F& f) {  // several threads may have it open at once
    open(1);
    struct Closed {
      ProtectedMemory& p;
      ~Closed() { p.open(-1); }
    } closed{*this};
    f();
  }
  void open(int by);                    // it is open while their sum is above 0
  std::mutex& lock() { return lock_; }  // held over a fork

 private:
#if defined(__SANITIZE_THREAD__)  // which leaves programs less than 2 TiB of addresses
  static constexpr std::size_t kBytes = std::size_t(1) << 32;
#else
  static constexpr std::size_t kBytes = std::size_t(1) << 36;
#endif
  std::byte* base_ = nullptr;
  std::atomic<std::int64_t> in_use_{0};
  int opened_ = 0;
  std::map<std::int64_t, std::int64_t> free_{{0, kBytes}}, used_;  // offset, size
  std::mutex lock_;
};

}  // namespace haliax
