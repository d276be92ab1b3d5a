// Clocks and memory counters of both benchmarks.
#pragma once
#include <algorithm>
#include <chrono>
#include <ctime>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace bench {

inline double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  auto n = v.size();
  return n ? (v[(n - 1) / 2] + v[n / 2]) / 2 : 0;
}

// Returns the seconds of the clock, and of all cores together.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
inline double cpu_seconds() { return double(std::clock()) / CLOCKS_PER_SEC; }

// Returns the resident memory of this process, and its peak since the last reset, where the system
// reports them.
inline std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::int64_t kib = 0; word == key && status >> kib) return kib * 1024;
  return 0;
}
inline void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }
inline std::int64_t peak_bytes() { return status_bytes("VmHWM:"); }
inline std::int64_t resident_bytes() { return status_bytes("VmRSS:"); }

}  // namespace bench
