// Calling a function of the user's at each point of its outer dims: the same on every backend that
// runs on the host.
#pragma once
#include <exception>

#include "program/program.h"

namespace haliax::program {

// Several workers may run parts of it at once. run() allocates nothing, and ends early where the
// function throws.
class CustomCalls {
 public:
  explicit CustomCalls(const Custom&, int workers = 1);
  std::int64_t points() const { return points_; }
  // At the points [from, to), the last of the outer dims fastest. first: the first element of each
  // array.
  void run(void* const* first, std::int64_t from, std::int64_t to, int worker = 0);
  void rethrow();  // what the function has thrown, when all workers are done

 private:
  const Custom& custom_;
  std::size_t outer_, arrays_;
  std::int64_t points_ = 1;
  // of each array: its strides along the dims that the function sees
  std::vector<const std::int64_t*> inner_;
  Dims steps_;             // and along the others, in bytes
  std::vector<void*> at_;  // of each worker, for each array
  Dims index_;
  std::vector<std::exception_ptr> errors_;  // by worker
};

}  // namespace haliax::program
