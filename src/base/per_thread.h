// One T of each thread. What runs when a thread, or the process, ends may still ask: it gets
// another, which is never destroyed.
#pragma once
#include <utility>

namespace haliax {

template <class T> T& per_thread() {
  // in the static block: read by every op
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
