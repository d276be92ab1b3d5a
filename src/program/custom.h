// Calls of a user's function, once per position of the outer dims of a Custom step. All backends
// that run on the host share this implementation.
#pragma once
#include <exception>

#include "program/program.h"

namespace haliax::program {

// The calls of one Custom step. Several workers may run parts of them concurrently. run() allocates
// nothing, and stops early if the function throws.
class CustomCalls {
 public:
  // The step must outlive the object.
  explicit CustomCalls(const Step&, int workers = 1);
  std::int64_t points() const { return points_; }
  // Calls the function at the positions [from, to) of the outer dims, in row-major order. `first`
  // holds the address of the first element of each array.
  void run(void* const* first, std::int64_t from, std::int64_t to, int worker = 0);
  // Throws the first exception of the function, after all workers are finished. An Error also names
  // the location of the step.
  void rethrow();

 private:
  const Custom& custom_;
  const std::string& where_;
  std::size_t outer_, arrays_;
  std::int64_t points_ = 1;
  // per array: its strides along the inner dims
  std::vector<const std::int64_t*> inner_;
  Dims steps_;             // per array: its strides along the outer dims, in bytes
  std::vector<void*> at_;  // per worker and array: the address of the current element
  // per worker: the current position along the outer dims
  Dims index_;
  std::vector<std::exception_ptr> errors_;  // per worker
};

}  // namespace haliax::program
