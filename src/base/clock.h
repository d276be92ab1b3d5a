#pragma once
#include <chrono>

namespace haliax {

inline double seconds_now() {  // since some time or other
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace haliax
