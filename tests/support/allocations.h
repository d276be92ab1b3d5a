// Counts calls of operator new, and makes single allocations fail. Sanitizers replace operator new:
// with a sanitizer, no allocation is counted and none fails.
#pragma once

namespace haliax {

extern const bool owns_operator_new;  // false with a sanitizer

// Allocations since `count_allocations`: all of them, and the allocations inside oneDNN while it
// runs a primitive.
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

// Makes one allocation of this thread fail: the n-th during the lifetime of the object, counted
// from 0.
class FailingAllocation {
 public:
  explicit FailingAllocation(long n);
  ~FailingAllocation();
  FailingAllocation(const FailingAllocation&) = delete;
  bool happened() const;
};

}  // namespace haliax
