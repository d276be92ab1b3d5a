// Sets the number of threads during its lifetime. Exact plans depend on this number, because each
// thread has its own scratch memory.
#pragma once
#include "haliax/jit.h"

struct Threads {
  explicit Threads(int n) { haliax::set_threads(n); }
  ~Threads() { haliax::set_threads(0); }
  Threads(const Threads&) = delete;
};
