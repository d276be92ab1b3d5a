// A monotonic clock.
#pragma once
#include <chrono>

namespace haliax {

// Returns the seconds since an arbitrary fixed time.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace haliax
