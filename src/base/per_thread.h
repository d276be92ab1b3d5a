// One T per thread. A destructor that runs at the end of a thread or of the process may still call
// per_thread: it gets a new T, which is never destroyed.
#pragma once
#include <utility>

namespace haliax {

template <class T> T& per_thread() {
  // in the static TLS block, as every op reads it
  [[gnu::tls_model("initial-exec")]] static thread_local T* one = nullptr;
  static thread_local bool ended = false;
  struct End {
    ~End() { delete std::exchange(one, nullptr), ended = true; }
  };
  if (one) return *one;
  one = new T;
  if (!ended) {
    static thread_local End end;
    (void)end;
  }
  return *one;
}

}  // namespace haliax
