// Products of matrices as cuBLASLt is told of them. Matrices are column-major there. What lies row
// by row here is its transpose there, so a product's operands change places: out = x y in rows is
// out^T = y^T x^T in columns.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "program/program.h"

namespace haliax::cuda {

// rows x cols as it lies: element (r, c) of matrix i at i * step + c * ld + r.
struct Matrix {
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0, ld = 0;
  std::int64_t step = 0;    // from one matrix of the batch to the next; 0: the same
  int alignment = 1;        // of the first element, and of all others of the batch, in bytes
  bool transposed = false;  // its transpose is multiplied
  friend bool operator==(const Matrix&, const Matrix&) = default;
};
// out[i] = a[i] b[i] (+ out[i]); summed in f64 if out is f64, else in f32, and rounded once.
struct Product {
  Matrix a, b, out;
  std::int64_t batch = 1;
  bool accumulate = false;
  friend bool operator==(const Product&, const Product&) = default;
};

std::string to_string(const Product&);                     // all of it
std::int64_t bytes_of(const Matrix&, std::int64_t batch);  // from the first element to the last

struct Launch;
// A contraction as products, after copies into the step's scratch where no stride fits. Nothing: it
// is for our own kernel (integers, dtypes that differ, many small products).
std::optional<std::vector<Launch>> products_of(const program::Step&);
std::int64_t product_scratch(const program::Contract&);  // bytes

}  // namespace haliax::cuda
