// A Device with its own clock, whose library matmuls can be called directly. Benchmarks obtain it
// by dynamic_cast.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "program/program.h"

namespace haliax::program {

class Measured {
 public:
  virtual ~Measured() = default;
  // A moment in the device's work, after all work queued before it. seconds() waits for both
  // moments and returns the seconds between them.
  using Instant = std::shared_ptr<void>;
  virtual Instant now(int device) = 0;
  virtual double seconds(const Instant& from, const Instant& to) = 0;
  // Returns a contraction as direct library calls, in order with the device's runs: one call per
  // algorithm that the library proposes, its default first. `places` holds the addresses of the
  // step's slots. Returns an empty list if the library cannot compute the step with its strides.
  virtual std::vector<std::function<void()>> library_products(const Step&,
                                                              const std::vector<void*>& places,
                                                              int device) = 0;
};

}  // namespace haliax::program
