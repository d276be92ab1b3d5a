// Rewrites of a graph before it is lowered, each in the file of its name.
// masked_matmuls has its own header. pipeline.cpp has the order.
//
// Always  the values are bitwise identical, or equal up to rounding where a comment says so.
#pragma once
#include "graph/node.h"

namespace haliax {

// Computes only one side of a select with one flag, if only this side reads a matmul or a loop.
// The values are bitwise identical.
Nodes lazy_selects(const Nodes& roots);
// Rewrites matmuls of a softmax to read the exponentials before the division. The values are equal
// up to rounding.
Nodes softmax_matmuls(const Nodes& roots);
// Rewrites contractions of row with row as elementwise products that are summed.
Nodes row_dots(const Nodes& roots);
// Rewrites depthwise convolutions as sums of elementwise products of slices.
Nodes window_sums(const Nodes& roots);
struct BatchLimits {
  // Bytes of a parallel slot. The matmul result of an iteration has about half of it, and at most
  // twice.
  double max_parallel_slot_bytes = 0;
  // least number of iterations; with fewer, threads would be idle
  std::int64_t min_iterations = 12;
  // Least number of multiplications in one iteration's matmul. Smaller matmuls are faster in one
  // step.
  double min_multiplications = 1 << 16;
};
// Rewrites batched matmuls whose results other matmuls read matrix by matrix as loops over the
// batch. The values are equal up to rounding.
Nodes batch_loops(const Nodes& roots, const BatchLimits&);
// Computes the first positions of an argsort without a sort.
Nodes first_positions(const Nodes& roots);

}  // namespace haliax
