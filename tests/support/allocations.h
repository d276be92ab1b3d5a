// Counts and fails calls of operator new. A sanitizer has operator new to itself: there nothing is
// counted, and none fails.
#pragma once

namespace haliax {

extern const bool owns_operator_new;  // not with a sanitizer

// Allocations from here on: all of them, and those that oneDNN makes itself while it runs a
// primitive.
struct Allocations {
  long all = 0, by_onednn = 0;
};
void count_allocations();
Allocations stop_counting_allocations();

template <class F> Allocations allocations_of(F f) {
  count_allocations();
  f();
  return stop_counting_allocations();
}

// Lets one allocation of this thread fail: the n-th of its life, counted from 0.
class FailingAllocation {
 public:
  explicit FailingAllocation(long n);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  bool happened() const;
};

}  // namespace haliax
