// Counts calls of operator new. A sanitizer has operator new to itself: there nothing is counted.
#pragma once

namespace haliax {

// Allocations from here on: all of them, and those that oneDNN makes itself while it runs a primitive.
struct Allocations {
  long all = 0, by_onednn = 0;
};
void count_allocations();
Allocations stop_counting_allocations();

template <class F>
Allocations allocations_of(F f) {
  count_allocations();
  f();
  return stop_counting_allocations();
}

}  // namespace haliax
