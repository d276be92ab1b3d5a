// What a Device may be, too: one that has a clock of its own, and a library whose products can be
// asked for with nothing around them. For benchmarks, which ask for it by dynamic_cast.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "program/program.h"

namespace haliax::program {

class Measured {
 public:
  virtual ~Measured() = default;
  // A point in time: when all that was asked of the device before is done. The seconds from one to
  // a later one: waits for that.
  using Instant = std::shared_ptr<void>;
  virtual Instant now(int device) = 0;
  virtual double seconds(const Instant& from, const Instant& to) = 0;
  // A contraction as the bare calls of the library, in order with the device's runs: by each of the
  // algorithms that it proposes, its own first choice first. places: of the step's slots. None: it
  // is not for the library, or not as it lies.
  virtual std::vector<std::function<void()>> library_products(const Step&,
                                                              const std::vector<void*>& places,
                                                              int device) = 0;
};

}  // namespace haliax::program
