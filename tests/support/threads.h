// So many threads while it lives: plans are as exact as their number, as each has its scratch.
#pragma once
#include "haliax/jit.h"

struct Threads {
  explicit Threads(int n) { haliax::set_threads(n); }
  ~Threads() { haliax::set_threads(0); }
  Threads(const Threads&) = delete;
};
