// Matmuls of functions that run on the host as Custom steps (program.h), such as a contraction by
// groups of rows, whose sizes are known only when the step runs.
#pragma once
#include <cstdint>
#include <vector>

#include "haliax/dtype.h"

namespace haliax::program {

// out[m, n] = a[m, k] b[k, n], or 0 if k is 0. Strides are in elements and may be any. All arrays
// are floats of the same dtype. Sums are rounded once.
struct HostMatmul {
  std::int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32;
  const void* a = nullptr;
  std::int64_t a_m = 0, a_k = 0;
  const void* b = nullptr;
  std::int64_t b_k = 0, b_n = 0;
  void* out = nullptr;
  std::int64_t out_m = 0, out_n = 0;
};
// Returns false if it does not support the matmul.
using HostMatmulKernel = bool (*)(const HostMatmul&);

// Computes a matmul with the kernel in scope on this thread, or with plain loops.
void multiply(const HostMatmul&);

// Matmuls that write different arrays. With a kernel in scope, they run in parallel on all threads,
// and large ones are split by columns.
class HostMatmuls {
 public:
  HostMatmuls();
  void add(const HostMatmul& p) { tasks_.push_back(p); }
  void run();

 private:
  void split(double most);
  std::vector<HostMatmul>& tasks_;  // memory of this thread
};

// Sets the kernel of this thread for the length of a scope. A backend opens it around the functions
// that it calls.
class HostMatmulScope {
 public:
  explicit HostMatmulScope(HostMatmulKernel);
  ~HostMatmulScope();
  HostMatmulScope(const HostMatmulScope&) = delete;

 private:
  HostMatmulKernel before_;
};

}  // namespace haliax::program
