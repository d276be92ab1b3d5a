// Memory of this process, as the system reports it.
#pragma once
#include <malloc.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "base/buffer.h"

inline std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::int64_t kib = 0; word == key && status >> kib) return kib * 1024;
  return 0;
}
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;  // run times are several times as long
#else
inline constexpr bool sanitized = false;
#endif
// Resident bytes per byte in use: sanitizers store shadow memory as well.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::int64_t resident_per_byte = 6;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr std::int64_t resident_per_byte = 2;
#else
inline constexpr std::int64_t resident_per_byte = 1;
#endif
inline std::int64_t resident_bytes() { return status_bytes("VmRSS:"); }

// Returns the growth of the peak resident memory while f runs, in bytes. Releases unused memory
// first.
template <class F> std::int64_t peak_growth_of(F f) {
  haliax::release_pool();
  malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const auto before = resident_bytes();
  f();
  return status_bytes("VmHWM:") - before;
}
